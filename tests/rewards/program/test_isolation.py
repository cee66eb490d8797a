"""What an isolated program cannot do. Each attack ends as one error that names program and frame, and harms nothing."""

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from attacks import ATTACKS, FORBIDDEN, PIPE, PROGRAM
from backends import children

from vlmrm_gym.rewards.program import process
from vlmrm_gym.rewards.program.process import IsolatedProgram
from vlmrm_gym.rewards.program.spec import ProgramError

FRAMES = np.arange(4, dtype=np.uint8)[:, None, None, None] * np.ones((4, 6, 8, 3), dtype=np.uint8)
"""Four frames, whose values are their numbers."""
BRIGHT = "def reward(frame): return float(frame[0, 0, 0])"


@pytest.fixture(autouse=True)
def less_time(monkeypatch):
    monkeypatch.setattr(process, "SECONDS", 1.0)


@pytest.fixture
def places(tmp_path):
    """A file that must stay as it is, one that must not appear, and a library."""
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    library = next(Path(np.__file__).parent.rglob("_umath_tests*.so"))
    return {"SECRET": str(secret), "WRITTEN": str(tmp_path / "written"), "LIBRARY": str(library)}


@pytest.mark.parametrize("kind", ATTACKS)
def test_an_attack_ends_as_one_error_and_harms_nothing(kind, places, subtests):
    before, threads = children(), set(os.listdir("/proc/self/task"))
    constants = "\n".join(f"{name} = {value!r}" for name, value in places.items())
    for attack, (body, error) in ATTACKS[kind].items():
        program = IsolatedProgram(constants + PROGRAM.format(attack=textwrap.indent(body, "    ")), "evil.py")
        frames = FRAMES.copy()
        with subtests.test(attack):
            with pytest.raises(ProgramError, match=error) as raised:
                program.run(frames)
            assert str(raised.value).startswith("The program evil.py failed on frame 2 of 4. ")
            assert raised.value.frame == 2
            assert len(str(raised.value)) < 10_000
            assert "\x1b" not in str(raised.value)
            assert children() == before
            assert set(os.listdir("/proc/self/task")) <= threads
            assert Path(places["SECRET"]).read_text() == "a secret"
            assert not Path(places["WRITTEN"]).exists()
            np.testing.assert_array_equal(frames, FRAMES)


def test_it_starts_without_environment_arguments_and_descriptors(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    kept, other = socket.socketpair()
    os.set_inheritable(kept.fileno(), True)
    look = "assert not {'OPENAI_API_KEY', 'PATH', 'HOME'} & set(os.environ), os.environ\n    return len(os.environ)"
    program = IsolatedProgram(f"import ctypes, os\ndef reward(frame):\n    {look}", "clean.py")
    descriptors = {os.readlink(path) for path in Path(f"/proc/{program._process._child.pid}/fd").iterdir()}
    kinds = [name.partition(":")[0].partition("#")[0] for name in descriptors]
    # The frames, read-only; its log, which it cannot write any more; requests and answers.
    assert sorted(kinds) == ["/memfd", f"{tempfile.gettempdir()}/", "pipe", "pipe"]
    assert program.run(FRAMES)[0][0] <= 4
    program.close()
    kept.close()
    other.close()


START = """
import os, sys
from vlmrm_gym.rewards.program.process import IsolatedProgram
program = IsolatedProgram('def reward(frame): return 0', 'x.py')
print(program._process._child.pid, flush=True)
"""


def test_no_process_is_left_however_its_parent_ends():
    started = [
        subprocess.Popen([sys.executable, "-c", START + ending], stdout=subprocess.PIPE, text=True)
        for ending in ("os._exit(0)", "os.kill(os.getpid(), 9)", "sys.exit()", "program.close()")
    ]
    for parent in started:
        said, _ = parent.communicate(timeout=60)
        assert parent.returncode in (0, -signal.SIGKILL)
        until = time.monotonic() + 10
        while Path(f"/proc/{said.strip()}").exists():
            assert time.monotonic() < until
            time.sleep(0.05)


LIMIT = "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (50_000, 50_000))"
LOOK = """
import numpy as np
for count, less in ((2, True), (10_000, False)):
    program.run(np.zeros((count, 1, 1, 3), dtype=np.uint8))
    soft, hard = resource.prlimit(program._process._child.pid, resource.RLIMIT_CPU)
    assert hard == 50_000 and (soft < 100 if less else soft == 50_000), (soft, hard)
program.close()
"""


def test_the_limit_of_the_user_on_cpu_time_stays():
    ended = subprocess.run([sys.executable, "-c", LIMIT + START + LOOK], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def check_runs(bright):
    np.testing.assert_array_equal(bright.run(FRAMES)[0], [0, 1, 2, 3])
    bright.close()


def test_a_program_that_a_pipe_does_not_hold_is_read_as_the_process_starts(monkeypatch):
    """That takes as long as starting may take, and longer than a frame may."""
    monkeypatch.setattr(process, "SECONDS", 0.0)
    long = f"{BRIGHT}\n#{'x' * 2**18}"
    IsolatedProgram(long, "long.py").close()
    monkeypatch.setattr(process, "START_SECONDS", 0.0)
    with pytest.raises(ProgramError, match=r"long\.py cannot be used\. It does not read what it is given"):
        IsolatedProgram(long, "long.py")


def test_descriptors_may_be_many():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2_000)), hard))
    held = [open(os.devnull) for _ in range(1_024)]  # noqa: SIM115 (closed below)
    try:
        check_runs(IsolatedProgram(BRIGHT, "x.py"))
    finally:
        for file in held:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_after_an_error_the_program_runs_in_a_new_process():
    source = "calls = []\ndef reward(frame):\n    calls.append(0)\n    return float(frame[0, 0, 0]) / (len(calls) < 5)"
    others = children()
    program = IsolatedProgram(source, "x.py")
    before = children() - others
    for _ in range(2):
        with pytest.raises(ProgramError, match=r'failed on frame 2 of 4. It says: "Line 4: ZeroDivisionError'):
            program.run(FRAMES)
        np.testing.assert_array_equal(program.run(FRAMES[:2])[0], [0, 1])
        assert not children() & before
        program.close()


