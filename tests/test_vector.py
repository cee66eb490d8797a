"""VLMRewardVectorEnv: every transition gets its own reward, once, in every mode."""

import gymnasium as gym
import numpy as np
import pytest
from conftest import TASK_PROMPT
from counting_env import Counting
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reward_models import PixelReward, SlowReward

import vlmrm_gym
from vlmrm_gym import CLIPReward
from vlmrm_gym.envs import CartPole
from vlmrm_gym.rendering import CaptureState, Scene
from vlmrm_gym.tasks import TASKS

MODES = [*AutoresetMode]


@pytest.fixture
def pixel_rewards(monkeypatch):
    monkeypatch.setattr("vlmrm_gym.vector.CLIPReward", PixelReward)


def make(env, prompt="count", **kwargs):
    return vlmrm_gym.VLMRewardVectorEnv(env, prompt, **kwargs)


class Collector:
    """Steps a vector environment with zeros and collects the rewards that each of its environments is told."""

    def __init__(self, envs):
        self.envs, self.mode = envs, envs.metadata["autoreset_mode"]
        self.rewards = [[] for _ in range(envs.num_envs)]
        self.episodes = [[] for _ in range(envs.num_envs)]
        self.nans = np.zeros(envs.num_envs, dtype=int)
        self.take(envs.reset(seed=0)[1])
        self.ended = np.zeros(envs.num_envs, dtype=bool)

    def take(self, infos):
        assert infos["vlm_rewards"].shape == infos["_vlm_rewards"].shape == (self.envs.num_envs,)
        for number, (rewards, given_) in enumerate(zip(infos["vlm_rewards"], infos["_vlm_rewards"], strict=True)):
            assert given_ == (rewards is not None) == infos["_vlm_episode"][number]
            if given_:
                assert rewards.dtype == np.float32
                self.rewards[number] += rewards.tolist()
                self.episodes[number] += [int(infos["vlm_episode"][number])] * len(rewards)

    def step(self):
        if self.mode == AutoresetMode.DISABLED and self.ended.any():
            self.take(self.envs.reset(options={"reset_mask": self.ended})[1])
        _, rewards, terminations, truncations, infos = self.envs.step(np.zeros(self.envs.num_envs, dtype=int))
        only_reset = self.ended & (self.mode == AutoresetMode.NEXT_STEP)
        np.testing.assert_array_equal(np.isnan(rewards), ~only_reset)
        np.testing.assert_array_equal(rewards[only_reset], 0)
        np.testing.assert_array_equal(infos["_task_reward"], ~only_reset)
        np.testing.assert_array_equal(infos["task_reward"], np.where(only_reset, 0, 0.5))
        self.nans += np.isnan(rewards)
        self.ended = terminations | truncations
        self.take(infos)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=4),
    mode=st.sampled_from(MODES),
    overlap=st.booleans(),
    batch_size=st.integers(1, 9),
    max_pending_bytes=st.sampled_from([1, 40, 500, 2**30]),
    actions=st.lists(st.sampled_from(["step"] * 8 + ["flush", "reset"]), min_size=1, max_size=40),
)
def test_every_transition_is_told_its_own_reward_once(
    pixel_rewards, lengths, mode, overlap, batch_size, max_pending_bytes, actions
):
    """Contract 1, 2 and 4, whatever the lengths, the autoresets, flushes and resets, and however scoring is cut."""
    bases = [Counting(own, first=10_000 * number) for number, own in enumerate(lengths)]
    envs = make(
        [lambda base=base: base for base in bases],
        autoreset_mode=mode,
        overlap=overlap,
        batch_size=batch_size,
        max_pending_bytes=max_pending_bytes,
    )
    collector = Collector(envs)
    for action in actions:
        if action == "step":
            collector.step()
        elif action == "flush":
            collector.take(envs.flush())
            assert [len(rewards) for rewards in collector.rewards] == [len(base.led_to) for base in bases]
        else:
            collector.take(envs.reset()[1])
            collector.ended[:] = False
    if not overlap:  # nothing of an episode that has ended is still to come
        for base, rewards, ended in zip(bases, collector.rewards, collector.ended, strict=True):
            if ended:
                assert len(rewards) == len(base.led_to)
    collector.take(envs.flush())
    assert envs.pending_bytes == 0
    for number, base in enumerate(bases):
        assert collector.rewards[number] == base.led_to
        assert collector.nans[number] == len(base.led_to)
    assert all(rewards is None for rewards in envs.flush()["vlm_rewards"])
    envs.close()


