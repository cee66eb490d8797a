"""Statistics of episodes, and episodes played to evaluate a policy."""

import copy

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from vlmrm_gym._util.steps import Step
from vlmrm_gym.data.late import Late
from vlmrm_gym.data.statistics import Episodes, EpisodeStatistics, EpisodeTotals, finished_episodes, play_episodes


class Counter(gym.Env):
    """Pays 1 at every step but the last, which pays 10; episodes have 2 to 5 steps; every second step succeeds."""

    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.number = int(self.np_random.integers(2, 6)), 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left, self.number = self.left - 1, self.number + 1
        ends = self.left == 0
        return np.zeros(1, np.float32), 10.0 if ends else 1.0, ends, False, {"success": self.number % 2 == 0}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_statistics_are_those_of_gymnasium_and_of_the_task(mode):
    """Episodes end at different times; a step that only resets belongs to none."""
    envs, reference = (
        wrapper(SyncVectorEnv([Counter] * 3, autoreset_mode=mode))
        for wrapper in (EpisodeStatistics, RecordEpisodeStatistics)
    )
    for one in (envs, reference):
        one.reset(seed=5)
    seen = 0
    for _ in range(40):
        infos, expected = (one.step(np.zeros(3, np.int64))[4] for one in (envs, reference))
        np.testing.assert_array_equal(infos["_episode"], expected.get("_episode", np.zeros(3, bool)))
        for i in np.flatnonzero(infos["_episode"]):
            episode, length = infos["episode"], expected["episode"]["l"][i]
            assert (episode["r"][i], episode["l"][i]) == (expected["episode"]["r"][i], length)
            assert episode["task_return"][i] == length - 1 + 10
            assert episode["success_fraction"][i] == length // 2 / length
            seen += 1
    assert seen > 15


def test_a_reset_begins_statistics_anew():
    """Only those of the environments that it resets."""
    envs = EpisodeStatistics(SyncVectorEnv([Counter] * 2, autoreset_mode=AutoresetMode.DISABLED))
    envs.reset(seed=5)
    lengths = []
    for i in range(2):
        single = Counter()
        single.reset(seed=5 + i)
        lengths.append(single.left)
    envs.step(np.zeros(2, np.int64))
    envs.reset(seed=[5, None], options={"reset_mask": np.array([True, False])})
    found = {}
    while len(found) < 2:
        infos = envs.step(np.zeros(2, np.int64))[4]
        for i in np.flatnonzero(infos["_episode"]):
            found.setdefault(int(i), int(infos["episode"]["l"][i]))
            envs.reset(options={"reset_mask": np.arange(2) == i})
    assert found == dict(enumerate(lengths))


def test_played_episodes_are_those_of_single_environments():
    id = "VLMRM/CartPole-v1"
    envs = gym.make_vec(id, 2, episode_length=6, autoreset_mode="SameStep")
    action = envs.single_action_space.sample()
    played = play_episodes(envs, lambda _: np.stack([action] * 2), seed=3)
    rows = finished_episodes(EpisodeStatistics(envs).step(np.stack([action] * 2))[4])
    assert rows == []
    envs.close()
    env = gym.make(id, episode_length=6)
    for i in range(2):
        env.reset(seed=3 + i)
        steps = [env.step(action) for _ in range(6)]
        np.testing.assert_allclose(played.vlm_returns[i], sum(step[1] for step in steps), rtol=1e-5)
        np.testing.assert_allclose(played.task_returns[i], sum(step[4]["task_reward"] for step in steps), rtol=1e-6)
        assert played.success_fractions[i] == np.mean([step[4]["success"] for step in steps])
    env.close()
    episodes = Episodes(np.zeros(4), np.zeros(4), np.array([0.25, 0.5, 0.5, 1.0]))
    assert [episodes.means(threshold)["success"] for threshold in (0.5, 0.51, 1.0)] == [0.75, 0.25, 0.25]
    means = played.means(success_threshold=0.5)
    assert means["success"] == np.mean(played.success_fractions >= 0.5)
    assert means["vlm_return"] == played.vlm_returns.mean()


def test_success_that_is_not_known_is_left_out():
    class Silent(Counter):
        def step(self, action):
            return *super().step(action)[:4], {}

    envs = SyncVectorEnv([Silent] * 2)
    means = play_episodes(envs, lambda _: np.zeros(2, np.int64), seed=0).means(success_threshold=0.5)
    assert set(means) == {"vlm_return", "task_return"}
    assert means["vlm_return"] == means["task_return"]
    envs = EpisodeStatistics(envs)
    envs.reset(seed=0)
    rows = [row for _ in range(8) for row in finished_episodes(envs.step(np.zeros(2, np.int64))[4])]
    assert {name for row in rows for name in row} == {"task_return"}


def test_episodes_that_cannot_be_played_are_refused_and_an_exception_of_scoring_is_raised():
    def fails(frames):
        raise OSError("the scoring service is down")

    for kwargs, error, message in [
        ({"overlap": True}, ValueError, "`envs` must have an episode's rewards when it ends"),
        ({"autoreset_mode": "Disabled"}, ValueError, "`envs` must reset themselves"),
        ({"reward": fails}, OSError, "the scoring service is down"),
    ]:
        options = {"reward": lambda frames: frames.mean((1, 2, 3)), **kwargs}
        envs = gym.make_vec("VLMRM/CartPole-v1", 2, episode_length=20, **options)
        with pytest.raises(error, match=message):
            play_episodes(envs, lambda observations: np.zeros(2, dtype=np.int64), seed=0)
        envs.close()


def late(start, *rewards):
    return Late(0, start, np.array(rewards, dtype=np.float32), np.full(len(rewards), True))


def step(books, index, ends):
    no = np.array([False])
    infos = {"vlm_step_index": np.array([index]), "_vlm_rewards": no, "task_reward": np.array([0.5])}
    books.step(Step(None, np.array([np.nan]), np.array([ends]), no, infos, ~no))


def test_an_episode_after_a_reset_is_whole_whatever_was_lost_before():
    """The call that made transition 1, the first of an episode, raised, and then the environment was reset."""
    books = EpisodeTotals(1)
    step(books, 0, ends=True)
    books.end(np.array([True]), is_lost=True)
    step(books, 2, ends=True)
    books.receive(late(0, 3, 4))
    books.receive(late(2, 5))
    assert [books.pop(0).summary["r"] for _ in range(2)] == [3, 5]


def test_rewards_find_their_episodes_by_index():
    """Also after a transition that no step added, for rewards that have come before, or are lost."""
    books = EpisodeTotals(1)
    books.receive(late(0, 100, 100))  # of transitions before the first step
    for index in (10, 11, 13, 14, 15):  # the call that made transition 12 raised; the second episode has one step
        step(books, index, ends=index > 13)
    assert books.is_between_episodes
    books.receive(late(10, 0, 1))
    whole = copy.deepcopy(books)
    whole.receive(late(11, 1, 2, 3, 4))
    whole.receive(late(15, 7))
    books.receive(late(15, 7))  # those of 12 to 14 are lost
    for one in (whole, books):
        assert one.pop(0).summary == {
            "r": 7,
            "l": 1,
            "task_return": 0.5,
            "success_fraction": pytest.approx(np.nan, nan_ok=True),
        }
        assert one.pop(0) is None  # the first episode is not reported