def test_ctrl_c_while_it_starts_again_leaves_no_process(monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    others = children()
    program = IsolatedProgram(BRIGHT, "x.py")
    program.close()
    monkeypatch.setattr(process._Process, "receive", interrupt)
    with pytest.raises(KeyboardInterrupt) as kept:  # as a shell keeps the traceback
        program.run(FRAMES)
    assert children() == others, kept


def test_a_process_that_has_died_is_replaced_and_one_whose_thread_has_ended():
    program = IsolatedProgram(BRIGHT, "x.py")
    program._process._child.kill()
    program._process._child.wait()
    made = []
    thread = threading.Thread(target=lambda: made.append(IsolatedProgram(BRIGHT, "x.py")))
    thread.start()
    thread.join()
    for one in (program, *made):
        check_runs(one)


FORGED = "import os, struct\ntext = {text!r}\nos.write(1, struct.pack('<cI', {kind!r}, len(text)) + text)\n"
FORGERIES = [
    (b"i", b"it is too old", PIPE),
    (b"b", b"", PIPE),
    (b"e", b'cannot be isolated. "Pass"\n\x1b[31misolate=False.', r"""says: "cannot be isolated. 'Pass' \\x1b\[31m"""),
    (b"r", b"\0".join(b"T%d" % i for i in range(20_000)), "It must define at most 100 sub-tasks"),
    (b"r", b"\x1b[31mred", "It must define at most 100 sub-tasks, whose names are identifiers"),
]
"""What a program says in the place of its process; whether it is isolated is said before its code runs."""
FAILING = {
    **{FORGED.format(kind=kind, text=text): error for kind, text, error in FORGERIES},
    "x = 1": "It must define a function reward.frame., or classes",
    "a = 1\nb = = 2": "Line 2: SyntaxError: invalid syntax",
    "\n\n1 / 0": "Line 3: ZeroDivisionError",
    "import torch": "Line 1: ModuleNotFoundError: No module named 'torch'. A program may import NumPy",
    "open('/etc/passwd')": "Line 1: PermissionError",
    "import os\nos._exit(0)": "It ended its process",
    "import os\nos.fork()": FORBIDDEN,
    "while True: pass": "did not return within 2 seconds",
    "(" * 10_000 + ")" * 10_000: "too many nested parentheses|MemoryError|must not",
}


def test_a_program_that_fails_before_the_first_frame(monkeypatch, subtests):
    before = children()
    for source, error in FAILING.items():
        monkeypatch.setattr(process, "START_SECONDS", 2.0 if source.startswith("while") else 60.0)
        with subtests.test(source[:60]):
            with pytest.raises(ProgramError, match=error) as raised:
                IsolatedProgram(source, "bad.py")
            assert str(raised.value).startswith("The program bad.py cannot be used. ")
            assert len(str(raised.value)) < 1_000
            assert not re.search(r"[\x00-\x1f]", str(raised.value))
            assert raised.value.frame is None
            assert children() == before
