"""The beginning of every program of the attacks, and the making of a program from a body."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from functools import cache

from skillyard.sandbox.native.linux.syscall_numbers import numbers

ARMED = "armed"
"""Printed when a program has shown that it works and is about to attack: what ends it then is containment."""

ARCHES = ("x86_64", "aarch64")

_PRELUDE = r'''
import ctypes, errno, mmap, os, platform, signal, socket, struct, sys, time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.mmap.restype = ctypes.c_void_p
got, tried, wrong = [], [], []
REFUSED = ("EACCES", "EPERM", "EROFS", "ENOENT", "ENOSYS", "EXDEV", "ESRCH", "ENODEV", "ENXIO", "EOPNOTSUPP",
           "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "ENETUNREACH", "ECONNREFUSED", "EHOSTUNREACH",
           "EPFNOSUPPORT", "EADDRNOTAVAIL", "ENOTSUP")
"""Errors that say no. Any other one says that the attempt itself was wrong."""


OWN_KERNEL = (os.uname().release, os.uname().version) == ("4.4.0", "#1 SMP Sun Jan 10 15:06:54 PST 2016")
"""Whether a user-space kernel answers, which says this of itself wherever it runs. No kernel of that age could build
the native walls, so that this never holds there. Ids, devices and settings are that kernel's own then."""
away = []


def elsewhere(why):
    """Says that the attempt cannot tell anything here."""
    tried.append("elsewhere")
    away.append(why)


def listed(path):
    """Returns the names in a directory; none where it may not be listed."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def text_of(path):
    """Returns a file's text; nothing where it may not be read."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def name_of(number):
    return errno.errorcode.get(number, str(number))


def must_fail(what, function, *args, refused=REFUSED):
    """Makes an attempt that a wall must stop, and takes its result as got."""
    tried.append(what)
    try:
        result = function(*args)
    except OSError as error:
        if name_of(error.errno) not in refused:
            wrong.append(f"{what}: {name_of(error.errno)}")
        return None
    got.append(f"{what}: {result!r}"[:160])
    return result


def must_not_become(what, change, changed):
    """Tries to change something: it was got when it is changed, or cannot be looked at after the call said yes."""
    tried.append(what)
    try:
        change()
    except OSError as error:
        if name_of(error.errno) not in REFUSED:
            wrong.append(f"{what}: {name_of(error.errno)}")
        return
    try:
        done = changed()
    except FileNotFoundError:
        done = False  # a call that changes nothing says yes to what is not there, too
    except OSError:
        done = True
    if done:
        got.append(what)


def level(wall):
    """Returns the level of a protection as runs claim it: kernel, supervised or missing."""
    return LEVELS.get(wall, "kernel")


def may_bound():
    """Returns whether the sandbox's maker could shrink its bounding set (capabilities(7), CAP_SETPCAP): as root, or in
    a user namespace. Else all other sets are empty and no_new_privs is set, so that nothing can come from it."""
    if "bounding_set" in LEVELS:  # who made it says so
        return LEVELS["bounding_set"] != "missing"
    return level("user_namespace") != "missing" or level("own_uid") != "missing" or libc.prctl(39, 0, 0, 0, 0) != 1


def must_be(what, expected, found):
    """Compares with what is seen while the walls stand; anything else was got."""
    tried.append(what)
    if found != expected:
        got.append(f"{what}: {found!r}"[:160])


def must_hold(what, held):
    """Checks a statement that is true while the walls stand."""
    tried.append(what)
    if not held:
        got.append(what)


def works(what, function, *args):
    """Does a harmless neighbour of the attack, without which nothing was shown. Returns its result."""
    try:
        result = function(*args)
    except Exception as error:
        wrong.append(f"{what}: {type(error).__name__}: {error}"[:160])
        return None
    if result is False:
        wrong.append(f"{what}: false")
    return result


def raw(number, *args):
    """Returns the result of a system call, or the name of its error."""
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    return result if result >= 0 else name_of(ctypes.get_errno())


def call_refused(name, *args, refused=("EPERM", "ENOSYS")):
    """Makes a system call, in a child that it may harm. It must not reach the kernel's own code: any other answer than
    a refusal was got."""
    if name not in NR:
        return
    tried.append(name)
    answer = in_child(lambda: str(raw(NR[name], *args)))
    if answer not in refused and answer != "signal SIGSYS":
        got.append(f"{name}: {answer}")


def in_child(function):
    """Returns the text of what ``function`` returns in a child process, or the signal that ended the child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = function()
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writing, str(told).encode())
        os._exit(0)
    os.close(writing)
    told = b""
    while piece := os.read(reading, 4096):
        told += piece
    os.close(reading)
    status = os.waitpid(child, 0)[1]
    return f"signal {signal.Signals(status & 127).name}" if status & 127 else told.decode()


def in_memory(wanted):
    """Returns whether its own readable memory holds ``wanted``, a pattern of bytes; the first match."""
    import re
    for line in open("/proc/self/maps"):
        span, rights, *rest = line.split()
        low, high = (int(part, 16) for part in span.split("-"))
        if "r" in rights and "[v" not in line and high - low < 64 << 20:
            if found := re.search(wanted, ctypes.string_at(low, high - low)):
                return found[0].decode()
    return ""


def armed():
    print("armed", flush=True)


def evidence(**more):
    return {"got": got[:12], "tried": len(tried), "wrong": wrong[:8], "elsewhere": "; ".join(away),
            "own_kernel": OWN_KERNEL, **more}
'''


@cache
def _table(names: tuple[str, ...]) -> str:
    """Returns source that defines ``NR``: the numbers of these calls on its processor."""
    tables = {arch: numbers(arch) for arch in ARCHES}
    chosen = {arch: {name: table[name] for name in names if name in table} for arch, table in tables.items()}
    return f"NR = {chosen!r}[platform.machine()]\n"


def program(body: str, levels: Mapping[str, str]) -> str:
    """Returns source whose ``main(args)`` has ``body``, and returns the evidence after it.

    ``levels`` are those of the protections that are not the kernel's.
    """
    body = textwrap.dedent(body).strip("\n")
    names = tuple(sorted(set(re.findall(r"call_refused\(\s*\"(\w+)\"|NR\[\"(\w+)\"\]", body))))
    flat = tuple(sorted({name for pair in names for name in pair if name}))
    told = {name: str(level) for name, level in levels.items()}
    head = f"{_PRELUDE}\n{_table(flat)}\nLEVELS = {told!r}\n"
    return f"{head}\ndef main(args):\n{textwrap.indent(body, '    ')}\n    return evidence()\n"


_MOVED = """
def main(args):
    import os, re, sys
    root = os.getcwd().removesuffix("/workspace")
    text = re.sub(r"(?<![\\w.])(?=/(?:workspace|tmp|dev/shm|skills|blobs)\\b)", lambda found: root, {SOURCE})
    exec(compile(text, "program", "exec"), globals())
    return globals()["main"](args)
"""


def moved(source: str) -> str:
    """Returns a program with the paths of an isolation that has no mounts.

    It finds /workspace, /tmp, /dev/shm, /skills and /blobs below the directory that holds its workspace.
    """
    return _MOVED.replace("{SOURCE}", repr(source))
