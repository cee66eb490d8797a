"""Unresponsive workers are replaced; exceptions of signal handlers during scoring are not swallowed."""

import gc
import os
import random
import signal
import time

import gymnasium as gym
import numpy as np
import pytest
from backends import frames_of, request_for, start
from counting_env import Counting
from reward_models import HangingLoad, PixelReward, SlowReward
from test_scoring import nothing_is_left_behind, processes  # noqa: F401 (a fixture)
from vlmrm_gym.scoring.interrupts import defer_signals

import vlmrm_gym
from vlmrm_gym.rendering import States
from vlmrm_gym.scoring import Timeouts, WorkerDied

QUICK = Timeouts(draw=1.5, encode=1.5)


def check_scored(queue, numbers, *, width=1):
    """Submit frames that encode numbers, and check their rewards."""
    request = request_for(States(np.repeat(frames_of(numbers).rows, width, axis=2)))
    queue.submit(request)
    assert request.error() is None
    np.testing.assert_array_equal(request.values, numbers)


def test_a_worker_that_does_not_read_a_batch_larger_than_a_pipe_is_replaced():
    queue = start(PixelReward, 1, batch_size=200, max_pending_bytes=2**26, timeouts=QUICK)
    os.kill(*processes(), signal.SIGSTOP)
    check_scored(queue, range(200), width=10_000)
    queue.close()


def test_closing_does_not_wait_for_a_stopped_worker():
    queue = start(PixelReward, 1, batch_size=200, max_pending_bytes=2**26, timeouts=QUICK)
    os.kill(*processes(), signal.SIGSTOP)
    request = request_for(States(np.zeros((200, 100, 100, 3), dtype=np.uint8)))
    queue.submit(request)
    time.sleep(0.1)
    begun = time.monotonic()
    queue.close()
    assert time.monotonic() - begun < 1.5
    assert isinstance(request.error(), RuntimeError)


def test_a_slow_worker_that_makes_progress_is_not_replaced():
    """A batch takes three times the limit, each slice a third of it."""
    queue = start(SlowReward, 1, batch_size=225, timeouts=QUICK)
    before = processes()
    check_scored(queue, range(225))
    assert processes() == before
    queue.close()


def test_loading_that_hangs_is_an_error():
    with pytest.raises(WorkerDied, match=r'for 1 seconds \(loading the model\).*worker_timeouts=\{"load": seconds\}'):
        start(HangingLoad, 1, timeouts=Timeouts(load=1))


@pytest.mark.parametrize(
    "wrong", [3, {"encode": 0}, {"load": "1"}, {"draw": float("nan")}, {"score": 1}, {"load": True}]
)
def test_invalid_timeouts_are_refused(wrong):
    rule = "`worker_timeouts` must be a mapping of 'load', 'draw', 'encode', 'schedule' to seconds above 0 or None"
    with pytest.raises(ValueError, match=rule):
        vlmrm_gym.VLMRewardVectorEnv([Counting], "count", worker_timeouts=wrong)


def test_make_vec_accepts_worker_timeouts():
    envs = gym.make_vec("VLMRM/CartPole-v1", worker_timeouts={"load": None, "draw": 5}, episode_length=3)
    envs.close()


class Impatient(Exception):
    """An exception of the user's own."""


@pytest.fixture
def alarm():
    """Sets the handler of SIGALRM, and restores it."""
    usual = signal.getsignal(signal.SIGALRM)
    gc.disable()  # Python drops exceptions of handlers that run during garbage collection callbacks
    yield lambda handler: signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.enable()
    signal.signal(signal.SIGALRM, usual)


@pytest.mark.parametrize("exception", [TimeoutError, Impatient])
@pytest.mark.parametrize("call", ["step", "flush", "reset"])
def test_a_users_own_timeout_is_raised_at_once_and_loses_no_reward(alarm, exception, call):
    bases = [Counting([40], first=100), Counting([40], first=0)]
    envs = vlmrm_gym.VLMRewardVectorEnv([lambda base=base: base for base in bases], reward="reward_models:SlowReward")
    envs.reset(seed=0)
    for _ in range(39):
        envs.step(np.zeros(2, dtype=int))

    def expire(number, frame):
        raise exception

    alarm(expire)
    begun = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(exception):
        {"step": lambda: envs.step(np.zeros(2, dtype=int)), "flush": envs.flush, "reset": envs.reset}[call]()
    assert time.monotonic() - begun < 1, "scoring takes 1.6 s"
    infos = envs.flush()
    for rewards, base in zip(infos["vlm_rewards"], bases, strict=True):
        np.testing.assert_array_equal(rewards, base.expected_rewards)
    assert not envs.flush()["_vlm_rewards"].any()
    envs.close()


def is_between_environments(frame):
    """Whether a signal arrived in our own code, with no environment step still to be recorded."""
    while frame is not None:
        if frame.f_code.co_filename.endswith("vlmrm_gym/vector.py") and frame.f_code.co_name not in ("step", "reset"):
            return True
        if frame.f_code.co_name == "defer_signals" and frame.f_locals.get("deferring") is False:
            return True
        frame = frame.f_back
    return False


@pytest.mark.parametrize("overlap", [False, True])
def test_alarms_at_any_moment_neither_lose_nor_repeat_rewards(alarm, overlap):
    """Every transition that `step` returned gets its reward, without gaps."""
    bases = [Counting([3, 8]), Counting([5])]
    makers = [lambda base=base: base for base in bases]
    envs = vlmrm_gym.VLMRewardVectorEnv(makers, reward="reward_models:PixelReward", overlap=overlap)
    expected, received = ({}, {}), ([], [])
    chance = random.Random(0)
    raised = 0

    def expire(number, frame):
        if is_between_environments(frame):
            raise TimeoutError

    def take(infos):
        for i in np.flatnonzero(infos["_vlm_rewards"]):
            assert infos["vlm_reward_start"][i] == len(received[i])
            received[i].extend(infos["vlm_rewards"][i])

    alarm(expire)
    envs.reset(seed=0)
    for number in range(4_000):
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 6e-4))
        try:
            infos = envs.flush() if number % 50 == 0 else envs.step(np.zeros(2, dtype=int))[4]
        except TimeoutError:
            raised += 1
            continue
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        take(infos)
        for i in np.flatnonzero(infos.get("_vlm_step_index", [])):
            expected[i][infos["vlm_step_index"][i]] = bases[i].count
    take(envs.flush())
    assert raised > 100
    for rewards, of_transition in zip(received, expected, strict=True):
        assert of_transition.items() <= dict(enumerate(rewards)).items()
    envs.close()


def test_all_deferred_handlers_are_called_after_bookkeeping():
    """Even if the first one raises; the handlers are restored."""
    called, usual = [], {}

    def handle(number, frame):
        called.append(number)
        raise Impatient(number)

    def interrupted():
        with defer_signals():
            signal.raise_signal(signal.SIGUSR2)
            signal.raise_signal(signal.SIGUSR1)
            called.append("bookkeeping")

    def call_and_go_on():
        try:
            interrupted()
        finally:
            time.sleep(0)  # a bytecode boundary, where the other handler is called

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        usual[number] = signal.signal(number, handle)
    try:
        with pytest.raises(Impatient):
            call_and_go_on()
        assert called[0] == "bookkeeping"
        assert sorted(called[1:]) == sorted(usual)
        assert all(signal.getsignal(number) is handle for number in usual)
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
