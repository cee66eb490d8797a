"""VLMRewardVectorEnv: every transition gets its own reward exactly once, in every mode."""

import gymnasium as gym
import numpy as np
import pytest
from conftest import TASK_PROMPT
from counting_env import Counting, take
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper

import vlmrm_gym
from vlmrm_gym import CLIPReward
from vlmrm_gym.states import CaptureState
from vlmrm_gym.tasks import TASKS


def make(env, prompt=None, **kwargs):
    """Make scored environments: by `CLIPReward` with a prompt, else by the number that the first pixel encodes."""
    if prompt is None:
        reward_kwargs = {"batch_size": kwargs.pop("batch_size", None)}
        kwargs = {"reward": "reward_models:PixelReward", "reward_kwargs": reward_kwargs, **kwargs}
    return vlmrm_gym.VLMRewardVectorEnv(env, prompt, **kwargs)


def zeros(envs):
    return np.zeros(envs.num_envs, dtype=int)


def test_with_overlap_an_episode_is_scored_before_the_next_one_ends_and_pending_states_are_bounded():
    """A learner waits for at most one episode per environment, even if scoring is slow."""
    slow, received = {"reward": "reward_models:SlowReward", "overlap": True}, [[]]
    envs = make([lambda: Counting([5])], autoreset_mode="SameStep", **slow)
    envs.reset(seed=0)
    for step in range(1, 16):
        take(received, envs.step(zeros(envs))[4])
        assert len(received[0]) >= 5 * (step // 5 - 1)
    envs.close()
    envs = make([lambda: Counting([200])] * 2, max_pending_bytes=200, **slow)  # 12 bytes a frame
    envs.reset(seed=0)
    for _ in range(40):
        envs.step(zeros(envs))
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
        *((task, "NextStep") for task in {task.env: task for task in TASKS}.values()),
        *((task, "SameStep") for task in TASKS if task.id in ("VLMRM/CartPole-v1", "VLMRM/Humanoid-kneel-v0")),
    ],
    ids=lambda one: getattr(one, "id", one),
)
def test_make_vec_matches_make(task, mode):
    """Contracts 3 and 9, for every environment class: equal observations, rewards within 1e-5."""
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


def test_how_rewards_are_scored_never_changes_their_value():
    """Contract 3."""

    def rewards(**kwargs):
        options, received = {"episode_length": 8, "textured": False, **kwargs}, [[], []]
        envs = gym.make_vec("VLMRM/Humanoid-stand-v0", num_envs=2, **options)
        envs.reset(seed=0)
        for actions in actions_of(envs, 2, 8):
            _, now, _, _, infos = envs.step(actions)
            assert np.isnan(now).all() == envs.defers_rewards
            take(received, infos)
        take(received, envs.flush())
        envs.close()
        return received

    expected = rewards()
    assert np.shape(expected) == (2, 8)
    overlap = {"overlap": True, "batch_size": 3}
    for how in (overlap, {**overlap, "batch_size": 5, "num_workers": 2}, {"scoring": "step"}):
        np.testing.assert_allclose(rewards(**how), expected, atol=1e-5, err_msg=str(how))


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
    envs = gym.make_vec("VLMRM/Humanoid-stand-v0", num_envs=2, episode_length=20)
    envs.reset(seed=0)
    actions = actions_of(envs, 2, 1)[0]
    for _ in range(19):
        envs.step(actions)
    assert envs.pending_bytes <= 256 * 2 * 19
    assert envs.step(actions)[4]["_vlm_rewards"].all()
    assert envs.pending_bytes == 0
    envs.close()


def first_episode(envs, steps):
    """The first rewards of environment 0 within some steps of action 0."""
    envs.reset(seed=0)
    for _ in range(steps):
        infos = envs.step(zeros(envs))[4]
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
        made = [lambda: gym.make("Humanoid-v5", render_mode="rgb_array", max_episode_steps=1, width=96, height=96)]
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
    bases, received = [Counting([10]), Counting([10], first=500, fails_at=4)], [[], []]
    envs = make([lambda base=base: base for base in bases])
    envs.reset(seed=0)
    for _ in range(3):
        take(received, envs.step(zeros(envs))[4])
    with pytest.raises(ZeroDivisionError, match="the environment's own bug"):
        envs.step(zeros(envs))
    with pytest.raises(RuntimeError, match="An exception has left an earlier call"):
        envs.step(zeros(envs))
    take(received, envs.flush())
    assert received == [bases[0].expected_rewards[:3], bases[1].expected_rewards]
    take(received, envs.reset()[1])
    envs.step(zeros(envs))
    infos = envs.flush()
    take(received, infos)
    assert [own[3:] for own in received] == [bases[0].expected_rewards[4:], bases[1].expected_rewards[3:]]
    assert infos["vlm_episode_index"].tolist() == [1, 1]
    envs.close()


def test_spec_and_metadata():
    envs = gym.make_vec("VLMRM/Humanoid-stand-v0", num_envs=3, textured=False)
    assert envs.spec is not None
    assert envs.spec.id == "VLMRM/Humanoid-stand-v0"
    assert (envs.num_envs, envs.render_mode, envs.closed) == (3, "rgb_array", False)
    again = gym.make_vec(envs.spec)
    assert again.num_envs == 3
    again.close(), envs.close()
