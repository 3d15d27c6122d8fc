"""Advice for operators: why this host makes no sandboxes, and how to change that.

The walls are tried in a process of its own, since no try can be taken back. user_namespaces(7), proc(5), seccomp(2).
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skillyard.sandbox.native.linux import bpf, kernel, landlock, namespaces
from skillyard.values import dataclass

SWITCHES = {
    "user.max_user_namespaces": ("0", "10000"),
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
}
"""Kernel settings: the value that closes user namespaces, and one that opens them."""

_ENGINE_FILES = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The pid namespace with which the kernel starts (linux/nsfs.h)."""
PROC = "mount /proc"
"""The step that a covered /proc refuses."""
_LANDLOCK_ABI = {True: 1, False: 6}
"""Versions that the isolation 'landlock' needs: as root, where each sandbox is a user of its own, and otherwise, where
Landlock alone keeps sandboxes from signalling the server."""
NAME = "sethostname"
FILTER = "seccomp"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of the server. ``refused`` are steps of building walls, with errors.

    Steps after one on which all others rest were not tried.
    """

    refused: dict[str, str]
    engine: str = ""
    """The maker of our container: docker, podman, kubernetes, ``container`` for another, empty for none."""
    filtered: bool = False
    """We have a filter of system calls from outside."""
    confined: str = ""
    """The AppArmor profile that is enforced on us."""
    switches: tuple[str, ...] = ()
    """The SWITCHES that are closed."""
    masked: bool = False
    """Parts of /proc are covered, so that nobody may mount a fresh one in a user namespace."""
    modules: tuple[str, ...] = ()
    """The kernel's security modules; empty where that cannot be read."""
    chrooted: bool = False
    landlock_stands: bool = False
    """Whether the isolation 'landlock' needs nothing that is missing here."""
    unmapped_root: bool = False
    """Root without the capabilities to map itself into a user namespace."""


def look_here() -> Surroundings:
    """Looks at the host. Leaves the caller, which should end, in namespaces of its own."""
    status = _status()
    found = {
        "engine": _engine(),
        "filtered": status.get("Seccomp") == "2",
        "confined": _confined(),
        "switches": tuple(name for name, (closed, _) in SWITCHES.items() if _setting(name) == closed),
        "modules": tuple(filter(None, _read("/sys/kernel/security/lsm").decode("ascii", "replace").strip().split(","))),
        "chrooted": not any(target == "/" for target in _mount_points()),
        "masked": any(target.startswith("/proc/") for target in _mount_points()),
        "landlock_stands": landlock.abi() >= _LANDLOCK_ABI[os.geteuid() == 0],
        "unmapped_root": os.geteuid() == 0 and not namespaces.may_enter(),
    }
    return Surroundings(_try_all(), **found)  # type: ignore[arg-type]


def main() -> None:
    """Prints the surroundings as JSON on standard output."""
    print(json.dumps(asdict(look_here())))  # noqa: T201


def read(text: bytes) -> Surroundings | None:
    """Reads the output of :func:`main`; returns None for any other text."""
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    tuples: dict[str, Any] = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Surroundings(**{**fields, **tuples})


def _try_all() -> dict[str, str]:
    refused: dict[str, str] = {}

    def tried(step: str, work: Callable[[], object]) -> bool:
        try:
            work()
        except OSError as error:
            refused[step] = errno.errorcode.get(error.errno or 0, str(error))
        return step not in refused

    tried("clone3", _clone3)
    tried("pidfd_open", lambda: os.close(kernel.pidfd_open(os.getpid())))
    if not tried("namespaces", namespaces.enter):
        return refused
    tried("network namespace", lambda: kernel.unshare(kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC))
    tried("cgroup namespace", lambda: kernel.unshare(kernel.CLONE_NEWCGROUP))
    if tried("uts namespace", lambda: kernel.unshare(kernel.CLONE_NEWUTS)):
        tried(NAME, lambda: kernel.sethostname("sandbox"))
    tried("setns", _set_own_namespace)
    if tried("mount", _mount_tmpfs):
        tried("open_tree", _move_a_mount)
        refused.update(_in_pid_namespace())
    return refused


def _clone3() -> None:
    """Calls clone3(2) without arguments, which the kernel finds invalid, and a filter refuses."""
    try:
        kernel.call("clone3", kernel.NR_CLONE3, None, ctypes.c_size_t(0))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def _set_own_namespace() -> None:
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        kernel.setns(own, kernel.CLONE_NEWNS)
    finally:
        os.close(own)


