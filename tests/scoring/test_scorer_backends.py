"""One contract for every scorer backend: in this process, worker processes, Ray actors."""

import contextlib
import os
import re
import signal
import time
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from backends import check_scored, frames_of, leaving_nothing_behind, request_of, start, vector, workers
from conftest import RAY
from counting_env import Counting, take
from reward_models import (
    ExitingReward,
    HangingFrames,
    HangingLoad,
    HangingReward,
    MortalReward,
    PixelReward,
    SlowReward,
    TwoFeatures,
    WarningReward,
)

import vlmrm_gym
from vlmrm_gym.scoring import WorkerDied
from vlmrm_gym.scoring.local import LocalScorer
from vlmrm_gym.scoring.requests import transition_keys


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request):
    """Contract 8, after every test here."""
    if {"backend", "worker_backend"} & set(request.fixturenames) and "ray" in request.node.name:
        request.getfixturevalue("ray_cluster")  # before looking at what there is
    with leaving_nothing_behind():
        yield


def test_requests_of_any_size_are_scored_in_order(backend, rng):
    """And features and frames of the same states."""
    queue = start(TwoFeatures, 3, backend=backend)
    numbers = [rng.integers(0, 2**24, size) for size in (1, 30, 7, 8, 2, 1, 55)]
    requests = [request_of(own) for own in numbers]
    for request in requests:
        queue.submit(request)
    for request, own in zip(requests, numbers, strict=True):
        check_scored(request, own)
        assert request.features.dtype == np.float32
        assert request.states is None
    assert queue.pending_bytes == 0
    numbers = np.arange(30)
    features = queue.features(frames_of(numbers))
    assert features.dtype == np.float32
    np.testing.assert_array_equal(features, np.stack([numbers, np.ones(30)], axis=1)[:, None])
    np.testing.assert_array_equal(queue.frames(frames_of(numbers))[:, 0], frames_of(numbers).rows)
    assert queue.frames(frames_of(numbers), size=(4, 6)).shape == (30, 1, 4, 6, 3)
    with pytest.raises(ValueError, match=r"`camera` is for MuJoCo environments .* Leave it out"):
        queue.frames(frames_of(numbers), views="side")
    queue.close()


@pytest.mark.parametrize("backend", [RAY], indirect=True)
def test_rewards_of_the_bundled_model_are_those_of_this_process(backend):
    """Those of worker processes too: see test_vector.py."""
    rewards = []
    for options in ({}, {"num_workers": 2, "backend": backend}):
        envs = gym.make_vec("VLMRM/CartPole-v1", num_envs=3, episode_length=7, **options)
        envs.reset(seed=0)
        envs.action_space.seed(0)
        for _ in range(7):
            infos = envs.step(envs.action_space.sample())[4]
        envs.close()
        rewards.append(np.stack(infos["vlm_rewards"]))
    np.testing.assert_allclose(rewards[0], rewards[1], rtol=0, atol=1e-5)


def test_every_transition_gets_its_reward_once(backend):
    bases = [Counting([9, 4], first=100), Counting([5])]
    envs = vector(bases, backend, overlap=True)
    envs.reset(seed=0)
    received = [[], []]
    for infos in (*(envs.step(np.zeros(2, dtype=int))[4] for _ in range(40)), envs.flush()):
        take(received, infos)
    assert received == [base.expected_rewards for base in bases]
    envs.close()
    envs = vector(bases, backend, scoring="step")
    envs.reset(seed=0)
    rewards = np.stack([envs.step(np.zeros(2, dtype=int))[1] for _ in range(6)], axis=1)
    assert rewards.tolist() == [base.expected_rewards[-6:] for base in bases]
    envs.close()


def test_keys_travel_with_their_states(monkeypatch):
    """However requests are batched, a scorer sees each state with the key of its transition."""
    seen = {}
    send = LocalScorer.send

    def record(self, batch):
        seen.update(zip(batch.keys.tolist(), batch.states.rows[:, 0, 0, 0].tolist(), strict=True))
        send(self, batch)

    monkeypatch.setattr(LocalScorer, "send", record)
    bases = [Counting([9, 4], first=100), Counting([5])]
    envs = vector(bases, "local", reward_kwargs={"batch_size": 4})
    envs.reset(seed=0)
    for _ in range(20):
        envs.step(np.zeros(2, dtype=int))
    envs.flush()
    envs.close()
    for number, base in enumerate(bases):
        keys = transition_keys(number, np.arange(20)).tolist()
        assert [seen.pop(key) for key in keys] == base.expected_rewards
    assert not seen


