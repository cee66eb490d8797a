"""Isolates a process: takes away all that a program does not need. Linux only; imports nothing of this package.

A seccomp filter (https://docs.kernel.org/userspace-api/seccomp_filter.html) lists the system calls that are left:
they tell the time, sleep, get memory up to a limit, read one pipe and write another. It binds root, and also what calls
the kernel through ctypes. Calls that look for files, as imports do, fail; all others kill the process.
"""

import ctypes
import os
import signal
import struct
import sys

if sys.platform != "win32":  # there, programs run only if they are trusted
    import resource

_ALLOWED = """
brk 12 214, munmap 11 215, mremap 25 216, mprotect 10 226, futex 202 98, membarrier 324 283, rseq 334 293,
restart_syscall 219 128, rt_sigreturn 15 139, sched_yield 24 124, sched_getaffinity 204 123, getcpu 309 168,
clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101, gettimeofday 96 169,
time 201 -, times 100 153, getrusage 98 165, getrandom 318 278, getpid 39 172, gettid 186 178, exit 60 93,
exit_group 231 94
"""
"""Calls that are left: the name of each, and its numbers on x86_64 and on aarch64; -: there is none."""
_REFUSED = """
open 2 -, openat 257 56, openat2 437 437, stat 4 -, lstat 6 -, fstat 5 80, newfstatat 262 79, statx 332 291,
access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78, getcwd 79 17,
chdir 80 49, mkdir 83 -, mkdirat 258 34, unlink 87 -, unlinkat 263 35, getdents64 217 61, ioctl 16 29,
fcntl 72 25, lseek 8 62, close 3 57, sysinfo 99 179, uname 63 160, rt_sigaction 13 134,
rt_sigprocmask 14 135, sigaltstack 131 132
"""
"""Calls that fail with EPERM: Python and honest programs may try them, and name what they looked for."""
_CHECKED = {
    "read": ((0, 63), 0, 0xFFFFFFFF, 0),
    "write": ((1, 64), 0, 0xFFFFFFFF, 1),
    "mmap": ((9, 222), 3, 0x20, 0x20),
    "madvise": ((28, 233), 2, 0xFFFFFFE0, 0),
}
"""Calls that are allowed by an argument: numbers, which argument, a mask, and its value under the mask. Pipe 0 is read,
pipe 1 is written, memory is of no file (MAP_ANONYMOUS), and none of it is declared broken (MADV_HWPOISON, for root)."""

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""By machine: the column of the tables, and the kernel's number of the architecture."""

_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06  # instructions of classic BPF
_KILL, _EPERM, _ALLOW = 0x80000000, 0x00050001, 0x7FFF0000
_SYSCALL, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000
"""Bit of the calls of x32, a second set of numbers of x86_64."""
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _SET_SECCOMP, _SET_NO_NEW_PRIVILEGES = 1, 4, 22, 38  # of prctl


def is_supported() -> bool:
    """Tell whether the tables know this machine. The kernel may still refuse."""
    return sys.platform == "linux" and sys.maxsize > 2**32 and os.uname().machine in ARCHITECTURES


def enter(memory: int) -> None:
    """Isolate this process for good: one thread, pipes 0 and 1, so many bytes of memory. An OSError if that fails."""
    for limit, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (value, value))
    _prctl(_SET_DUMPABLE, 0)
    _prctl(_SET_NO_NEW_PRIVILEGES, 1)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _filter())
    instructions = ctypes.create_string_buffer(code)
    listed = ctypes.create_string_buffer(struct.pack("HP", len(code) // 8, ctypes.addressof(instructions)))
    _prctl(_SET_SECCOMP, 2, ctypes.addressof(listed))


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread of `parent` that started it ends."""
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _filter() -> list[tuple[int, int, int, int]]:
    """The filter's instructions: (code, instructions to skip if true, if false, operand)."""
    column, architecture = ARCHITECTURES[os.uname().machine]
    code = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL)]
    code += [(_LOAD, 0, 0, _SYSCALL), (_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    for table, outcome in ((_ALLOWED, _ALLOW), (_REFUSED, _EPERM)):
        for call in table.split(","):
            if (number := call.split()[1 + column]) != "-":
                code += [(_EQUAL, 0, 1, int(number)), (_RETURN, 0, 0, outcome)]
    for numbers, argument, mask, value in _CHECKED.values():
        code += [(_EQUAL, 0, 5, numbers[column]), (_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (_AND, 0, 0, mask)]
        code += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    return [*code, (_RETURN, 0, 0, _KILL)]


def _prctl(option: int, *values: int) -> None:
    arguments = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if ctypes.CDLL(None, use_errno=True).prctl(option, *arguments):
        raise OSError(ctypes.get_errno(), f"prctl({option}): {os.strerror(ctypes.get_errno())}")