def _install_filter() -> None:
    """Installs a filter that allows everything."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.install_filter(bpf.assemble([bpf.ALLOW]))


def _mount_tmpfs() -> None:
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("try", "/usr", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV)


def _move_a_mount() -> None:
    fd = kernel.open_tree("/usr")
    kernel.mount_setattr(fd, "", kernel.MOUNT_ATTR_RDONLY)
    kernel.move_mount(fd, "/usr")
    kernel.umount("/usr")
    os.close(kernel.new_tmpfs({}, 0))
    os.close(kernel.open_place("/", kernel.RESOLVE_NO_SYMLINKS))


def _in_pid_namespace() -> dict[str, str]:
    """Tries the steps for which a child in the new pid namespace is needed."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        said = {}
        try:
            for step, work in _IN_PID_NAMESPACE:
                try:
                    work()
                except OSError as error:
                    said[step] = errno.errorcode.get(error.errno or 0, str(error))
            os.write(writing, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        text = file.read()
    os.waitpid(pid, 0)
    found: dict[str, str] = json.loads(text or b"{}")
    return found


def _nested_user_namespace() -> None:
    pid = os.fork()
    if pid == 0:
        try:
            kernel.unshare(kernel.CLONE_NEWUSER)
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    failed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if failed:
        raise OSError(failed, "unshare")


def _pivot() -> None:
    kernel.mount("try", "/usr", "tmpfs", 0)
    os.chdir("/usr")
    kernel.pivot_root(".", ".")


_IN_PID_NAMESPACE: tuple[tuple[str, Callable[[], object]], ...] = (
    (PROC, lambda: kernel.mount("proc", "/usr", "proc", kernel.MS_NOSUID)),
    ("user namespace of a sandbox", _nested_user_namespace),
    ("pivot_root", _pivot),
    (FILTER, _install_filter),
)


def _status() -> dict[str, str]:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}


def _mount_points() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [line.split()[4] for line in file]


def _engine() -> str:
    """Returns the maker of our container. Files alone prove nothing: VM images have them, too."""
    if os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE and "/etc/hosts" not in _mount_points():
        return ""
    for path, engine in _ENGINE_FILES.items():
        if os.path.exists(path):
            return engine
    if os.path.exists("/var/run/secrets/kubernetes.io"):
        return "kubernetes"
    return "container"


def _confined() -> str:
    """Returns our enforced AppArmor profile, as in ``docker-default (enforce)``."""
    name, _, mode = _read("/proc/self/attr/current").decode("utf-8", "replace").strip("\0\n ").rpartition(" ")
    return name if mode == "(enforce)" else ""


def _setting(name: str) -> str:
    return _read("/proc/sys/" + name.replace(".", "/", 1)).decode("ascii", "replace").strip()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(65536)
    except OSError:
        return b""


PROFILE = "deploy/docker-seccomp.json"
"""A container's filter of system calls that lets the walls be built, in skillyard's source tree."""

_BOUND_S = 10.0
_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from skillyard.sandbox.native.host_advice import main; main()"
_NOT_THE_FILTER = {PROC, NAME}
"""The first has a cause of its own, and sandboxes can do without the second."""
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
    """Returns the surroundings as a process of its own finds them; None when it cannot."""
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
    return read(out)


def mend(found: Surroundings | None, why: str) -> str:
    """Returns the whole remedy in one line; ``why`` is the error. Empty where none is known."""
    parts: list[str] = []
    if found is not None:
        parts = [*_of_the_host(found), *(_of_the_container(found) if found.engine else _of_the_service(found))]
    return "; ".join(parts or [text for said, text in _SHORT.items() if said in why])


def filter_mend(found: Surroundings) -> str:
    """Returns the remedy for a call that a filter keeps from us."""
    return f"{_start(found)} --security-opt seccomp={PROFILE}" if found.engine else _UNIT_FILTER


def _of_the_host(found: Surroundings) -> Iterator[str]:
    if not found.refused:
        return
    where = "on the host of this container" if found.engine else "as root"
    for name in found.switches:
        yield f"{where}: sysctl -w {name}={SWITCHES[name][1]}"
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
    if found.masked and (closed or PROC in found.refused):
        yield "--security-opt " + ("unmask=/proc/*" if found.engine == "podman" else "systempaths=unconfined")
    if found.confined and found.refused:
        yield "--security-opt apparmor=unconfined"
    if found.unmapped_root:
        yield "--user 10001:10001 (or, to stay root, " + " ".join(f"--cap-add {name}" for name in _IDS) + ")"


def _of_the_service(found: Surroundings) -> Iterator[str]:
    if found.filtered and found.refused and not found.switches:
        yield _UNIT_FILTER
    if found.masked and PROC in found.refused:
        yield _UNIT_PROC
    if found.unmapped_root:
        yield _UNIT_IDS
    if found.confined and found.refused:
        yield f"the AppArmor profile '{found.confined}' is enforced on this process: let it make user namespaces"
