"""Finds whether this host can hold sandboxes by Landlock, and the remedy where it cannot."""

from __future__ import annotations

import errno
import os

from skillyard.sandbox.native.grounds.landlock.inside.walls import SCOPES
from skillyard.sandbox.native.linux import kernel

NO_LANDLOCK = "Landlock is not to be had"
FILTERED = f"{NO_LANDLOCK}: a container's filter refuses its system calls"
ABSENT = f"{NO_LANDLOCK}: this kernel was built without it"
DISABLED = f"{NO_LANDLOCK}: it is not among the kernel's security modules"
SAME_USER = "sandboxes would be the server's own user, and Landlock here (version {}) cannot keep their signals from it"
ROOT = "foreign code would be root: user ids cannot be given here"

MENDS = {
    FILTERED: "use an engine whose default filter allows Landlock (Docker 23, containerd 1.6, podman 4 or newer), or "
    "--security-opt seccomp=deploy/docker-seccomp.json",
    ABSENT: "a kernel with CONFIG_SECURITY_LANDLOCK (Linux 5.13 or newer)",
    DISABLED: "add landlock to the lsm= boot option",
    ROOT: "leave the container CAP_SETUID and CAP_SETGID, or run it with --user",
}
SAME_USER_MEND = "a kernel of Linux 6.12 or newer, or run the server as root: each sandbox gets a user of its own"


def check() -> None:
    """Raises OSError with the reason where there is no Landlock."""
    try:
        kernel.call("landlock_create_ruleset", kernel.NR_LANDLOCK_CREATE_RULESET, None, 0, 1)
    except OSError as error:
        why = {errno.ENOSYS: ABSENT, errno.EOPNOTSUPP: DISABLED}.get(error.errno or 0, FILTERED)
        raise OSError(0, why) from None


def check_identity(*, own_ids: bool, version: int) -> None:
    """Raises OSError if foreign code would be root, or a user that can signal the server."""
    if own_ids:
        return
    if os.geteuid() == 0:
        raise OSError(0, ROOT)
    if version < SCOPES:
        raise OSError(0, SAME_USER.format(version))


def mend(why: str) -> str:
    """Returns the remedy for this reason; empty when there is none."""
    if why.find("cannot keep their signals") >= 0:
        return SAME_USER_MEND
    return next((text for reason, text in MENDS.items() if reason in why), "")
