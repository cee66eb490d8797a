"""Scoring survives: killed workers, errors, Ctrl-C, full queues; and leaves nothing behind."""

import contextlib
import functools
import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from counting_env import Counting
from reward_models import DeadlyFrames, ExitingReward, FaultyReward, MortalReward, PixelReward, SlowReward

import vlmrm_gym
from vlmrm_gym.rendering.stored import StoredFrames
from vlmrm_gym.scoring.process import WorkerDied
from vlmrm_gym.scoring.queue import Request
from vlmrm_gym.scoring.start import start_scoring


def frames_of(numbers):
    """Frames whose pixel encodes a number each, see `PixelReward`: uint8 (n, 1, 1, 3)."""
    numbers = np.asarray(numbers)
    return np.stack([numbers % 256, numbers // 256 % 256, numbers // 65536], axis=-1)[:, None, None].astype(np.uint8)


def start(model, num_workers, *, prompt="", batch_size=8, max_pending_bytes=2**20):
    make_reward = functools.partial(model, prompt=str(prompt), batch_size=batch_size)
    return start_scoring(
        make_reward,
        lambda size_to_draw: StoredFrames(),
        num_workers=num_workers,
        devices=None,
        device="cpu",
        max_pending_bytes=max_pending_bytes,
    )


def processes():
    """The process IDs of the children of this process, zombies included."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            found |= {int(child) for child in (task / "children").read_text().split()}
    return found


def started(pid):
    """When a process began, in ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """Contract 8, after every test here."""
    before = processes(), set(threading.enumerate())
    yield
    gc.collect()
    assert processes() == before[0]
    assert set(threading.enumerate()) <= before[1]


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_work_is_cut_into_batches_whatever_the_requests(num_workers, rng):
    queue = start(PixelReward, num_workers)
    sizes = [1, 30, 7, 8, 2, 1, 55]
    numbers = [rng.integers(0, 2**24, size) for size in sizes]
    requests = [Request(frames_of(own)) for own in numbers]
    for request in requests:
        queue.submit(request)
    for request, own in zip(requests, numbers, strict=True):
        assert request.error() is None
        np.testing.assert_array_equal(request.rewards, own.astype(np.float32))
        assert request.states is None
    assert queue.pending_bytes == 0
    queue.close()


def test_workers_that_are_killed_are_replaced_and_every_reward_arrives_once(rng):
    """SIGKILL at any moment: while loading, drawing, scoring, answering or idle."""
    queue = start(SlowReward, 2, batch_size=4)
    requests = []

    def submit():
        first = 100 * len(requests)
        requests.append(Request(frames_of(range(first, first + 12))))
        queue.submit(requests[-1])

    begun = time.monotonic()
    submit()
    assert requests[0].error() is None
    loading = time.monotonic() - begun
    for number, oldest in enumerate((True, False, True, True, False)):
        if number in (2, 4):  # never three times over the same states, however slow the machine is
            assert requests[-1].error() is None
        until = time.monotonic() + loading * rng.uniform(0.8, 1.4)
        while time.monotonic() < until:
            submit()
            time.sleep(0.12)
        by_age = sorted(processes(), key=started)
        os.kill(by_age[0 if oldest else -1], signal.SIGKILL)
    for i, request in enumerate(requests):
        assert request.error() is None
        np.testing.assert_array_equal(request.rewards, np.arange(100 * i, 100 * i + 12))
    queue.close()


def test_three_deaths_over_the_same_work_raise_the_last_words(tmp_path):
    cure = tmp_path / "cure"
    queue = start(MortalReward, 2, prompt=cure)
    deadly, harmless = Request(frames_of([1, 7, 2])), Request(frames_of([3, 4]))
    queue.submit(deadly)
    queue.submit(harmless)
    error = deadly.error()
    assert isinstance(error, WorkerDied)
    assert re.search(r"ended with exit status 3\. Its last words: seven is too much for me", str(error))
    assert harmless.error() is None
    cure.touch()
    queue.submit(deadly)  # its states are still there
    assert deadly.error() is None
    np.testing.assert_array_equal(deadly.rewards, [1, 7, 2])
    queue.close()


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("overlap", [False, True])
def test_an_exception_arrives_with_its_traceback_and_loses_nothing(monkeypatch, tmp_path, num_workers, overlap):
    monkeypatch.setattr("vlmrm_gym.vector.CLIPReward", FaultyReward)
    cure = tmp_path / "cure"
    bases = [Counting([9], first=100), Counting([9], first=0)]
    envs = vlmrm_gym.VLMRewardVectorEnv(
        [lambda base=base: base for base in bases],
        prompt=str(cure),
        num_workers=num_workers,
        overlap=overlap,
        autoreset_mode="SameStep",
    )
    envs.reset(seed=0)
    told, nans = [[], []], np.zeros(2, dtype=int)

    def take(infos):
        for own, rewards in zip(told, infos["vlm_rewards"], strict=True):
            own.extend([] if rewards is None else rewards)

    def step():
        for _ in range(30):
            _, rewards, _, _, infos = envs.step(np.zeros(2, dtype=int))
            nans[:] += np.isnan(rewards)
            take(infos)
            time.sleep(0.01)

    with pytest.raises(ArithmeticError, match="seven cannot be scored") as raised:
        step()
    if num_workers:
        assert "in __call__\n    raise ArithmeticError" in raised.value.__notes__[0]
    with pytest.raises(ArithmeticError):
        envs.flush()
    _, rewards, _, _, infos = envs.step(np.zeros(2, dtype=int))
    nans += np.isnan(rewards)
    take(infos)
    assert len(told[0]) >= 9, "the failure of one does not keep others' rewards"
    cure.touch()
    with contextlib.suppress(ArithmeticError):  # of the step
        take(envs.flush())
    take(envs.flush())
    assert told == [bases[0].led_to, bases[1].led_to]
    assert nans.tolist() == [len(own) for own in told], "what was raised is not what a step has returned"
    envs.close()


def test_neither_shared_memory_nor_semaphores_are_used():
    """What is not made cannot be left behind."""
    queue = start(PixelReward, 2)
    request = Request(frames_of(range(100)))
    queue.submit(request)
    assert request.error() is None
    mapped = [Path(f"/proc/{pid}/maps").read_text() for pid in processes()]
    queue.close()
    assert len(mapped) == 2
    assert not any("/dev/shm/" in maps for maps in mapped)


def test_bad_prompts_arrive_from_workers_as_from_the_wrapper():
    with pytest.raises(ValueError, match="`alpha` must be a number from 0 to 1") as raised:
        vlmrm_gym.VLMRewardVectorEnv([Counting], "count", alpha=7, num_workers=2)
    assert "In a scoring worker" in raised.value.__notes__[0]


def test_warnings_arrive_from_workers_once():
    with pytest.warns(UserWarning, match="The bundled model does not know") as caught:
        vlmrm_gym.VLMRewardVectorEnv([Counting], "a bowl of soup on the moon", num_workers=2).close()
    assert len(caught) == 1


def test_a_queue_holds_no_more_than_it_may():
    queue = start(SlowReward, 0, max_pending_bytes=30)  # ten frames
    requests = [Request(frames_of(range(5))) for _ in range(6)]
    for request in requests:
        queue.submit(request)
        assert queue.pending_bytes <= 30
    huge = Request(frames_of(range(50)))
    queue.submit(huge)  # more than the limit by itself: alone
    assert all(request.done() for request in requests)
    assert huge.error() is None
    queue.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_closing_in_the_middle_of_work(num_workers):
    queue = start(SlowReward, num_workers)
    requests = [Request(frames_of(range(40))) for _ in range(3)]
    for request in requests:
        queue.submit(request)
    begun = time.perf_counter()
    queue.close()
    assert time.perf_counter() - begun < 2
    assert isinstance(requests[-1].error(), RuntimeError)
    with pytest.raises(RuntimeError, match="Scoring has ended"):
        queue.submit(Request(frames_of([1])))


def test_environments_that_nobody_closes_stop_their_workers(monkeypatch):
    monkeypatch.setattr("vlmrm_gym.vector.CLIPReward", PixelReward)
    before = processes()
    envs = vlmrm_gym.VLMRewardVectorEnv([Counting], "count", num_workers=1)
    assert len(processes() - before) == 1
    del envs


SCRIPT = """
import sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
import vlmrm_gym, vlmrm_gym.vector
from counting_env import Counting
from reward_models import SlowReward

vlmrm_gym.vector.CLIPReward = SlowReward
# Without the guard that multiprocessing's spawn would need.
envs = vlmrm_gym.VLMRewardVectorEnv(
    [lambda: Counting([2000])] * 2, "count", num_workers=int(sys.argv[3]), overlap=True, batch_size=500
)
envs.reset(seed=0)
for _ in range(1500):
    envs.step(np.zeros(2, dtype=int))
print("busy", flush=True)
if sys.argv[2] == "end":
    sys.exit()
envs.flush()
"""


@pytest.mark.parametrize(
    ("how", "num_workers"), [("end", 2), ("SIGINT", 0), ("SIGINT", 2), ("SIGTERM", 2), ("SIGKILL", 2)]
)
def test_however_a_program_ends_its_workers_end(how, num_workers, tmp_path):
    """Within 5 s, in the middle of a batch of 10 s."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    program = subprocess.Popen(
        [sys.executable, str(script), str(Path(__file__).parent), how, str(num_workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    try:
        assert program.stdout.readline() == "busy\n"
        children = {int(pid) for pid in Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()}
        begun = time.perf_counter()
        if how != "end":
            assert len(children) == num_workers
            os.kill(program.pid, getattr(signal, how))
        while any(Path(f"/proc/{child}").exists() for child in children):
            assert time.perf_counter() - begun < 5
            time.sleep(0.05)
        _, errors = program.communicate(timeout=20)
    finally:
        program.kill()
    assert ("KeyboardInterrupt" in errors) == (how == "SIGINT")
    if how == "end":
        assert program.returncode == 0, errors


TORCH_SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import vlmrm_gym, vlmrm_gym.vector
import numpy as np
from counting_env import Counting
from reward_models import TorchReward

vlmrm_gym.vector.CLIPReward = TorchReward
envs = vlmrm_gym.VLMRewardVectorEnv([lambda: Counting([400])], "count", overlap=True, batch_size=100)
envs.reset(seed=0)
for _ in range(300):
    envs.step(np.zeros(1, dtype=int))
print("busy", flush=True)
"""


def test_a_program_that_ends_in_the_middle_of_a_slow_batch_ends_well(tmp_path):
    """A thread that were inside torch when the interpreter ends would abort the program."""
    script = tmp_path / "script.py"
    script.write_text(TORCH_SCRIPT)
    ended = subprocess.run(
        [sys.executable, str(script), str(Path(__file__).parent)], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "busy\n"), ended.stderr


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_model_that_exits_is_an_error(num_workers):
    queue = start(ExitingReward, num_workers)
    request = Request(frames_of([1]))
    queue.submit(request)
    assert isinstance(request.error(), RuntimeError)
    assert "SystemExit" in str(request.error())
    queue.close()


def test_deaths_are_blamed_on_the_batch_that_was_deadly(tmp_path):
    """Not on the one before it, which was being encoded while the deadly one was being drawn."""
    queue = start_scoring(
        functools.partial(PixelReward, batch_size=2),
        lambda size_to_draw: DeadlyFrames(),
        num_workers=1,
        devices=None,
        device="cpu",
        max_pending_bytes=2**20,
    )
    requests = [Request(frames_of(numbers)) for numbers in ([1, 2], [7, 3], [4, 5])]
    for request in requests:
        queue.submit(request)
    assert [type(request.error()) for request in requests] == [type(None), WorkerDied, type(None)]
    queue.close()


def test_states_of_differing_shapes_are_an_error():
    queue = start(PixelReward, 0)
    requests = [Request(np.zeros((1, size, size, 3), dtype=np.uint8)) for size in (1, 2, 3)]
    for request in requests:
        queue.submit(request)
    assert all(request.error() is None or isinstance(request.error(), ValueError) for request in requests)
    queue.close()


def test_a_reward_model_that_cannot_be_pickled_starts_no_process():
    with pytest.raises((AttributeError, pickle.PicklingError)):
        start_scoring(
            lambda device: PixelReward(),
            lambda size_to_draw: StoredFrames(),
            num_workers=1,
            devices=None,
            device="cpu",
            max_pending_bytes=1,
        )


def test_a_fork_says_that_it_cannot_score():
    queue = start(PixelReward, 0)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            queue.submit(Request(frames_of([1])))
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"was forked from the one that scores" in os.read(reader, 1000)
    os.close(reader), os.close(writer)
    queue.close()
