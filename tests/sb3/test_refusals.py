"""What would learn from missing, changed or other rewards is refused: algorithms, buffers, wrappers, bad input."""

import copy
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from counting_env import Counting, CountingDict
from sb3_contrib import ARS, TRPO, RecurrentPPO
from sb3_helpers import StopAfter, off_policy, on_policy
from stable_baselines3 import A2C, DQN, PPO, HerReplayBuffer
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

import vlmrm_gym
from vlmrm_gym.data.replay import ReplayBuffer
from vlmrm_gym.sb3 import (
    DeferredReplayBuffer,
    DeferredRolloutBuffer,
    RewardHandle,
    ScoredReturnCallback,
    VLMVecEnv,
    make_vec_env,
)

CARTPOLE = "VLMRM/CartPole-v1"
REPLAY = r"Received a {}\. Pass replay_buffer_class=DeferredReplayBuffer; or make .*scoring=\"step\""
ROLLOUT = (
    r"Received a {}\. Pass rollout_buffer_class=DeferredRolloutBuffer, "
    r'rollout_buffer_kwargs=\{{"rewards": RewardHandle\(envs\)\}}; or make .* scoring="step"'
)


def stacked(envs):
    return VecNormalize(VecFrameStack(envs, 2), norm_reward=False)


@pytest.mark.parametrize(
    ("algorithm", "buffer", "remedy", "options"),
    [
        (DQN, "ReplayBuffer", REPLAY, {"wrap": stacked}),
        (TRPO, "RolloutBuffer", ROLLOUT, {}),
        (A2C, "DictRolloutBuffer", ROLLOUT, {"make": CountingDict}),
        (DQN, "NStepReplayBuffer", REPLAY, {"n_steps": 3}),
        (RecurrentPPO, "RecurrentRolloutBuffer", ROLLOUT, {"policy": "MlpLstmPolicy"}),
    ],
)
def test_buffers_that_do_not_wait_are_refused(algorithm, buffer, remedy, options, counting):
    """They would learn from NaN. The message names the buffer that waits, where there is one."""
    make, wrap = options.pop("make", Counting), options.pop("wrap", lambda envs: envs)
    policy = options.pop("policy", "MlpPolicy" if make is Counting else "MultiInputPolicy")
    model = algorithm(policy, wrap(counting([[7], [7]], make)[0]), device="cpu", **options)
    with pytest.raises(
        ValueError,
        match=f"`env` gives NaN rewards until an episode has been scored, so .* {algorithm.__name__} .*"
        + remedy.format(buffer),
    ):
        model.learn(100)


def test_plain_buffers_are_refused_after_another_algorithm_has_trained_on_the_environments(counting):
    """A rollout buffer leaves placeholders instead of NaN for the rest of its rollout."""
    envs, _ = counting([[7], [7]])
    on_policy(A2C, envs, 50).learn(100, callback=StopAfter(0))
    with pytest.raises(ValueError, match="Pass replay_buffer_class=DeferredReplayBuffer"):
        DQN("MlpPolicy", envs, device="cpu").learn(20)


@pytest.mark.filterwarnings("ignore:`n_steps=3` is ignored")  # Stable-Baselines3, for every custom replay buffer
def test_n_step_returns_work_with_step_scoring_and_a_plain_buffer_only(counting):
    envs, bases = counting([[7], [7]], scoring="step")
    model = DQN("MlpPolicy", envs, n_steps=3, train_freq=1, learning_starts=80, device="cpu").learn(100)
    np.testing.assert_array_equal(model.replay_buffer.rewards[:50].T, [base.expected_rewards for base in bases])
    message = r"`n_steps` must be 1 with DeferredReplayBuffer.*Received 3\. Leave it out"
    with pytest.raises(ValueError, match=message):
        off_policy(DQN, envs, n_steps=3).learn(20)
    with pytest.raises(ValueError, match=message):
        off_policy(DQN, envs, replay_buffer_kwargs={"n_steps": 3, "gamma": 0.9})


def test_normalized_rewards_are_refused(counting):
    inner, _ = counting([[7], [7]])
    envs, message = VecNormalize(inner), "`norm_reward` of VecNormalize must be False"
    with pytest.raises(ValueError, match=message):
        off_policy(DQN, envs).learn(40)
    with pytest.raises(ValueError, match=message):
        RewardHandle(envs)
    with pytest.raises(ValueError, match=message):  # the handle of the inner environments does not hide it
        on_policy(PPO, envs, 10, handle=RewardHandle(inner)).learn(40)
    envs.norm_reward = False
    assert RewardHandle(envs).envs is inner
    off_policy(DQN, envs, learning_starts=20).learn(40)


def test_wrappers_that_change_rewards_are_refused():
    """In both modes; those under the scored environments change the task reward only."""
    rule = "`envs` must have no wrapper that changes rewards: they are read in the infos"
    halved = partial(gym.wrappers.vector.TransformReward, func=lambda rewards: rewards / 2)
    for scoring in ("episode", "step"):
        envs = gym.make_vec(CARTPOLE, 2, autoreset_mode="SameStep", scoring=scoring)
        for door in (VLMVecEnv, partial(ReplayBuffer, 100)):
            with pytest.raises(ValueError, match=rule):
                door(halved(envs))
        envs.close()
    base = halved(gym.vector.SyncVectorEnv([Counting] * 2, autoreset_mode="SameStep"))
    VLMVecEnv(vlmrm_gym.VLMRewardVectorEnv(base, reward="reward_models:PixelReward")).close()


