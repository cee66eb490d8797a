"""The memory of episodes: what was scored can be drawn again."""

import io

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_models import RecordingReward, TwoFeatures

from vlmrm_gym import EpisodeLog, Trajectory, VLMRewardVectorEnv
from vlmrm_gym.states.scene_changes import SceneChange
from vlmrm_gym.states.states import States

LENGTH = 6


def play(envs, steps):
    """All rewards by environment and step index, as they were delivered."""
    envs.action_space.seed(3)
    envs.reset(seed=3)
    found = {}
    for t in range(steps):
        infos = envs.step(envs.action_space.sample())[4]
        for arrived in [infos, *([envs.flush()] if t in (3, steps - 1) else [])]:
            for i in np.flatnonzero(arrived["_vlm_rewards"]).tolist():
                start = int(arrived["vlm_reward_start"][i])
                found.update({(i, start + t): reward for t, reward in enumerate(arrived["vlm_rewards"][i])})
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"scoring": "step"},
        {"return_features": True, "task_reward_weight": 0.5, "autoreset_mode": "SameStep", "max_pending_bytes": 100},
    ],
    ids=["step", "features, same step"],
)
def test_every_delivered_reward_stands_in_the_log(options):
    """By environment and step, with what the environment said, whenever rewards arrive."""
    log = EpisodeLog(10**6)
    envs = gym.make_vec("VLMRM/CartPole-v1", 2, episode_length=LENGTH, reward=TwoFeatures(), episode_log=log, **options)
    found = play(envs, 2 * LENGTH + 2)
    assert [len(episode) for episode in log.episodes] == [LENGTH] * 4
    for episode in log.episodes:
        expected = [found[episode.env_index, episode.start + t] for t in range(LENGTH)]
        np.testing.assert_allclose(episode.rewards, expected)
        assert set(episode.versions) == {1 if "return_features" in options else 0}
        assert set(episode.task_rewards) <= {0.0, 1.0}
        np.testing.assert_array_equal(episode.success, np.abs(episode.states.rows[:, 1]) <= np.deg2rad(12))
    assert {(e.env_index, e.episode_index) for e in log.episodes} == {(0, 0), (1, 0), (0, 1), (1, 1)}
    envs.close()


def test_frames_of_the_log_are_those_that_were_scored():
    """To the pixel, all views of a state; also after the log was written and read."""
    log, again = EpisodeLog(10**6), EpisodeLog(10**6)
    RecordingReward.seen.clear()
    options = {"episode_length": 4, "camera": "front-side", "reward": RecordingReward(), "episode_log": log}
    envs = gym.make_vec("VLMRM/Humanoid-stand-v0", 2, **options)
    play(envs, 5)
    scored = {frame.tobytes() for frame in RecordingReward.seen}
    for episodes in (log.episodes, read_again(log, again).episodes):
        drawn = []
        for episode in episodes:
            drawn += [view.tobytes() for views in envs.scorer.frames(episode.states) for view in views]
        assert len(drawn) == 16
        assert set(drawn) == scored
    small = envs.scorer.frames(log.episodes[0].states, size=(32, 24), views={"azimuth": 30.0})
    assert small.shape == (4, 1, 32, 24, 3)
    envs.close()


def read_again(log, other):
    file = io.BytesIO()
    log.save(file)
    file.seek(0)
    other.load(file)
    return other


def test_scene_changes_belong_to_the_states_of_the_log():
    """A body that grows is drawn as it was when the state was scored, after saving too."""
    log, again = EpisodeLog(10**7), EpisodeLog(10**7)
    RecordingReward.seen.clear()
    env = gym.make("InvertedPendulum-v5", render_mode="rgb_array", width=60, height=40)
    envs = VLMRewardVectorEnv([lambda: env], reward=RecordingReward(), episode_log=log)
    envs.reset(seed=0)
    for t in range(4):
        env.unwrapped.model.geom_size[-1, 0] = 0.05 + 0.05 * t
        envs.step(np.zeros((1, 1), dtype=np.float32))
    envs.flush()
    envs.reset()
    scored = np.stack(RecordingReward.seen)
    for one in (log, read_again(log, again)):
        (episode,) = one.episodes
        np.testing.assert_array_equal(envs.scorer.frames(episode.states)[:, 0], scored)
    assert len({frame.tobytes() for frame in scored}) == 4
    envs.close()


