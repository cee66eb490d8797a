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
from backends import children

from vlmrm_gym.programs import process
from vlmrm_gym.programs.process import IsolatedProgram
from vlmrm_gym.rewards.program_error import ProgramError

FRAMES = np.arange(4, dtype=np.uint8)[:, None, None, None] * np.ones((4, 6, 8, 3), dtype=np.uint8)
"""Four frames, whose values are their numbers."""
BRIGHT = "def reward(frame): return float(frame[0, 0, 0])"

PROGRAM = """
import array, ctypes, math, os, signal, sys, threading, time
import numpy as np

libc = ctypes.CDLL(None, use_errno=True)
libc.malloc.restype = ctypes.c_void_p
kept = []

class Small(float):
    __abs__ = lambda self: 0.0

def called(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def attack(frame):
{attack}

def reward(frame):
    if frame[0, 0, 0] == 2:
        attack(frame)
    return float(frame[0, 0, 0])
"""
FORBIDDEN, REFUSED = "system call that is forbidden", "PermissionError|Operation not permitted"
PIPE, MEMORY, SLOW = "wrote to the pipe", "memory that it must not", "did not return within 1 seconds"
ATTACKS = {
    "files": {
        "read a file": ("open(SECRET).read()", REFUSED),
        "read a file by ctypes": ("called(libc.open(SECRET.encode(), 0))", REFUSED),
        "read a file by a raw system call": ("called(libc.syscall(257, -100, SECRET.encode(), 0, 0))", REFUSED),
        "read a file by openat2": ("called(libc.syscall(437, -100, SECRET.encode(), bytes(24), 24))", REFUSED),
        "read a file by a handle": ("libc.syscall(303, -100, b'/', bytes(136), bytes(4), 0)", FORBIDDEN),
        "read its parent's memory": ("libc.process_vm_readv(os.getppid(), None, 0, None, 0, 0)", FORBIDDEN),
        "read another descriptor": ("called(libc.read(3, bytes(9), 8))", REFUSED),
        "map a descriptor": ("if libc.mmap(None, 4096, 1, 1, 0, 0) in (-1, 2**64 - 1): raise PermissionError", REFUSED),
        "list a folder": ("os.listdir('/')", REFUSED),
        "list a folder by ctypes": ("called(libc.syscall(217, 0, bytes(4096), 4096))", REFUSED),
        "look at a file": ("os.stat('/etc/passwd')", REFUSED),
        "watch a folder": ("libc.inotify_init()", FORBIDDEN),
        "write a file": ("open(WRITTEN, 'w').write('x')", REFUSED),
        "write a file by ctypes": ("called(libc.open(WRITTEN.encode(), 0o101, 0o600))", REFUSED),
        "create a file by ctypes": ("libc.creat(WRITTEN.encode(), 0o600)", FORBIDDEN),
        "truncate a file": ("libc.truncate(SECRET.encode(), 0)", FORBIDDEN),
        "delete a file": ("os.unlink(SECRET)", REFUSED),
        "rename a file": ("os.rename(SECRET, WRITTEN)", FORBIDDEN),
        "link a file": ("os.symlink(SECRET, WRITTEN)", FORBIDDEN),
        "change a mode": ("libc.chmod(SECRET.encode(), 0o777)", FORBIDDEN),
        "mount": ("libc.mount(b'/', b'/mnt', b'none', 4096, None)", FORBIDDEN),
        "fill the disk": ("file = open(WRITTEN, 'wb')\nwhile True: file.write(bytes(2**20))", REFUSED),
        "fill memory files": ("os.memfd_create('x')", FORBIDDEN),
    },
    "network": {
        "open an internet socket": ("libc.socket(2, 1, 0)", FORBIDDEN),
        "open a Unix socket": ("libc.socket(1, 1, 0)", FORBIDDEN),
        "open a netlink socket": ("libc.socket(16, 3, 0)", FORBIDDEN),
        "make a pair of sockets": ("libc.socketpair(1, 1, 0, bytes(8))", FORBIDDEN),
        "connect": ("libc.connect(0, bytes(16), 16)", FORBIDDEN),
        "use io_uring": ("libc.syscall(425, 1, bytes(120))", FORBIDDEN),
    },
    "processes": {
        "fork without end": ("while True: os.fork()", FORBIDDEN),
        "fork by ctypes": ("while True: libc.fork()", FORBIDDEN),
        "vfork": ("libc.syscall(58)", FORBIDDEN),
        "execute a command": ("os.execv('/bin/true', ['true'])", FORBIDDEN),
        "execute a command by system": ("os.system('true')", FORBIDDEN),
        "keep a thread": ("threading.Thread(target=time.sleep, args=(100,), daemon=True).start()", FORBIDDEN),
        "clone by a raw system call": ("libc.syscall(56, 0x100, 0, 0, 0, 0)", FORBIDDEN),
    },
    "signals and limits": {
        "kill its parent": ("os.kill(os.getppid(), signal.SIGTERM)", FORBIDDEN),
        "kill its parent by ctypes": ("libc.kill(os.getppid(), 9)", FORBIDDEN),
        "signal its parent's threads": ("libc.syscall(234, os.getppid(), os.getppid(), 9)", FORBIDDEN),
        "queue a signal": ("libc.syscall(129, os.getppid(), 9, bytes(128))", FORBIDDEN),
        "trace its parent": ("libc.ptrace(16, os.getppid(), 0, 0)", FORBIDDEN),
        "be told later": ("signal.setitimer(signal.ITIMER_REAL, 1)", FORBIDDEN),
        "handle signals": ("signal.signal(signal.SIGXCPU, signal.SIG_IGN)", REFUSED),
        "outlive its parent": ("libc.prctl(1, 0, 0, 0, 0)", FORBIDDEN),
        "raise its limits": ("libc.setrlimit(9, array.array('Q', [2**62, 2**62]).tobytes())", FORBIDDEN),
        "take another user": ("libc.setuid(1)", FORBIDDEN),
        "make a namespace": ("libc.unshare(0x10000000)", FORBIDDEN),
        "declare memory broken": ("called(libc.madvise(1, 4096, 100))", REFUSED),  # the kernel itself minds the address
    },
    "imports": {
        "load a library": ("ctypes.CDLL('libsqlite3.so.0')", "OSError: libsqlite3.so.0: cannot open shared object"),
        "load a library by its path": ("ctypes.CDLL(LIBRARY)", "OSError: .*: cannot open shared object"),
        "import a module": ("import sqlite3", "ModuleNotFoundError: No module named 'sqlite3'"),
        "use the calls of x32": ("libc.syscall(0x40000000 + 41, 2, 1, 0)", FORBIDDEN),
    },
    "memory and time": {
        "eat memory": ("while True: kept.append(np.empty(2**22))", "MemoryError"),
        "eat memory by ctypes": ("while libc.malloc(2**24): pass\nraise MemoryError", "MemoryError"),
        "never return": ("while True: pass", SLOW),
        "sleep": ("time.sleep(1_000)", SLOW),
        "sleep in C": ("libc.sleep(1_000)", SLOW),
    },
    "frames and pipes": {
        "write to the frames": ("frame[:] = 9", "ValueError: assignment destination is read-only"),
        "make the frames writable": ("frame.flags.writeable = True", "ValueError: cannot set WRITEABLE"),
        "write to the frames by ctypes": ("ctypes.memset(frame.ctypes.data, 9, frame.nbytes)", MEMORY),
        "unprotect the frames": ("called(libc.mprotect(ctypes.c_void_p(frame.ctypes.data & -4096), 4096, 3))", REFUSED),
        "print a gigabyte": ("for _ in range(2**10): print('x' * 2**20)", "must print at most"),
        "print a gigabyte by ctypes": ("while True: called(libc.write(2, b'x' * 2**20, 2**20))", REFUSED),
        "write a gigabyte to its pipe": ("while True: libc.write(1, b'x' * 2**20, 2**20)", PIPE),
        "read its pipe": ("os.read(0, 100)", SLOW),
        "forge an infinite answer": ("os.write(1, b'v\\x08\\0\\0\\0' + b'\\xff' * 8)", PIPE),
        "forge a long text": ("m = b'e\\0\\0\\x80\\0' + bytes(2**23)\nwhile m: m = m[os.write(1, m):]", r"\\x00\\x00"),
        "forge what float32 cannot hold": ("globals()['float'] = lambda value: Small(1e300)", PIPE),
        "forge a long record": ("os.write(1, b'm\\xff\\xff\\xff\\xff')", PIPE),
    },
    "endings": {
        "exit": ("sys.exit(0)", "SystemExit: 0"),
        "exit at once": ("os._exit(0)", "ended its process, with exit status 0"),
        "exit by ctypes": ("libc.exit(3)", "ended its process, with exit status 3"),
        "close its pipes": ("os.close(1)", REFUSED),
        "raise": ("raise ArithmeticError('a bad \\x1b[31m day')", r"ArithmeticError: a bad \\x1b\[31m day"),
        "raise what ends programs": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        "raise what has no text": ("class Odd(Exception):\n    def __str__(self): raise Odd\nraise Odd", "Odd"),
        "raise a text without end": ("raise ValueError('x' * 10**8)", "ValueError: xxx"),
        "recurse": ("attack(frame)", "RecursionError"),
        "crash": ("ctypes.string_at(0)", MEMORY),
        "abort": ("libc.abort()", FORBIDDEN + "|must not"),
    },
}


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
from vlmrm_gym.programs.process import IsolatedProgram
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
    monkeypatch.setattr(process, "START_SECONDS", 2.0)
    before = children()
    for source, error in FAILING.items():
        with subtests.test(source[:60]):
            with pytest.raises(ProgramError, match=error) as raised:
                IsolatedProgram(source, "bad.py")
            assert str(raised.value).startswith("The program bad.py cannot be used. ")
            assert len(str(raised.value)) < 1_000
            assert not re.search(r"[\x00-\x1f]", str(raised.value))
            assert raised.value.frame is None
            assert children() == before