class Goals(CountingDict):
    """`Counting` with goals, as hindsight needs them, and another reward for them."""

    def __init__(self, lengths=(5,), first=0):
        super().__init__(lengths, first)
        box = gym.spaces.Box(0, 2**24, (1,), np.float32)
        self.observation_space = gym.spaces.Dict(observation=box, achieved_goal=box, desired_goal=box)

    @staticmethod
    def dictionary(observation):
        return dict.fromkeys(("observation", "achieved_goal", "desired_goal"), observation.astype(np.float32))

    def compute_reward(self, achieved, desired, info):
        return -np.ones(len(achieved))


def test_hindsight_which_has_another_reward_is_refused(counting):
    options = {"replay_buffer_class": HerReplayBuffer, "learning_starts": 12, "buffer_size": 100, "device": "cpu"}
    for scoring in ("episode", "step"):
        with pytest.raises(ValueError, match="`replay_buffer_class` must not be HerReplayBuffer"):
            DQN("MultiInputPolicy", counting([[5]], Goals, scoring=scoring)[0], **options).learn(40)
    env = vlmrm_gym.VLMReward(Goals(), reward=lambda frames: frames.mean((1, 2, 3)))
    with pytest.raises(NotImplementedError, match="cannot be computed from goals"):
        DQN("MultiInputPolicy", env, **options).learn(40)
    env.close()


def test_evaluations_on_the_environments_of_a_rollout_are_refused(counting):
    """At its end, where rewards would be matched with other transitions, and within it."""
    for eval_freq, error in ((10, RuntimeError), (5, ValueError)):
        envs, _ = counting([[7], [7]])
        callback = EvalCallback(envs, eval_freq=eval_freq, n_eval_episodes=2)
        with pytest.raises(error, match="EvalCallback"):
            on_policy(PPO, envs, 10).learn(40, callback=callback)


def test_bad_environments(counting):
    for call, error, message in [
        (lambda: make_vec_env("CartPole-v1"), TypeError, "`prompt` must be a text or a list of texts. Received None"),
        (lambda: VLMVecEnv(Counting()), ValueError, "`envs` must be a vector environment"),
        (
            lambda: VLMVecEnv(vlmrm_gym.VLMRewardVectorEnv([Counting], reward="reward_models:PixelReward")),
            ValueError,
            "`envs` must reset in the same step",
        ),
    ]:
        with pytest.raises(error, match=message):
            call()
    envs, _ = counting([[7], [7]])
    envs.set_options([{"goal": 1}, {"goal": 2}])
    with pytest.raises(ValueError, match="`options` must be the same for all environments"):
        envs.reset()


def observing(space):
    env = Counting()
    env.observation_space = space
    return env


def test_bad_input(counting):
    envs, _ = counting([[50]])
    with pytest.raises(RuntimeError, match=r"nothing to sample: \d+ transitions wait .*`learning_starts`"):
        off_policy(DQN, envs, learning_starts=5).learn(20)
    with pytest.raises(ValueError, match="`optimize_memory_usage` must be False with DeferredReplayBuffer"):
        off_policy(DQN, envs, optimize_memory_usage=True)
    with pytest.raises(RuntimeError, match="DeferredReplayBuffer needs the infos of a VLMVecEnv"):
        off_policy(DQN, "CartPole-v1").learn(20)
    with pytest.raises(RuntimeError, match=r"`callback` must not be a ScoredReturnCallback .*Received one with ARS"):
        ARS("LinearPolicy", envs, n_delta=2, device="cpu").learn(30, callback=ScoredReturnCallback())
    with pytest.raises(NotImplementedError, match="no methods to call"):
        envs.env_method("reset")
    with pytest.raises(TypeError, match="VLMRewardVectorEnv cannot be copied or pickled"):
        copy.deepcopy(envs)
    plain = VLMVecEnv(gym.vector.SyncVectorEnv([Counting], autoreset_mode="SameStep"))
    plain.reset()
    with pytest.raises(RuntimeError, match="`envs` must be a VLMRewardVectorEnv"):
        plain.step(np.zeros(1, dtype=int))
    nested = gym.spaces.Dict(a=gym.spaces.Dict(b=envs.observation_space))
    for space in (nested, gym.spaces.Tuple([envs.observation_space])):
        rule = r"space` must be a box or discrete space, or a Dict of such. Received .*FlattenObservation"
        with pytest.raises(ValueError, match="`observation_" + rule):
            DeferredReplayBuffer(10, space, envs.action_space)
        with pytest.raises(ValueError, match="`observation_" + rule):
            DeferredRolloutBuffer(10, space, envs.action_space, rewards=RewardHandle(envs))
        with pytest.raises(ValueError, match="`envs.single_observation_" + rule):
            VLMVecEnv(gym.vector.SyncVectorEnv([lambda s=space: observing(s)], autoreset_mode="SameStep"))
    with pytest.raises(ValueError, match="`envs` must be a VLMVecEnv"):
        RewardHandle(envs.envs)
    with pytest.raises(ValueError, match=r"`rewards` must be a RewardHandle.* Received None"):
        A2C("MlpPolicy", envs, rollout_buffer_class=DeferredRolloutBuffer, device="cpu")
    model = on_policy(A2C, envs, 5)
    model.set_env(counting([[50]])[0])
    with pytest.raises(ValueError, match="`rewards` must be a RewardHandle of the environments that the algorithm"):
        model.learn(20)
