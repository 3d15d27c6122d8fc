"""What closes namespaces or mounts on this host or in this container, for the operator who could open them.

Found by trying, in a process of its own, since no try can be taken back. user_namespaces(7), proc(5), seccomp(2).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from skillyard.sandbox.native.linux import bpf, kernel, landlock, namespaces

SWITCHES = {
    "user.max_user_namespaces": ("0", "10000"),
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
}
"""Kernel settings: the value that closes user namespaces, and one that opens them."""

_ENGINE_FILES = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""linux/nsfs.h: what the kernel starts with."""
PROC = "mount /proc"
"""The step that a covered /proc refuses."""
_LANDLOCK_ABI = {True: 1, False: 6}
"""Versions that the isolation 'landlock' needs: as root, where each sandbox is a user of its own, and otherwise, where
Landlock alone keeps sandboxes from signalling the server."""
NAME = "sethostname"
FILTER = "seccomp"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """``refused``: the steps of building walls that were refused, each with the error's name; those after a step that
    everything rests on were not tried."""

    refused: dict[str, str]
    engine: str = ""
    """What made the container around us: docker, podman, kubernetes, ``container`` for another, empty for none."""
    filtered: bool = False
    """A filter of system calls was laid on us from outside."""
    confined: str = ""
    """The AppArmor profile that is enforced on us."""
    switches: tuple[str, ...] = ()
    """Of SWITCHES, those that are closed."""
    masked: bool = False
    """Something lies over parts of /proc: then nobody may mount a fresh one in a user namespace."""
    modules: tuple[str, ...] = ()
    """The kernel's security modules; empty where that cannot be read."""
    chrooted: bool = False
    landlock_stands: bool = False
    """Whether the isolation 'landlock' needs nothing that is missing here."""
    unmapped_root: bool = False
    """Root without the capabilities to map itself into a user namespace."""


def look() -> Surroundings:
    """Leaves the caller in namespaces of its own: for a process that ends afterwards."""
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
    """Print what was found as JSON on standard output."""
    print(json.dumps(asdict(look())))  # noqa: T201


def read(text: bytes) -> Surroundings | None:
    """What :func:`main` printed."""
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
    """With nothing to do: who is asked at all says that the argument is invalid."""
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
    """One that allows everything."""
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
    """It begins with a child, and a /proc shows the namespace of who mounts it."""
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
    """The files alone are no proof: images of virtual machines are made from containers."""
    if os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE and "/etc/hosts" not in _mount_points():
        return ""
    for path, engine in _ENGINE_FILES.items():
        if os.path.exists(path):
            return engine
    if os.path.exists("/var/run/secrets/kubernetes.io"):
        return "kubernetes"
    return "container"


def _confined() -> str:
    """``docker-default (enforce)`` under AppArmor; other modules have other forms."""
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
