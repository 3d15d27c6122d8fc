"""Landlock: a second wall for files, which holds where a mount or a mode is wrong."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Sequence

from skillyard.sandbox.native.linux import kernel

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11
MAKE_SOCK, MAKE_FIFO = 1 << 9, 1 << 10
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
SCOPE_ABSTRACT_UNIX, SCOPE_SIGNAL = 1 << 0, 1 << 1

NET_BIND_TCP, NET_CONNECT_TCP = 1 << 0, 1 << 1

READ = EXECUTE | READ_FILE | READ_DIR
_FOR_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
DEVICES = READ_FILE | WRITE_FILE | READ_DIR | TRUNCATE
TERMINALS = DEVICES | IOCTL_DEV
"""A terminal is of no use without its requests, of which the filter leaves the harmless ones."""

_HANDLED = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_RULE_PATH_BENEATH = 1
_CREATE_VERSION = 1


def abi() -> int:
    """The kernel's Landlock version, 0 where it has none."""
    try:
        return kernel.call(
            "landlock_create_ruleset",
            kernel.NR_LANDLOCK_CREATE_RULESET,
            None,
            ctypes.c_size_t(0),
            ctypes.c_uint(_CREATE_VERSION),
        )
    except OSError:
        return 0


def handled(version: int) -> int:
    """Every file system right that this version knows."""
    return next(_HANDLED[v] for v in sorted(_HANDLED, reverse=True) if v <= version)


def writable(version: int) -> int:
    return handled(version) & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV)


def jailed(version: int) -> int:
    """Returns the rights in a directory of the host: no pipes and sockets are made there."""
    return writable(version) & ~(MAKE_SOCK | MAKE_FIFO | EXECUTE)


def restrict(version: int, rules: Sequence[tuple[str, int]]) -> None:
    """Confine this thread and all it makes to ``rules``: (directory, rights beneath it)."""
    ruleset = create(version)
    for path, allowed in rules:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            allow(ruleset, fd, allowed & handled(version))
        finally:
            os.close(fd)
    enter(ruleset)


def create(version: int, *, tcp: bool = True) -> int:
    """Makes a ruleset that allows nothing with files yet; without ``tcp``, no TCP ports, either.

    TCP and a scope, which keeps signals and abstract sockets in the domain, need a version that has them.
    """
    return _create(attributes(version, tcp=tcp))


def attributes(version: int, *, tcp: bool = True) -> bytes:
    """Returns the attributes of such a ruleset."""
    net = 0 if tcp else NET_BIND_TCP | NET_CONNECT_TCP
    attr = struct.pack("QQQ", handled(version), net, SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL)
    return attr[: 24 if version >= 6 else 16 if version >= 4 else 8]


def scope() -> None:
    """Confines signals and abstract sockets alone to this thread and its descendants.

    Needs version 6. A domain that does not name REFER forbids it, whatever the others allow: so it is allowed here.
    """
    ruleset = _create(struct.pack("QQQ", REFER, 0, SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL))
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        allow(ruleset, root, REFER)
    finally:
        os.close(root)
    enter(ruleset)


def allow(ruleset: int, fd: int, rights: int) -> None:
    """``rights`` beneath the directory ``fd``, or to that very file."""
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        rights &= _FOR_FILES
    kernel.call(
        "landlock_add_rule",
        kernel.NR_LANDLOCK_ADD_RULE,
        ctypes.c_int(ruleset),
        ctypes.c_int(_RULE_PATH_BENEATH),
        struct.pack("=Qi", rights, fd),
        ctypes.c_uint(0),
    )


def enter(ruleset: int) -> None:
    """Confine this thread and all it makes, for good. The descriptor is closed."""
    kernel.call(
        "landlock_restrict_self",
        kernel.NR_LANDLOCK_RESTRICT_SELF,
        ctypes.c_int(ruleset),
        ctypes.c_uint(0),
    )
    os.close(ruleset)


def _create(attr: bytes) -> int:
    return kernel.call(
        "landlock_create_ruleset",
        kernel.NR_LANDLOCK_CREATE_RULESET,
        attr,
        ctypes.c_size_t(len(attr)),
        ctypes.c_uint(0),
    )