def test_an_exception_arrives_with_its_traceback_and_loses_nothing(tmp_path, backend):
    cure = tmp_path / "cure"
    bases = [Counting([9], first=100), Counting([9], first=0)]
    envs = vector(
        bases,
        backend,
        "FaultyReward",
        num_workers=1,
        reward_kwargs={"prompt": str(cure)},
        overlap=backend != "process",
    )
    envs.reset(seed=0)
    received, nans = [[], []], np.zeros(2, dtype=int)

    def step():
        _, rewards, _, _, infos = envs.step(np.zeros(2, dtype=int))
        nans[:] += np.isnan(rewards)
        take(received, infos)

    def steps():
        for _ in range(30):
            step()
            time.sleep(0.01)

    with pytest.raises(ArithmeticError, match="seven cannot be scored") as raised:
        steps()
    if backend != "local":
        assert "in encode\n    raise ArithmeticError" in raised.value.__notes__[0]
    with pytest.raises(ArithmeticError):
        envs.flush()
    step()
    assert len(received[0]) >= 9, "the failure of one does not keep others' rewards"
    cure.touch()
    with contextlib.suppress(ArithmeticError):  # of the step
        take(received, envs.flush())
    take(received, envs.flush())
    assert received == [bases[0].expected_rewards, bases[1].expected_rewards]
    assert nans.tolist() == [len(own) for own in received], "what was raised is not what a step has returned"
    envs.close()


def test_three_deaths_over_the_same_states_raise_the_end_of_the_log(tmp_path, worker_backend):
    cure = tmp_path / "cure"
    queue = start(MortalReward, 2, backend=worker_backend, prompt=cure)
    deadly, harmless = request_of([1, 7, 2]), request_of([3, 4])
    queue.submit(deadly)
    queue.submit(harmless)
    error = deadly.error()
    assert isinstance(error, WorkerDied)
    assert re.search(r"The end of its log:[^\0]*seven is too much for me", str(error))
    assert Path(f"{cure}.deaths").read_text() == "xxx"
    assert harmless.error() is None
    cure.touch()
    queue.submit(deadly)  # its states are still there
    check_scored(deadly, [1, 7, 2])
    queue.close()


def test_a_stopped_worker_is_replaced(worker_backend):
    """SIGSTOP: it neither ends nor answers."""
    queue = start(SlowReward, 2, backend=worker_backend, worker_timeouts={"draw": 1.5, "encode": 1.5})
    requests = [request_of(range(100 * i, 100 * i + 40)) for i in range(4)]
    for request in requests:
        queue.submit(request)
    time.sleep(0.3)
    stopped = min(workers())
    os.kill(stopped, signal.SIGSTOP)
    for i, request in enumerate(requests):
        check_scored(request, range(100 * i, 100 * i + 40))
    queue.close()


def test_a_worker_that_hangs_while_it_draws_is_replaced(tmp_path, worker_backend):
    mark = tmp_path / "mark"
    queue = start(
        PixelReward,
        1,
        backend=worker_backend,
        renderer=HangingFrames(mark),
        worker_timeouts={"draw": 1.5, "encode": 1.5},
    )
    request = request_of(range(24))
    queue.submit(request)
    check_scored(request, range(24))
    assert mark.exists()
    queue.close()


def test_work_that_hangs_three_workers_and_loading_that_hangs_are_errors():
    queue = start(HangingReward, 1, worker_timeouts={"encode": 0.7})
    request = request_of([7])
    queue.submit(request)
    error = request.error()
    assert isinstance(error, WorkerDied)
    assert "did not respond for 0.7 seconds (encoding frames)" in str(error)
    assert "seven takes for ever" in str(error)
    queue.close()
    with pytest.raises(WorkerDied, match=r'for 1 seconds \(loading the model\).*worker_timeouts=\{"load": seconds\}'):
        start(HangingLoad, 1, worker_timeouts={"load": 1})


def test_closing_in_the_middle_of_work(backend):
    queue = start(SlowReward, 2, backend=backend)
    requests = [request_of(range(400)) for _ in range(3)]
    for request in requests:
        queue.submit(request)
    begun = time.perf_counter()
    queue.close()
    assert time.perf_counter() - begun < 5
    assert isinstance(requests[-1].error(), RuntimeError)
    with pytest.raises(RuntimeError, match="Scoring has ended"):
        queue.submit(request_of([1]))


def test_environments_that_nobody_closes_stop_their_workers(worker_backend):
    before = workers()
    envs = vector([Counting()], worker_backend, "PixelReward", num_workers=1)
    assert len(workers() - before) == 1
    del envs


def test_bad_prompts_and_a_model_that_exits_arrive_as_errors():
    with pytest.raises(ValueError, match="`prompt` must have at most 77 tokens") as raised:
        vlmrm_gym.VLMRewardVectorEnv([Counting], "robot " * 100, model="tiny", num_workers=1)
    assert "In a scoring worker" in raised.value.__notes__[0]
    for num_workers in (0, 1):
        queue = start(ExitingReward, num_workers)
        request = request_of([1])
        queue.submit(request)
        assert isinstance(request.error(), RuntimeError)
        assert "SystemExit" in str(request.error())
        queue.close()


def test_warnings_of_loading_and_of_scoring_arrive_once(worker_backend):
    """From two workers, each of which warns in several batches, in the process of the user, by its own filters."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        queue = start(WarningReward, 2, backend=worker_backend)
        queue.features(frames_of([7] * 40))
    queue.close()
    assert [str(one.message) for one in caught] == ["made with care", "seven is odd"]