def test_episodes_are_numbered(pixel_rewards):
    bases = [Counting([3, 1]), Counting([2])]
    envs = make([lambda base=base: base for base in bases], overlap=True, autoreset_mode="SameStep")
    collector = Collector(envs)
    for _ in range(12):
        collector.step()
    for number, base in enumerate(bases):
        assert len(collector.episodes[number]) >= 8
        assert collector.episodes[number] == base.episodes[: len(collector.episodes[number])]
    envs.close()


def test_with_overlap_an_episode_is_told_before_the_next_one_is_over(monkeypatch):
    """However slow scoring is: a learner never falls behind by more than an episode of each environment."""
    monkeypatch.setattr("vlmrm_gym.vector.CLIPReward", SlowReward)
    base = Counting([5])
    envs = make([lambda: base], overlap=True, autoreset_mode="SameStep")
    collector = Collector(envs)
    for step in range(1, 16):
        collector.step()
        assert len(collector.rewards[0]) >= 5 * (step // 5 - 1)
    envs.close()


def test_pending_states_are_bounded(monkeypatch):
    monkeypatch.setattr("vlmrm_gym.vector.CLIPReward", SlowReward)
    envs = make([lambda: Counting([200])] * 2, overlap=True, max_pending_bytes=200)  # 12 bytes a frame
    collector = Collector(envs)
    for _ in range(100):
        collector.step()
        assert envs.pending_bytes <= 200
    envs.close()


def single_rewards(task, kwargs, num_envs, steps):
    """What `gym.make` gives for the same seeds and actions: observations (steps + 1, ...) and rewards, per env."""
    results = []
    for number in range(num_envs):
        env = gym.make(task.id, episode_length=steps, **kwargs)
        observations, rewards = [env.reset(seed=number)[0]], []
        for action in actions_of(env, num_envs, steps)[:, number]:
            observation, reward, _, truncated, info = env.step(action)
            observations.append(observation)
            rewards.append(reward)
        assert truncated
        results.append((np.stack(observations), np.array(rewards), info["task_reward"]))
        env.close()
    return results


def actions_of(env, num_envs, steps):
    space = getattr(env, "single_action_space", env.action_space)
    space.seed(3)
    return np.stack([np.stack([space.sample() for _ in range(num_envs)]) for _ in range(steps)])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_make_vec_gives_what_make_gives(task, mode):
    """Contract 3 and 9: observations to the bit, rewards within 1e-5; over every registered ID."""
    kwargs = {} if task.prompt else {"prompt": "a humanoid robot kneeling"}
    expected = single_rewards(task, kwargs, 2, steps=4)
    envs = gym.make_vec(task.id, num_envs=2, episode_length=4, autoreset_mode=mode, **kwargs)
    assert envs.metadata["autoreset_mode"] is AutoresetMode(mode)
    observations = [envs.reset(seed=0)[0]]
    for actions in actions_of(envs, 2, 4):
        observation, _, terminations, truncations, infos = envs.step(actions)
        observations.append(observation)
    assert truncations.all()
    assert not terminations.any()
    if mode == "SameStep":
        observations[-1] = np.stack(infos["final_obs"])
    for number, (own, rewards, task_reward) in enumerate(expected):
        np.testing.assert_array_equal(np.stack(observations)[:, number], own)
        np.testing.assert_allclose(infos["vlm_rewards"][number], rewards, atol=1e-5)
        assert infos["task_reward"][number] == task_reward
        where = infos["final_info"] if mode == "SameStep" else infos
        assert where["_success"].all()
    assert "vlm_state" not in str(infos)
    frames = envs.render()
    assert [frame.dtype for frame in frames] == [np.uint8, np.uint8]
    envs.close()


WAYS = [
    {"overlap": True},
    {"batch_size": 3},
    {"num_workers": 2, "overlap": True},
    {"num_workers": 1, "batch_size": 5},
    {"scoring": "step"},
    {"scoring": "step", "num_workers": 2},
]


@pytest.mark.parametrize("env_id", ["VLMRM/CartPole-v1", "VLMRM/Humanoid-stand-v0"])
def test_how_rewards_are_scored_never_changes_their_value(env_id):
    """Contract 3."""

    def rewards(**kwargs):
        envs = gym.make_vec(env_id, num_envs=3, episode_length=12, **kwargs)
        envs.reset(seed=0)
        steps = [envs.step(actions) for actions in actions_of(envs, 3, 12)]
        if kwargs.get("scoring") == "step":
            scored = np.stack([step[1] for step in steps], axis=1)
        else:
            assert np.isnan([step[1] for step in steps]).all()
            told = steps[-1][4] if steps[-1][4]["_vlm_rewards"].all() else envs.flush()
            scored = np.stack(told["vlm_rewards"])
        envs.close()
        return scored

    expected = rewards()
    for way in WAYS:
        np.testing.assert_allclose(rewards(**way), expected, atol=1e-5, err_msg=str(way))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_same_seed_gives_the_same_rewards_to_the_bit(num_workers):
    """Batches, on which the last digits depend, follow from what is submitted alone, not from who is fast."""

    def rewards():
        envs = gym.make_vec("VLMRM/CartPole-v1", num_envs=5, episode_length=17, num_workers=num_workers)
        envs.reset(seed=3)
        envs.action_space.seed(3)
        told = [envs.step(envs.action_space.sample())[4]["vlm_rewards"] for _ in range(40)]
        envs.close()
        return np.concatenate([own for infos in told for own in infos if own is not None])

    np.testing.assert_array_equal(rewards(), rewards())


def test_step_scoring_at_an_episodes_end():
    """The last state of an episode, not the first of the next; nothing where a step only resets."""
    score = CLIPReward(prompt=TASK_PROMPT)
    for mode in ("NextStep", "SameStep"):
        envs = gym.make_vec(
            "VLMRM/CartPole-v1",
            num_envs=1,
            episode_length=30,
            scoring="step",
            autoreset_mode=mode,
            task_reward_weight=2.0,
        )
        reference = gym.make("VLMRM/CartPole-v1", episode_length=30, task_reward_weight=2.0)
        envs.reset(seed=0), reference.reset(seed=0)
        for _ in range(30):
            rewards, expected = envs.step(np.zeros(1, dtype=int))[1], reference.step(0)[1]
            assert rewards[0] == pytest.approx(expected, abs=1e-5)
        if mode == "NextStep":
            assert envs.step(np.zeros(1, dtype=int))[1][0] == 0.0
        upright = Scene(CartPole(render_mode="rgb_array")).make_renderer(score.size_to_draw).render(np.zeros((1, 2)))
        assert score(upright)[0] + 2 - expected > 0.2, "the fallen pole's reward must not be the next start's"


def test_the_task_reward_is_added_by_its_weight(pixel_rewards):
    base = Counting([4])
    envs = make([lambda: base], task_reward_weight=10.0)
    collector = Collector(envs)
    for _ in range(4):
        collector.step()
    assert collector.rewards[0] == [count + 10 * 0.5 for count in base.led_to]


def test_pending_memory_of_a_humanoid():
    """At most 256 bytes a step, where frames would take 691,200."""
    envs = gym.make_vec("VLMRM/Humanoid-stand-v0", num_envs=4)
    envs.reset(seed=0)
    actions = actions_of(envs, 4, 1)[0]
    for _ in range(2):
        for _ in range(99):
            envs.step(actions)
        assert envs.pending_bytes <= 256 * 4 * 99
        assert envs.step(actions)[4]["_vlm_rewards"].all()
        assert envs.pending_bytes == 0
        envs.reset()
    envs.close()


# ---------------------------------------------------------------------------------------------------------------------
# Environments of all kinds
# ---------------------------------------------------------------------------------------------------------------------


def first_episode(envs, steps):
    """The first rewards that environment 0 is told within some steps of action 0."""
    envs.reset(seed=0)
    for _ in range(steps):
        infos = envs.step(np.zeros(envs.num_envs, dtype=int))[4]
        if infos["_vlm_rewards"][0]:
            return infos["vlm_rewards"][0]
    raise AssertionError("no episode has ended")


def gymnasium_cartpole():
    return gym.make("CartPole-v1", render_mode="rgb_array")


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_vector_environments_of_the_users(mode):
    """A list, a SyncVectorEnv, one under a wrapper, and one with processes of its own: drawn from states, alike."""
    expected = first_episode(make([gymnasium_cartpole], TASK_PROMPT, autoreset_mode=mode), 30)
    sync = SyncVectorEnv([gymnasium_cartpole] * 2, autoreset_mode=mode)
    np.testing.assert_allclose(first_episode(make(sync, TASK_PROMPT), 30), expected, atol=1e-5)
    wrapped = gym.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv([gymnasium_cartpole] * 2, autoreset_mode=mode))
    np.testing.assert_allclose(first_episode(make(wrapped, TASK_PROMPT), 30), expected, atol=1e-5)
    apart = AsyncVectorEnv(
        [lambda: CaptureState(gymnasium_cartpole())] * 2, autoreset_mode=AutoresetMode(mode), context="spawn"
    )
    envs = make(apart, TASK_PROMPT)
    np.testing.assert_allclose(first_episode(envs, 30), expected, atol=1e-5)
    envs.close()


