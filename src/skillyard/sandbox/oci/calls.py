"""The filters of system calls of a container, from the tables of the native sandboxes.

The engine installs a profile: the list of calls, and those rules about arguments that its format can say. The agent
installs the exact filters on itself before it starts anything; they hold for all its programs.
"""

from __future__ import annotations

import base64
import errno
import json
from functools import cache
from typing import Any

from skillyard.sandbox.native.linux import seccomp
from skillyard.sandbox.native.linux.call_arguments import AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, NEW_NAMESPACES
from skillyard.sandbox.native.linux.seccomp import ABSENT, ALLOWED, AUDIT_ARCH

ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
"""Names that engines give processors, and ours."""
_SCMP = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_BY_FIRST = {
    "socket": (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK),
    "socketpair": (AF_UNIX,),
    "personality": (0, 0xFFFFFFFF),
}
_LOWER_HALF = 0xFFFFFFFF


@cache
def profile(architecture: str) -> str:
    """Returns the profile as an engine takes it: JSON of the runtime specification."""
    plain = {name for group in ALLOWED for name in group.calls} | {"seccomp"}
    plain -= {*_BY_FIRST, "clone"}
    by_argument = [
        _allow({name}, _masked(_LOWER_HALF, value)) for name, values in _BY_FIRST.items() for value in values
    ]
    rules = [
        _allow(plain),
        *by_argument,
        _allow({"clone"}, _masked(NEW_NAMESPACES, 0)),
        {"names": sorted(ABSENT), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
    ]
    return json.dumps(
        {
            "defaultAction": "SCMP_ACT_ERRNO",
            "defaultErrnoRet": errno.EPERM,
            "architectures": [_SCMP[architecture]],
            "syscalls": rules,
        }
    )


@cache
def exact(architecture: str) -> tuple[str, ...]:
    """Returns the filters that the agent installs, in their order, each in base64."""
    assert architecture in AUDIT_ARCH
    filters = (seccomp.large_filter(architecture), seccomp.closing_filter(architecture))
    return tuple(base64.b64encode(seccomp.assemble(one)).decode() for one in filters)


def _allow(names: set[str], *conditions: dict[str, Any]) -> dict[str, Any]:
    rule: dict[str, Any] = {"names": sorted(names), "action": "SCMP_ACT_ALLOW"}
    if conditions:
        rule["args"] = list(conditions)
    return rule


def _masked(mask: int, value: int) -> dict[str, Any]:
    """Returns the condition that the first argument has the bits ``value`` below ``mask``."""
    return {"index": 0, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
