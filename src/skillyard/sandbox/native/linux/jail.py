"""The confinement of our own processes that read hostile data: no root, few files.

The gate keeps its open sockets, the network, and reading what name lookups and TLS need; a validator of schemas keeps
the socket that it has.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

from skillyard.sandbox.native.inside.walls import core_limit
from skillyard.sandbox.native.linux import kernel, landlock

_NETWORK = ("/etc", "/usr", "/lib", "/lib64", "/run/systemd/resolve", "/dev/urandom", "/dev/null")
"""Name lookups (nsswitch.conf(5) and its modules, resolv.conf(5)), certificates, services(5). Nothing to execute."""
_RESOLVER = "/etc/resolv.conf"
_NOBODY = 65534
_CAP_SETPCAP = 8


def enter(uid: int, read: tuple[str, ...] = (), *, tcp: bool = True) -> dict[str, Any]:
    """Confines this process for good; returns the walls that hold and those that are missing. ``uid`` is taken as root
    only; ``read`` are all the directories and files that stay readable; ``tcp`` false closes TCP where the kernel can.
    Returned are ``uid``, ``landlock`` (the version) and ``missing`` (the reasons)."""
    missing: list[str] = []
    opened = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in dict.fromkeys(read) if Path(path).exists()]
    if os.geteuid() == 0:
        missing += _leave_root(uid)
    kernel.drop_all_held()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    version = _confine(opened, tcp)
    if not version:
        missing.append("landlock: the kernel has none")
    core = core_limit()
    resource.setrlimit(resource.RLIMIT_CORE, (core, core))
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    return {"uid": os.geteuid(), "landlock": version, "missing": missing}


def _leave_root(uid: int) -> list[str]:
    """Becomes ``uid``, or nobody where that is not mapped, without any capability."""
    for wanted in (uid, _NOBODY):
        try:
            os.setgroups([])
            kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
            os.setresgid(wanted, wanted, wanted)
            os.setresuid(wanted, wanted, wanted)
        except OSError as error:
            why = f"uid {wanted}: {error.strerror}"
            continue
        try:
            kernel.hold_only(_CAP_SETPCAP)
            kernel.drop_capabilities()
        except OSError as error:
            return [f"the bounding set: {error.strerror}"]
        return [] if wanted == uid else [why]
    return [why]


def for_the_network() -> tuple[str, ...]:
    """Returns the paths that name lookups and TLS read; a later user may not even get there."""
    return (*_NETWORK, str(Path(os.path.realpath(_RESOLVER)).parent))


def _confine(opened: list[int], tcp: bool) -> int:
    """Landlock: reading beneath these, and nothing else with files."""
    version = landlock.abi()
    ruleset = landlock.create(version, tcp=tcp) if version else -1
    for fd in opened:
        if version:
            landlock.allow(ruleset, fd, landlock.READ_FILE | landlock.READ_DIR)
        os.close(fd)
    if version:
        landlock.enter(ruleset)
    return version