def test_vector_environments_that_can_only_be_looked_at():
    """Their frames are stored, and the last one of an episode is its own."""

    def native():
        return gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point", render_mode="rgb_array")

    reference, frames, terminations = native(), [], [False]
    reference.reset(seed=0)
    while not terminations[0]:
        terminations = reference.step(np.zeros(2, dtype=int))[2]
        frames.append(reference.render()[0])
    expected = CLIPReward(prompt=TASK_PROMPT)(np.stack(frames))
    np.testing.assert_allclose(first_episode(make(native(), TASK_PROMPT), 30), expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"`autoreset_mode` cannot be same-step for .*next episode's first frame"):
        make(AsyncVectorEnv([gymnasium_cartpole], autoreset_mode=AutoresetMode.SAME_STEP, context="spawn"), TASK_PROMPT)


def test_a_reset_between_episodes_loses_no_transition():
    """Gymnasium's native vector environments reset by themselves only where nobody has done it before."""
    envs = make(
        gym.make_vec("CartPole-v1", 1, vectorization_mode="vector_entry_point", render_mode="rgb_array"), TASK_PROMPT
    )
    first_episode(envs, 30)
    envs.reset()
    rewards, infos = envs.step(np.zeros(1, dtype=int))[1::3]
    assert np.isnan(rewards).all()
    assert infos["_task_reward"].all()
    envs.close()


