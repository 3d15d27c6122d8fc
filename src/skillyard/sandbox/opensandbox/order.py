"""The order for a door: what it makes of a sandbox."""

from __future__ import annotations

import resource
import secrets
from typing import Any

from skillyard.domain.sandbox.spec import Owner, SandboxSpec
from skillyard.domain.work.limits import Limits
from skillyard.guest.command import START
from skillyard.sandbox.e2b.order import LEASE_S, name_of
from skillyard.sandbox.oci import calls, container

OVERHEAD_MB = 72
"""Memory of the server's daemon until it is ended, of the door, the agent and a supervisor."""
_UIDS = range(1 << 20, 1 << 31)


def memory(limits: Limits) -> int:
    """Returns the bytes of memory of a sandbox."""
    return (limits.memory_mb + OVERHEAD_MB) << 20


def order(spec: SandboxSpec, key: str) -> dict[str, Any]:
    """Returns the order for a sandbox.

    Its programs get a user id that no other sandbox is likely to have.
    """
    limits = spec.limits
    own = {
        resource.RLIMIT_NOFILE: container.FILES,
        resource.RLIMIT_NPROC: limits.pids,
    }
    agent = {
        "key": key,
        "env": {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/workspace", "LANG": "C.UTF-8"},
        "single": spec.single,
        "lease_s": LEASE_S if spec.owner is Owner.RUN else None,
        "timeout_ms": limits.timeout_ms,
        "limits": {**container.resources(limits), **{str(number): most for number, most in own.items()}},
    }
    packages = spec.environment.packages
    return {
        "agent": agent,
        "start": START,
        "uid": _UIDS[secrets.randbelow(len(_UIDS))],
        "filters": {machine: calls.exact(machine) for machine in ("x86_64", "aarch64")},
        "mounts": [[name_of(mount.source), mount.target, *mount.aliases] for mount in spec.mounts],
        "packages": "" if packages is None else name_of(packages),
    }
