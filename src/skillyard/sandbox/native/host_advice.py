"""From what surrounds us to one line that an operator can follow: why no sandbox can be made, and what would let it."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from skillyard.sandbox.native import host_checks
from skillyard.sandbox.native.host_checks import Surroundings

PROFILE = "deploy/docker-seccomp.json"
"""In skillyard's source tree: a container's filter of system calls, with what the walls need."""

_BOUND_S = 10.0
_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from skillyard.sandbox.native.host_checks import main; main()"
_NOT_THE_FILTER = {host_checks.PROC, host_checks.NAME}
"""The first has a cause of its own, and without the second sandboxes can be."""
_IDS = "SETUID", "SETGID", "SETFCAP"
_POD = (
    "in a pod: hostUsers: false, and in the container's securityContext procMount: Unmasked and a seccompProfile of "
    f"type Localhost with {PROFILE}"
)
_WEAKER = (
    "or, without any option, the weaker isolation 'landlock', which has no network: "
    "SKILLYARD_POLICY__ISOLATION=landlock (docs/containers.md)"
)
_UNIT_FILTER = (
    "a filter of system calls was laid on this process; in a systemd unit: RestrictNamespaces=no, and @mount and "
    "@sandbox in SystemCallFilter="
)
_UNIT_PROC = (
    "parts of /proc are covered, so that no fresh one can be mounted; in a systemd unit: ProtectKernelTunables=no, "
    "ProtectKernelLogs=no, ProtectProc=default"
)
_UNIT_IDS = (
    "let it map ids: CAP_SETUID, CAP_SETGID and CAP_SETFCAP in a unit's CapabilityBoundingSet=, or an ordinary User="
)
_SHORT = {
    os.strerror(errno.EMFILE): "raise the limit of open files (ulimit -n; a unit's LimitNOFILE=; --ulimit nofile=)",
    "server's own hard limit": "raise it where the server is started (LimitNPROC= of a unit), or lower limits.pids",
    os.strerror(errno.EAGAIN): "allow more processes (ulimit -u; a unit's TasksMax=; --pids-limit), or end some",
    os.strerror(errno.ENOMEM): "give the host or the container more memory",
    os.strerror(errno.ENOSPC): "free some space on the disk of the data directory",
    os.strerror(errno.EROFS): "name a data directory that can be written, with --data-dir or SKILLYARD_DATA_DIR",
    os.strerror(errno.ENOSYS): "Linux 5.14 or newer is needed, with user namespaces and filters of system calls",
}


async def look() -> Surroundings | None:
    """What is there, found by a process of its own; None when even that cannot be started."""
    package_root = str(Path(__file__).resolve().parents[3])
    executable = getattr(sys, "_base_executable", "") or sys.executable
    try:
        process = await asyncio.create_subprocess_exec(
            *(executable, "-I", "-S", "-B", "-c", _CODE, package_root),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"LANG": "C.UTF-8"},
            cwd="/",
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(_BOUND_S):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    return host_checks.read(out)


def mend(found: Surroundings | None, why: str) -> str:
    """What to change, all of it in one line; ``why`` is what was said when it failed. Empty when nothing that we know
    of stands in the way."""
    parts: list[str] = []
    if found is not None:
        parts = [*_of_the_host(found), *(_of_the_container(found) if found.engine else _of_the_service(found))]
    return "; ".join(parts or [text for said, text in _SHORT.items() if said in why])


def filter_mend(found: Surroundings) -> str:
    """How to get a call that a filter keeps from us."""
    return f"{_start(found)} --security-opt seccomp={PROFILE}" if found.engine else _UNIT_FILTER


def _of_the_host(found: Surroundings) -> Iterator[str]:
    if not found.refused:
        return
    where = "on the host of this container" if found.engine else "as root"
    for name in found.switches:
        yield f"{where}: sysctl -w {name}={host_checks.SWITCHES[name][1]}"
    if found.chrooted and "namespaces" in found.refused:
        yield "start it outside of a chroot: the kernel makes no user namespaces in one"


def _of_the_container(found: Surroundings) -> Iterator[str]:
    options = list(_options(found))
    if options:
        yield "this is a container: " + " ".join([_start(found), *options])
    if found.engine == "kubernetes" and options:
        yield _POD
    if options and found.landlock_stands and not found.unmapped_root:
        yield _WEAKER


def _start(found: Surroundings) -> str:
    return {"docker": "docker run", "podman": "podman run"}.get(found.engine, "start it with")


def _options(found: Surroundings) -> Iterator[str]:
    closed = "namespaces" in found.refused
    if found.filtered and (closed or set(found.refused) - _NOT_THE_FILTER) and not found.switches:
        yield f"--security-opt seccomp={PROFILE}"
    if found.masked and (closed or host_checks.PROC in found.refused):
        yield "--security-opt " + ("unmask=/proc/*" if found.engine == "podman" else "systempaths=unconfined")
    if found.confined and found.refused:
        yield "--security-opt apparmor=unconfined"
    if found.unmapped_root:
        yield "--user 10001:10001 (or, to stay root, " + " ".join(f"--cap-add {name}" for name in _IDS) + ")"


def _of_the_service(found: Surroundings) -> Iterator[str]:
    if found.filtered and found.refused and not found.switches:
        yield _UNIT_FILTER
    if found.masked and host_checks.PROC in found.refused:
        yield _UNIT_PROC
    if found.unmapped_root:
        yield _UNIT_IDS
    if found.confined and found.refused:
        yield f"the AppArmor profile '{found.confined}' is enforced on this process: let it make user namespaces"