def test_states_that_get_lost_on_their_way_are_an_error(pixel_rewards):
    twice = make(make([Counting] * 2))
    twice.reset(seed=0)
    with pytest.raises(RuntimeError, match=r"Environments \[0 1\] were stepped, but states came from \[\]"):
        twice.step(np.zeros(2, dtype=int))


@pytest.mark.parametrize("registered", [True, False])
def test_the_camera_and_the_quality_reach_views_and_rewards(registered):
    def seen(**kwargs):
        if registered:
            envs = gym.make_vec("VLMRM/Humanoid-stand-v0", num_envs=1, episode_length=1, **kwargs)
        else:
            made = [lambda: gym.make("Humanoid-v5", render_mode="rgb_array", max_episode_steps=1)]
            envs = make(made, "a humanoid robot standing up", **kwargs)
        envs.reset(seed=0)
        infos = envs.step(np.zeros((1, 17), dtype=np.float32))[4]
        envs.reset(seed=0)
        frame = envs.render()[0]
        envs.close()
        return frame, infos["vlm_rewards"][0][0]

    frame, reward = seen()
    for kwargs in ({"camera": {"distance": 9.0}}, {"quality": "faithful"}):
        other_frame, other_reward = seen(**kwargs)
        assert not np.array_equal(frame, other_frame), kwargs
        assert abs(reward - other_reward) > 1e-4, kwargs


def test_an_environment_that_fails_loses_nothing_of_the_others(pixel_rewards):
    bases = [Counting([10]), Counting([10], first=500, fails_at=4)]
    envs = make([lambda base=base: base for base in bases])
    collector = Collector(envs)
    for _ in range(3):
        collector.step()
    with pytest.raises(ZeroDivisionError, match="the environment's own bug"):
        collector.step()
    collector.take(envs.flush())
    assert collector.rewards[0] == bases[0].led_to[:3]  # of the step that failed, nothing was returned
    assert collector.rewards[1] == bases[1].led_to
    envs.close()