def test_captured_frames_are_written_with_the_log():
    """A change may be a frame, of a scene that the renderer cannot draw."""
    log, again = EpisodeLog(10**6), EpisodeLog(10**6)
    frame = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    states = States(np.zeros((2, 3)), [SceneChange(frame=frame), None])
    log.add(Trajectory(states=states, success=np.array([np.nan, 1.0]), env_index=1, episode_index=2, start=7))
    (episode,) = read_again(log, again).episodes
    change, none = episode.states.changes
    np.testing.assert_array_equal(change.frame, frame)
    assert none is None
    np.testing.assert_array_equal(episode.success, [np.nan, 1.0])
    assert (episode.env_index, episode.episode_index, episode.start) == (1, 2, 7)


def make_trajectory(start, length):
    """Its states, of one number, are numbered from `start`; 36 bytes a step."""
    return Trajectory(states=States(np.arange(start, start + length, dtype=np.float64)[:, None]), start=start)


def logged(*lengths):
    starts = np.cumsum([0, *lengths]).tolist()
    return EpisodeLog.of([make_trajectory(*one) for one in zip(starts, lengths, strict=False)])


def test_a_part_shares_rewards_that_arrive_and_begins_at_its_own_step():
    whole = make_trajectory(7, 5)
    part = whole[2:][:2]
    assert (len(part), part.start, part.states.rows[:, 0].tolist()) == (2, 9, [9, 10])
    assert np.isnan([part.rewards, part.task_rewards, part.success]).all()
    assert (whole.nbytes, whole.known_success, part.versions.tolist()) == (180, None, [0, 0])
    whole.rewards[:], whole.versions[3] = np.arange(5), 4
    assert (part.rewards.tolist(), part.versions.tolist()) == ([2, 3], [0, 4])
    with pytest.raises(ValueError, match=r"must be successive steps\. Received a stride of 2"):
        whole[::2]


@settings(deadline=None, max_examples=50)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12), max_bytes=st.integers(324, 2000))
def test_the_oldest_episodes_go_first_and_memory_stays_within_its_limit(lengths, max_bytes):
    """The log has the newest episodes, in order, and never more bytes than `max_bytes`; what is in progress counts."""
    log = EpisodeLog(max_bytes)
    for length in lengths:
        for t in range(length):
            log.grow(36)
            assert 36 * (t + 1) <= log.nbytes <= max_bytes
        log.grow(-36 * length)
        log.add(make_trajectory(0, length))
    kept = [len(episode) for episode in log.episodes]
    assert kept == lengths[len(lengths) - len(kept) :]
    assert log.nbytes == sum(episode.nbytes for episode in log.episodes) == 36 * len(log)
    assert len(kept) == len(lengths) or log.nbytes + 36 * lengths[-len(kept) - 1] > max_bytes - 36 * max(lengths)


def test_segments_are_uniform_over_all_places_where_one_fits():
    """Of episodes with 2, 5 and 9 steps there are 0, 3 and 7 segments of 3 steps: each has one tenth."""
    segments = logged(2, 5, 9).sample(20_000, 3, seed=0)
    first = [segment.start for segment in segments]
    assert all(
        segment.states.rows[:, 0].tolist() == [t, t + 1, t + 2] for t, segment in zip(first, segments, strict=True)
    )
    places, counts = np.unique(first, return_counts=True)
    assert places.tolist() == [2, 3, 4, 7, 8, 9, 10, 11, 12, 13]
    np.testing.assert_allclose(counts / 20_000, 0.1, atol=0.01)
    # With a half-life of 8 steps an episode of 8 steps has twice the probability of the one before it.
    newer = logged(8, 8).sample(20_000, 8, seed=0, half_life=8)
    assert np.mean([segment.start == 8 for segment in newer]) == pytest.approx(2 / 3, abs=0.01)


def test_what_a_log_cannot_sample_or_hold_is_refused():
    """A log smaller than one episode at the step that it has no room for, with both sizes."""
    with pytest.raises(ValueError, match=r"`length` must be at most that of the longest episode, 4\. Received 5"):
        logged(3, 4).sample(1, 5)
    with pytest.raises(ValueError, match=r"`half_life` must be an integer of at least 1"):
        logged(3).sample(1, 1, half_life=0)
    with pytest.raises(ValueError, match="`max_bytes` must be an integer of at least 1"):
        EpisodeLog(0)
    envs = gym.make_vec("VLMRM/CartPole-v1", 1, episode_length=50, episode_log=EpisodeLog(500))
    envs.reset(seed=0)
    for _ in range(10):
        envs.step(np.zeros(1, dtype=np.int64))
    with pytest.raises(ValueError, match=r"`max_bytes` of an episode log .* Received 500, but after 11 steps"):
        envs.step(np.zeros(1, dtype=np.int64))
    envs.close()
