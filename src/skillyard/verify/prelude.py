"""What every program of the battery starts with, and how a body becomes a program."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from functools import cache

from skillyard.sandbox.native.linux.syscall_numbers import numbers

ARMED = "armed"
"""Printed when a program has shown that it works and is about to attack: what ends it then is containment."""

ARCHES = ("x86_64", "aarch64")

OWN_KERNEL = 'OWN_KERNEL = (os.uname().release, os.uname().version) == ("4.4.0", "#1 SMP Sun Jan 10 15:06:54 PST 2016")'
"""Source: whether another kernel than the host's answers."""

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
"""What a user-space kernel says of itself wherever it runs. No kernel of that age could build the native walls, so that
this never holds there. Ids, devices and settings are that kernel's own then, and what is got of the host is judged."""
away = []


def elsewhere(why):
    """What was tried cannot tell anything here."""
    tried.append("elsewhere")
    away.append(why)


def listed(path):
    """Names in a directory; none where it may not be listed."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def text_of(path):
    """What a file says; nothing where it may not be read."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def name_of(number):
    return errno.errorcode.get(number, str(number))


def must_fail(what, function, *args, refused=REFUSED):
    """An attempt that a wall must stop: what it gives instead was got."""
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
    """An attempt to change something: got when it is changed, or cannot be looked at after the call said yes."""
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
    """What the record of this server's runs says of a protection: kernel, supervised or missing."""
    return LEVELS.get(wall, "kernel")


def may_bound():
    """Whether who made this sandbox could shrink its bounding set (capabilities(7), CAP_SETPCAP): as root, or in a user
    namespace. Else all other sets are empty and no_new_privs is set, so that nothing can come from it."""
    return level("user_namespace") != "missing" or level("own_uid") != "missing" or libc.prctl(39, 0, 0, 0, 0) != 1


def must_be(what, expected, found):
    """What is seen when the walls stand; anything else was got."""
    tried.append(what)
    if found != expected:
        got.append(f"{what}: {found!r}"[:160])


def must_hold(what, held):
    """A statement that is true while the walls stand."""
    tried.append(what)
    if not held:
        got.append(what)


def works(what, function, *args):
    """A harmless neighbour of the attack: without it, nothing was shown. Its result."""
    try:
        result = function(*args)
    except Exception as error:
        wrong.append(f"{what}: {type(error).__name__}: {error}"[:160])
        return None
    if result is False:
        wrong.append(f"{what}: false")
    return result


def raw(number, *args):
    """The result of a system call, or the name of its error."""
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    return result if result >= 0 else name_of(ctypes.get_errno())


def call_refused(name, *args, refused=("EPERM", "ENOSYS")):
    """A system call that must not reach the kernel's own code: any other answer than no is one too many.
    It is made in a child, which it may harm."""
    if name not in NR:
        return
    tried.append(name)
    answer = in_child(lambda: str(raw(NR[name], *args)))
    if answer not in refused and answer != "signal SIGSYS":
        got.append(f"{name}: {answer}")


def in_child(function):
    """What a child process that calls it says, or the signal that ended it."""
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


def armed():
    print("armed", flush=True)


def evidence(**more):
    return {"got": got[:12], "tried": len(tried), "wrong": wrong[:8], "elsewhere": "; ".join(away), **more}
'''


@cache
def _table(names: tuple[str, ...]) -> str:
    """Source that defines ``NR``: the numbers of these calls on the processor that it runs on."""
    tables = {arch: numbers(arch) for arch in ARCHES}
    chosen = {arch: {name: table[name] for name in names if name in table} for arch, table in tables.items()}
    return f"NR = {chosen!r}[platform.machine()]\n"


def program(body: str, levels: Mapping[str, str]) -> str:
    """Source whose ``main(args)`` has ``body``, which ends with the evidence unless it returns by itself. ``levels``
    are those of the protections that are not the kernel's."""
    body = textwrap.dedent(body).strip("\n")
    names = tuple(sorted(set(re.findall(r"call_refused\(\s*\"(\w+)\"|NR\[\"(\w+)\"\]", body))))
    flat = tuple(sorted({name for pair in names for name in pair if name}))
    head = f"{_PRELUDE}\n{_table(flat)}\nLEVELS = {dict(levels)!r}\n"
    return f"{head}\ndef main(args):\n{textwrap.indent(body, '    ')}\n    return evidence()\n"
