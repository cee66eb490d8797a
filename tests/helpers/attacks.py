"""What programs try that they must not: the body of a function by what it tries, and the error that it ends as."""

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
