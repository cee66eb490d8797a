"""After an exception has left a call, `reset` is enough; what had been delivered stays right."""

import gc
import random
import signal
import time

import numpy as np
import pytest
from counting_env import Counting

import vlmrm_gym
from vlmrm_gym.data.episode_log import EpisodeLog

NOTHING = np.zeros(2, dtype=int)


@pytest.fixture
def alarm():
    """Raises an exception in the main thread after some seconds; 0 takes it back."""

    def expire(number, frame):
        raise KeyboardInterrupt

    usual = signal.signal(signal.SIGALRM, expire)
    gc.disable()  # Python drops exceptions of handlers that run during garbage collection callbacks
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.enable()
    signal.signal(signal.SIGALRM, usual)


def make(bases, reward="PixelReward", **options):
    return vlmrm_gym.VLMRewardVectorEnv(
        [lambda base=base: base for base in bases], reward=f"reward_models:{reward}", **options
    )


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("call", ["step", "flush", "reset"])
def test_an_exception_of_a_signals_handler_leaves_at_once_and_a_reset_is_enough(alarm, call, num_workers):
    bases = [Counting([40], first=100), Counting([40], first=0)]
    envs = make(bases, "SlowReward", num_workers=num_workers)
    envs.reset(seed=0)
    for _ in range(39):
        envs.step(NOTHING)
    begun = time.monotonic()
    alarm(0.3)
    with pytest.raises(KeyboardInterrupt):
        {"step": lambda: envs.step(NOTHING), "flush": envs.flush, "reset": envs.reset}[call]()
    assert time.monotonic() - begun < 1, "scoring takes 1.6 s"
    for refused in (lambda: envs.step(NOTHING), envs.flush, lambda: envs.reset(options={"reset_mask": NOTHING == 0})):
        with pytest.raises(RuntimeError, match="An exception has left an earlier call"):
            refused()
    before = [len(base.expected_rewards) for base in bases]
    envs.reset()
    step_index = envs.step(NOTHING)[4]["vlm_step_index"]
    assert (step_index >= before).all(), "no index is used twice"
    infos = envs.flush()
    np.testing.assert_array_equal(infos["vlm_reward_start"], step_index)
    for rewards, base, count in zip(infos["vlm_rewards"], bases, before, strict=True):
        np.testing.assert_array_equal(rewards, base.expected_rewards[count:])
    envs.close()


@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"scoring": "step"}], ids=str)
def test_exceptions_at_any_moment_change_no_reward_that_is_delivered(alarm, options):
    """In the environments, in between, while waiting: none is delivered twice, or for another transition."""
    bases = [Counting([3, 8]), Counting([5], first=10_000)]
    envs = make(bases, **options)
    expected, received, chance, raised = ({}, {}), ({}, {}), random.Random(0), 0

    def take(infos):
        for i in np.flatnonzero(infos.get("_vlm_rewards", [])):
            for index, reward in enumerate(infos["vlm_rewards"][i].tolist(), infos["vlm_reward_start"][i]):
                assert index > max(received[i], default=-1)
                received[i][index] = reward

    envs.reset(seed=0)
    begun = time.monotonic()
    for _ in range(100):
        take(envs.step(NOTHING)[4])
    take(envs.reset(seed=0)[1])
    a_step = (time.monotonic() - begun) / 100
    for number in range(15_000):
        counts = [len(own.keys() & rewards.keys()) for own, rewards in zip(expected, received, strict=True)]
        if raised > 250 and min(counts) > 200:
            break
        try:
            alarm(chance.uniform(1e-5, 4 * a_step))  # most steps pass, on machines of any speed
            infos = envs.flush() if number % 50 == 0 else envs.step(NOTHING)[4]
            alarm(0)
        except KeyboardInterrupt:
            alarm(0)
            raised += 1
            infos = envs.reset()[1]
        take(infos)
        for i in np.flatnonzero(infos.get("_vlm_step_index", [])):
            expected[i][infos["vlm_step_index"][i]] = bases[i].count
    else:
        raise AssertionError("too few rewards or exceptions")
    take(envs.flush())
    for own, rewards in zip(expected, received, strict=True):
        assert {index: reward for index, reward in rewards.items() if own.get(index, reward) != reward} == {}
    envs.close()


class Stutters(Counting):
    """Reports a success that is no number, once."""

    def step(self, action):
        *results, info = super().step(action)
        return *results, {**info, "success": "?" if self.steps == 3 else 0.0}


def test_a_step_that_was_not_recorded_keeps_its_index():
    """The environments have made it: the next one has an index of its own, in the infos and in the log."""
    base, log = Stutters([5]), EpisodeLog(2**20)
    envs = make([base], episode_log=log)
    envs.reset(seed=0)
    indices = [envs.step(NOTHING[:1])[4]["vlm_step_index"][0] for _ in range(2)]
    with pytest.raises(ValueError, match="could not convert string"):
        envs.step(NOTHING[:1])
    envs.reset()
    for _ in range(5):
        infos = envs.step(NOTHING[:1])[4]
        indices.append(infos["vlm_step_index"][0])
    assert indices == [0, 1, 3, 4, 5, 6, 7]
    assert infos["vlm_reward_start"][0] == 3
    np.testing.assert_array_equal(infos["vlm_rewards"][0], base.expected_rewards[3:])
    assert (log.episodes[-1].start, log.episodes[-1].rewards.tolist()) == (3, base.expected_rewards[3:])
    envs.close()
