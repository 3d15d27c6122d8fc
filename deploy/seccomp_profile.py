"""Write ``docker-seccomp.json``: the system calls of a container in which skillyard makes its sandboxes.

    python deploy/seccomp_profile.py

Docker's own profile refuses a container without CAP_SYS_ADMIN the calls that make namespaces and mounts. The kernel
lets every user make them in a user namespace of its own, and asks for the capability there. This profile opens them and
is closed elsewhere: what sandboxes and the building of their walls use
(:mod:`skillyard.sandbox.native.linux.seccomp`), and the few calls that are made beside them. Format: the runtime
specification of the Open Container Initiative, with Docker's ``archMap``; podman and containerd read it too.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

from skillyard.sandbox.native.linux.call_arguments import AF_INET, AF_INET6, AF_NETLINK, AF_UNIX
from skillyard.sandbox.native.linux.seccomp import ABSENT, ALLOWED, BUILDING

TARGET = Path(__file__).with_name("docker-seccomp.json")

KEEPER = {
    "setns": "hangs skills and blobs into a sandbox",
    "open_tree": "makes the mounts that sandboxes share",
    "move_mount": "puts them into the new root",
    "fsopen fsconfig fsmount": "hold the places of skills and blobs",
    "mount_setattr": "makes them read-only",
    "pivot_root": "leaves the container's root",
}
"""What the keeper does before a zygote's filter is there, or from outside."""

SERVER = {
    "chroot": "the engine and package installers",
    "inotify_init1 inotify_add_watch inotify_rm_watch": "programs beside the server; sandboxes have a filter of theirs",
    "setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr": "copies with their attributes",
    "shmget shmat shmctl shmdt": "programs beside the server; the sandboxes' filter lacks them",
    "splice tee": "copies while packages are installed",
}
"""What is done beside sandboxes in such a container."""

FAMILIES = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)
PERSONALITIES = (0, 0xFFFFFFFF)


def profile() -> dict[str, Any]:
    """The whole document."""
    plain = {name for group in ALLOWED for name in group.calls} | set(BUILDING)
    plain |= {name for names in (*KEEPER, *SERVER) for name in names.split()}
    by_argument = {"socket": FAMILIES, "socketpair": (AF_UNIX,), "personality": PERSONALITIES}
    absent = set(ABSENT) - plain
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": [
            _rule(plain - set(by_argument), "SCMP_ACT_ALLOW"),
            *(_rule({name}, "SCMP_ACT_ALLOW", value) for name, values in by_argument.items() for value in values),
            _rule(absent, "SCMP_ACT_ERRNO") | {"errnoRet": errno.ENOSYS},
        ],
    }


def _rule(names: set[str], action: str, first: int | None = None) -> dict[str, Any]:
    """``first``: only when the first argument is this."""
    rule: dict[str, Any] = {"names": sorted(names), "action": action}
    if first is not None:
        rule["args"] = [{"index": 0, "value": first, "op": "SCMP_CMP_EQ"}]
    return rule


def text() -> str:
    return json.dumps(profile(), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