# ---------------------------------------------------------------------------------------------------------------------
# Bad input
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_envs": 0}, "`num_envs` must be an integer of at least 1. Received 0"),
        ({"num_envs": -2}, "`num_envs` must be an integer of at least 1. Received -2"),
        ({"num_workers": -1}, "`num_workers` must be an integer of at least 0. Received -1"),
        ({"num_workers": 1.5}, "`num_workers` must be an integer of at least 0. Received 1.5"),
        ({"scoring": "sometimes"}, "`scoring` must be one of 'episode', 'step'. Received 'sometimes'"),
        ({"scoring": "step", "overlap": True}, '`overlap` needs scoring="episode"'),
        ({"overlap": 1}, "`overlap` must be True or False. Received 1"),
        ({"devices": ["cuda:7"], "num_workers": 1}, "`device` must be .* of this machine .*Received 'cuda:7'"),
        ({"devices": "cuda:0"}, "`devices` must be a list such as .*Received 'cuda:0'"),
        ({"devices": []}, "`devices` must be a list"),
        ({"devices": ["cpu"], "device": "cpu"}, "`device` and `devices` say the same"),
        ({"autoreset_mode": "never"}, "`autoreset_mode` must be one of 'NextStep', 'SameStep', 'Disabled'.*'never'"),
        ({"max_pending_bytes": 0}, "`max_pending_bytes` must be an integer of at least 1. Received 0"),
        ({"render_mode": "human"}, "`render_mode` must be \"rgb_array\".*Received 'human'"),
        ({"batch_size": 0}, "`batch_size` must be an integer of at least 1. Received 0"),
        ({"episode_length": 0}, "`episode_length` must be an integer of at least 1. Received 0"),
        ({"task_reward_weight": float("nan")}, "`task_reward_weight` must be a finite number"),
        ({"textured": True}, "`textured` is not for CartPole"),
        ({"alpha": 3}, "`alpha` must be a number from 0 to 1"),
    ],
)
def test_bad_parameters(kwargs, message):
    with pytest.raises(ValueError, match=message):
        gym.make_vec("VLMRM/CartPole-v1", **{"num_envs": 2, **kwargs})


def test_more_devices_than_workers(monkeypatch):
    monkeypatch.setattr("vlmrm_gym.rewards.models.resolve_device", lambda device: device)
    with pytest.raises(ValueError, match=r"`devices` must be at most one for each worker. Received 2 devices"):
        gym.make_vec("VLMRM/CartPole-v1", num_envs=2, devices=["cuda:0", "cuda:1"], num_workers=1)


def test_a_task_without_a_prompt_of_its_own():
    with pytest.raises(TypeError, match="`prompt` must be a text"):
        gym.make_vec("VLMRM/Humanoid-v0", num_envs=2)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ([], "`env` must be a vector environment, or a list of functions .*Received \\[\\]"),
        (gymnasium_cartpole, "`env` must be a vector environment, or a list of functions"),
        ([lambda: 3], "`env` must be a list of functions that make environments. One made 3"),
        ([lambda: gym.make("CartPole-v1")], '`env` must be made with render_mode="rgb_array"'),
        (
            [
                lambda: gym.make("Ant-v5", render_mode="rgb_array", healthy_reward=1.0),
                lambda: gym.make("Ant-v5", render_mode="rgb_array", width=200),
            ],
            "`env` must have environments that look alike",
        ),
    ],
)
def test_environments_that_cannot_be_scored(env, message):
    with pytest.raises(ValueError, match=message):
        make(env, TASK_PROMPT)


def test_frames_of_differing_size(pixel_rewards):
    envs = make([lambda: Counting(), lambda: Counting(size=3)])
    with pytest.raises(ValueError, match=r"`env` must have environments that render frames of one size. Received"):
        envs.reset(seed=0)


def test_a_mode_that_is_not_the_vector_environments(pixel_rewards):
    envs = SyncVectorEnv([Counting])
    with pytest.raises(ValueError, match=r"`autoreset_mode` is a vector environment's own. Received 'SameStep', but"):
        make(envs, autoreset_mode="SameStep")
    make(envs, autoreset_mode="NextStep").close()


def test_calls_after_close(pixel_rewards):
    envs = make([Counting])
    envs.reset(seed=0)
    envs.close()
    envs.close()
    for call in (envs.reset, envs.flush, envs.render, lambda: envs.step(np.zeros(1, dtype=int))):
        with pytest.raises(ClosedEnvironmentError, match="has been closed"):
            call()


def test_spec_and_metadata():
    envs = gym.make_vec("VLMRM/Humanoid-stand-v0", num_envs=3, textured=False)
    assert envs.spec is not None
    assert envs.spec.id == "VLMRM/Humanoid-stand-v0"
    assert (envs.num_envs, envs.render_mode, envs.closed) == (3, "rgb_array", False)
    again = gym.make_vec(envs.spec)
    assert again.num_envs == 3
    again.close(), envs.close()
