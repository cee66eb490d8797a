"""VLMRewardVectorEnv: every transition gets its own reward exactly once, in every mode."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from conftest import TASK_PROMPT
from counting_env import Counting
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vlmrm_gym
from vlmrm_gym import CLIPReward
from vlmrm_gym.states import CaptureState
from vlmrm_gym.tasks import TASKS

MODES = [*AutoresetMode]


def make(env, prompt=None, **kwargs):
    """Make scored environments: by `CLIPReward` with a prompt, else by the number that the first pixel encodes."""
    if prompt is None:
        reward_kwargs = {"batch_size": kwargs.pop("batch_size", None)}
        kwargs = {"reward": "reward_models:PixelReward", "reward_kwargs": reward_kwargs, **kwargs}
    return vlmrm_gym.VLMRewardVectorEnv(env, prompt, **kwargs)


class Collector:
    """Steps a vector environment with zeros and collects the rewards of each environment."""

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
            assert given_ == (rewards is not None) == infos["_vlm_episode_index"][number]
            if given_:
                assert rewards.dtype == np.float32
                self.rewards[number] += rewards.tolist()
                self.episodes[number] += [int(infos["vlm_episode_index"][number])] * len(rewards)

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
def test_every_transition_gets_its_own_reward_once(lengths, mode, overlap, batch_size, max_pending_bytes, actions):
    """Contracts 1, 2 and 4, for any episode lengths, autoreset modes, flushes, resets, batch and chunk sizes."""
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
            assert [len(rewards) for rewards in collector.rewards] == [len(base.expected_rewards) for base in bases]
        else:
            collector.take(envs.reset()[1])
            collector.ended[:] = False
    if not overlap:  # ended episodes are fully scored
        for base, rewards, ended in zip(bases, collector.rewards, collector.ended, strict=True):
            if ended:
                assert len(rewards) == len(base.expected_rewards)
    collector.take(envs.flush())
    assert envs.pending_bytes == 0
    for number, base in enumerate(bases):
        assert collector.rewards[number] == base.expected_rewards
        assert collector.nans[number] == len(base.expected_rewards)
    assert all(rewards is None for rewards in envs.flush()["vlm_rewards"])
    envs.close()


def test_with_overlap_an_episode_is_scored_before_the_next_one_ends_and_pending_states_are_bounded():
    """A learner waits for at most one episode per environment, even if scoring is slow."""
    slow = {"reward": "reward_models:SlowReward", "overlap": True}
    envs = make([lambda: Counting([5])], autoreset_mode="SameStep", **slow)
    collector = Collector(envs)
    for step in range(1, 16):
        collector.step()
        assert len(collector.rewards[0]) >= 5 * (step // 5 - 1)
    envs.close()
    envs = make([lambda: Counting([200])] * 2, max_pending_bytes=200, **slow)  # 12 bytes a frame
    collector = Collector(envs)
    for _ in range(40):
        collector.step()
        assert envs.pending_bytes <= 200
    envs.close()


def single_rewards(task, kwargs, num_envs, steps):
    """Observations (steps + 1, ...) and rewards of each environment, stepped through `gym.make`."""
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


@pytest.mark.parametrize(
    ("task", "mode"),
    [
        *((task, "NextStep") for task in TASKS),
        *((task, "SameStep") for task in TASKS if task.id in ("VLMRM/CartPole-v1", "VLMRM/Humanoid-kneel-v0")),
    ],
    ids=lambda one: getattr(one, "id", one),
)
def test_make_vec_matches_make(task, mode):
    """Contracts 3 and 9, for every registered ID: equal observations, rewards within 1e-5."""
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


MODES_OF_SCORING = [
    {"overlap": True, "batch_size": 3},
    {"num_workers": 2, "overlap": True, "batch_size": 5},
    {"scoring": "step"},
]


def test_how_rewards_are_scored_never_changes_their_value():
    """Contract 3."""

    def rewards(**kwargs):
        envs = gym.make_vec("VLMRM/Humanoid-stand-v0", num_envs=3, episode_length=12, **kwargs)
        envs.reset(seed=0)
        steps = [envs.step(actions) for actions in actions_of(envs, 3, 12)]
        if kwargs.get("scoring") == "step":
            scored = np.stack([step[1] for step in steps], axis=1)
        else:
            assert np.isnan([step[1] for step in steps]).all()
            infos = steps[-1][4] if steps[-1][4]["_vlm_rewards"].all() else envs.flush()
            scored = np.stack(infos["vlm_rewards"])
        envs.close()
        return scored

    expected = rewards()
    for mode in MODES_OF_SCORING:
        np.testing.assert_allclose(rewards(**mode), expected, atol=1e-5, err_msg=str(mode))


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_the_same_seed_gives_the_same_rewards_to_the_bit(num_workers):
    """The last digits depend on the batches, and batches depend only on the submitted states, not on timing."""

    def rewards():
        envs = gym.make_vec("VLMRM/CartPole-v1", num_envs=5, episode_length=17, num_workers=num_workers)
        envs.reset(seed=3)
        envs.action_space.seed(3)
        arrived = [envs.step(envs.action_space.sample())[4]["vlm_rewards"] for _ in range(40)]
        envs.close()
        return np.concatenate([own for infos in arrived for own in infos if own is not None])

    np.testing.assert_array_equal(rewards(), rewards())


def test_step_scoring_at_the_end_of_an_episode():
    """The last state of the episode is scored, not the first of the next; a step that only resets is not scored."""
    for mode, only_reset in (("NextStep", [3, 7]), ("SameStep", [])):
        base = Counting([3])
        envs = make([lambda base=base: base], scoring="step", autoreset_mode=mode, task_reward_weight=2.0)
        envs.reset(seed=0)
        rewards = [envs.step(np.zeros(1, dtype=int))[1][0] for _ in range(8)]
        assert [reward for reward in rewards if reward] == [count + 2 * 0.5 for count in base.expected_rewards]
        assert np.flatnonzero(np.array(rewards) == 0).tolist() == only_reset
        envs.close()


def test_pending_memory_of_a_humanoid():
    """At most 256 bytes per step; frames would take 691,200."""
    envs = gym.make_vec("VLMRM/Humanoid-stand-v0", num_envs=2, episode_length=50)
    envs.reset(seed=0)
    actions = actions_of(envs, 2, 1)[0]
    for _ in range(49):
        envs.step(actions)
    assert envs.pending_bytes <= 256 * 2 * 49
    assert envs.step(actions)[4]["_vlm_rewards"].all()
    assert envs.pending_bytes == 0
    envs.close()


def first_episode(envs, steps):
    """The first rewards of environment 0 within some steps of action 0."""
    envs.reset(seed=0)
    for _ in range(steps):
        infos = envs.step(np.zeros(envs.num_envs, dtype=int))[4]
        if infos["_vlm_rewards"][0]:
            return infos["vlm_rewards"][0]
    raise AssertionError("no episode has ended")


def gymnasium_cartpole():
    return gym.make("CartPole-v1", render_mode="rgb_array")


def test_sync_wrapped_and_async_vector_environments_agree():
    """All are rendered from states: a list of functions, a SyncVectorEnv, a wrapped one, and an AsyncVectorEnv."""
    mode = AutoresetMode.SAME_STEP  # the harder one
    expected = first_episode(make([gymnasium_cartpole], TASK_PROMPT, autoreset_mode=mode), 30)
    sync = SyncVectorEnv([gymnasium_cartpole] * 2, autoreset_mode=mode)
    wrapped = gym.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv([gymnasium_cartpole] * 2, autoreset_mode=mode))
    capturing = [lambda: CaptureState(gymnasium_cartpole())]
    for base in (sync, wrapped, AsyncVectorEnv(capturing, autoreset_mode=mode, context="spawn")):
        envs = make(base, TASK_PROMPT)
        np.testing.assert_allclose(first_episode(envs, 30), expected, atol=1e-5)
        envs.close()


def test_frames_of_native_vector_environments_are_stored():
    """The last frame of an episode is its own, not the first of the next episode.

    They skip their autoreset after a manual reset, which loses no transition.
    """

    def native():
        return gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point", render_mode="rgb_array")

    reference, frames, terminations = native(), [], [False]
    reference.reset(seed=0)
    while not terminations[0]:
        terminations = reference.step(np.zeros(2, dtype=int))[2]
        frames.append(reference.render()[0])
    expected = CLIPReward("tiny", prompt=TASK_PROMPT)(np.stack(frames))
    envs = make(native(), TASK_PROMPT)
    np.testing.assert_allclose(first_episode(envs, 30), expected, atol=1e-5)
    envs.reset()
    rewards, infos = envs.step(np.zeros(2, dtype=int))[1::3]
    assert np.isnan(rewards).all()
    assert infos["_task_reward"].all()
    envs.close()
    same_step = VectorWrapper(native())
    same_step.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
    with pytest.raises(ValueError, match=r"`autoreset_mode` cannot be same-step for .*next episode's first frame"):
        make(same_step, TASK_PROMPT)


@pytest.mark.filterwarnings("ignore:The bundled model does not know this scene")  # from so far away
def test_the_camera_and_the_quality_reach_views_and_rewards():
    def seen(**kwargs):
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


def test_a_failing_environment_does_not_lose_rewards_of_the_others():
    """The failed step returned nothing; after it, `reset` goes on with all of them."""
    bases = [Counting([10]), Counting([10], first=500, fails_at=4)]
    envs = make([lambda base=base: base for base in bases])
    collector = Collector(envs)
    for _ in range(3):
        collector.step()
    with pytest.raises(ZeroDivisionError, match="the environment's own bug"):
        collector.step()
    with pytest.raises(RuntimeError, match="An exception has left an earlier call"):
        envs.step(np.zeros(2, dtype=int))
    collector.take(envs.flush())
    assert collector.rewards[0] == bases[0].expected_rewards[:3]
    assert collector.rewards[1] == bases[1].expected_rewards
    collector.take(envs.reset()[1])
    collector.step()
    collector.take(envs.flush())
    assert [own[3:] for own in collector.rewards] == [bases[0].expected_rewards[4:], bases[1].expected_rewards[3:]]
    assert [own[-1] for own in collector.episodes] == [1, 1]
    envs.close()


def test_more_devices_than_workers(monkeypatch):
    monkeypatch.setattr("vlmrm_gym.rewards.devices.resolve_device", lambda device, parameter: device)
    with pytest.raises(ValueError, match=r"`devices` must be at most one for each worker. Received 2 devices"):
        gym.make_vec("VLMRM/CartPole-v1", num_envs=2, devices=["cuda:0", "cuda:1"], num_workers=1)


class Redrawn(gym.Wrapper):
    def render(self):
        return 255 - self.env.render()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ([], "`env` must be a vector environment, or a list of functions .*Received \\[\\]"),
        ([lambda: gym.make("CartPole-v1")], '`env` must be made with render_mode="rgb_array"'),
        ([gymnasium_cartpole, lambda: Redrawn(gymnasium_cartpole())], "that are all drawn from their states, or none"),
        (SyncVectorEnv([Counting]), "`autoreset_mode` cannot change that of a vector environment. Received 'SameStep'"),
    ],
)
def test_environments_that_cannot_be_scored(env, message):
    with pytest.raises(ValueError, match=message):
        make(env, TASK_PROMPT, autoreset_mode="SameStep")


ONE = Counting()


def test_duplicate_environments_are_refused():
    """They would be stepped twice and their episodes mixed; also under wrappers of their own."""
    limited = [lambda: gym.wrappers.TimeLimit(ONE, 5), Counting, lambda: gym.wrappers.TimeLimit(ONE, 5)]
    for env in (limited, SyncVectorEnv([lambda: ONE, Counting, lambda: ONE])):
        with pytest.raises(ValueError, match=r"`env` must have a different .* as number 0 and as number 2\. Each"):
            make(env)


def scored_cart_pole():
    return gym.make("VLMRM/CartPole-v1", reward=lambda frames: frames.mean((1, 2, 3)))


class PlainMetadata(gym.Wrapper):
    """Hides what is inside from those who read its metadata."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (lambda: gym.wrappers.vector.RecordEpisodeStatistics(make([Counting] * 2)), "VLMRewardVectorEnv"),
        (lambda: AsyncVectorEnv([scored_cart_pole] * 2), "VLMReward"),
        (lambda: [lambda: PlainMetadata(scored_cart_pole())], "VLMReward"),
    ],
    ids=["wrapped vector", "AsyncVectorEnv", "hidden"],
)
def test_scored_environments_are_refused(made, kind):
    envs = made()
    with pytest.raises(ValueError, match=rf"`env` must not be scored already\. Received .* has a {kind} in it"):
        make(envs)
    if not isinstance(envs, list):
        envs.close()


def test_wrappers_that_drop_states_and_frames_of_differing_size_are_refused():
    class DropsInfos(VectorWrapper):
        def step(self, actions):
            return *self.env.step(actions)[:4], {}

    envs = make(DropsInfos(SyncVectorEnv([Counting] * 2)))
    envs.reset(seed=0)
    with pytest.raises(RuntimeError, match=r"Environments \[0 1\] were stepped, but states came from \[\]"):
        envs.step(np.zeros(2, dtype=int))
    envs = make([lambda: Counting(), lambda: Counting(size=3)])
    with pytest.raises(ValueError, match=r"`env` must have environments that render frames of one size. Received"):
        envs.reset(seed=0)


def test_copies_and_calls_after_close_are_refused():
    envs = make([Counting])
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"VLMRewardVectorEnv cannot be copied or pickled: .*pass on a function"):
            duplicate(envs)
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
