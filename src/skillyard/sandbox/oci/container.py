"""The container of a sandbox, as the Engine API takes it."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import Owner, SandboxSpec
from skillyard.domain.work.limits import Limits
from skillyard.sandbox.content import bound
from skillyard.sandbox.guest_argv import guest_words
from skillyard.sandbox.native.inside.walls import HOSTNAME, MASKED_DIRECTORIES, MASKED_FILES
from skillyard.sandbox.oci import calls
from skillyard.values import dataclass

GUEST = "/run/skillyard-guest.pyz"
"""The agent and the guest inside, as one file that the interpreter runs."""
NAMES = "127.0.0.1 localhost sandbox\n::1 localhost\n"
"""The names of hosts inside: an engine without a network gives an empty file."""
SWITCH = "passwd: files\ngroup: files\nhosts: files\n"
"""Other names are asked of nobody, and unknown at once (nsswitch.conf(5))."""
SOCKET = "@skillyard-agent"
AGENT = guest_words("python3", GUEST, "agent")
VARIABLE = "SKILLYARD_AGENT"
CONNECT = {
    "AttachStdin": True,
    "AttachStdout": True,
    "AttachStderr": False,
    "Tty": False,
    "Cmd": [*AGENT, "connect", SOCKET],
    "Env": [f"{VARIABLE}="],  # the settings are the agent's alone
}
"""The order for a program that joins its input and output to the agent."""
LEASE_S = 10.0
"""How long a container of a run, or one that is ready, outlives its server."""
OVERHEAD_MB = 48
"""Memory of the agent, of its channel and of a worker for files."""
OVERHEAD_PIDS = 2
"""The agent, and a program that makes others or a worker for files."""
FILES = 4096
PROCESSES = 32_768
"""Processes of the user of all containers together, for Podman: each container has its own limit beside."""
_FILES_PER_MB = 1024
WORKSPACE, TMP, SHM = "/workspace", "/tmp", "/dev/shm"  # noqa: S108 - of a sandbox
_MIB = 1 << 20
_STACK = 8 << 20
"""Bytes of a thread's usual stack."""
_SYS = (
    "block", "bus", "class", "dev", "devices", "firmware", "hypervisor", "kernel", "module", "power",
    "fs/bcache", "fs/bpf", "fs/btrfs", "fs/erofs", "fs/ext4", "fs/f2fs", "fs/fuse", "fs/nfs", "fs/pstore",
    "fs/resctrl", "fs/selinux", "fs/smackfs", "fs/xfs",
)  # fmt: skip
"""Masked directories of /sys. A sandbox's own control groups stay: the agent counts kills for memory there."""
MASKED = (
    *(f"/proc/{name}" for name in (*MASKED_FILES, *MASKED_DIRECTORIES)),
    *(f"/sys/{name}" for name in _SYS),
    "/dev/mqueue",
    "/dev/pts",
)
READ_ONLY = ("/proc/sys",)
HELD = "/run/skillyard-held"
"""Where a container has the volumes whose content it is shown elsewhere, so that the engine keeps them. Masked."""
PLACE = "/content/it"
"""The place of content for a loader. Its name there is that in the volume."""
_LOADER_MB, _LOADER_PIDS = 256, 256


@dataclass(frozen=True, slots=True)
class Image:
    """An image that the engine has. ``id`` is its digest; ``python`` and ``packages`` are found by looking inside."""

    id: str
    variables: Mapping[str, str]
    architecture: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts that all containers of a backend share."""

    user: str
    runtime: str
    processors: int = 1
    is_podman: bool = False
    bounds_queues: bool = False
    """Whether the engine has control groups of version 1 and passes a limit for queues of TCP sockets on."""

    def at(self, info: Mapping[str, Any], *, is_podman: bool) -> Surroundings:
        """Returns the same at an engine that tells ``info`` of itself."""
        bounds_queues = bool(info.get("KernelMemoryTCP")) and str(info.get("CgroupVersion")) == "1"
        return Surroundings(self.user, self.runtime, max(1, int(info.get("NCPU") or 1)), is_podman, bounds_queues)


class Shown(NamedTuple):
    """A file or tree of this host and its place in a container. ``fixed`` says that it never changes."""

    source: str
    target: str
    fixed: bool = True


class Seat(NamedTuple):
    """Content that the engine has: its volume, and its place on the engine's machine."""

    volume: str
    place: str


def image(told: Mapping[str, Any]) -> Image:
    """Returns an image as the engine tells of it. Raises InvalidInput for one that makes no sandboxes."""
    config = told.get("Config") or {}
    if volumes := config.get("Volumes"):
        rule = "must declare no volumes, which runs could fill; build it without them"
        raise InvalidInput("image", rule, shown(", ".join(volumes)))
    architecture = calls.ARCHITECTURES.get(str(told.get("Architecture")))
    if architecture is None:
        raise InvalidInput("image", "must be for x86_64 or aarch64", shown(told.get("Architecture")))
    words = (word.partition("=") for word in config.get("Env") or ())
    id = f"sha256:{str(told['Id']).removeprefix('sha256:')}"
    return Image(id, {key: value for key, _, value in words}, architecture)


def parts(limits: Limits) -> dict[str, int]:
    """Returns the size of each place in bytes. Together they have the disk limit, so that none of it is there twice."""
    whole = limits.disk_mb * _MIB
    tmp, shm = whole // 4, whole // 8
    return {WORKSPACE: whole - tmp - shm, TMP: tmp, SHM: shm}


def memory(limits: Limits) -> int:
    """Returns the bytes of memory of a container. Files in its places count as memory, too."""
    return (limits.memory_mb + limits.disk_mb + OVERHEAD_MB) * _MIB


def queues(limits: Limits) -> int:
    """Returns the most bytes in queues of TCP sockets, which version 1 counts by themselves."""
    return max(4, limits.memory_mb // 4) * _MIB


def body(
    spec: SandboxSpec,
    image: Image,
    around: Surroundings,
    labels: Mapping[str, str],
    key: str,
    profile: str,
    mounts: Sequence[Mapping[str, Any]] = (),
    *,
    ahead: bool = False,
) -> dict[str, Any]:
    """Returns the order to make a container. ``profile`` is that of its system calls.

    One that is made ``ahead`` has a lease until it is lent, and an agent that has made ready.
    """
    agent = {
        "key": key,
        "env": environment(image),
        "single": spec.single,
        "lease_s": LEASE_S if ahead or spec.owner is Owner.RUN else None,
        "timeout_ms": spec.limits.timeout_ms,
        "ahead": ahead,
        "limits": resources(spec.limits),
        "filters": calls.exact(image.architecture),
    }
    ours = {"PATH": environment(image)["PATH"], VARIABLE: json.dumps(agent)}
    words = (*AGENT, "serve", SOCKET)
    return _order(image, words, ours, around.user, labels) | {"HostConfig": _host(spec, around, profile, mounts)}


def loader(
    image: Image, runtime: str, words: Sequence[str], mount: Mapping[str, Any], labels: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the order for a container that runs a loader, with nothing but ``mount``."""
    memory = _LOADER_MB * _MIB
    host = {
        **_closed(runtime, ("no-new-privileges",)),
        "PidsLimit": _LOADER_PIDS,
        "Memory": memory,
        "MemorySwap": memory,
        "Mounts": [dict(mount)],
    }
    path = environment(image)["PATH"]
    return _order(image, words, {"PATH": path, "LANG": "C.UTF-8"}, "0:0", labels) | {"HostConfig": host}


def _order(
    image: Image, words: Sequence[str], ours: Mapping[str, str], user: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    # A variable of the image, such as LD_PRELOAD, would steer our program: all others are emptied.
    variables = {**dict.fromkeys(image.variables, ""), **ours}
    return {
        "Image": image.id,
        "Entrypoint": list(words),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "User": user,
        "WorkingDir": "/",
        "OpenStdin": True,
        "StdinOnce": True,  # the input ends with the channel
        "Hostname": HOSTNAME,
        "Labels": dict(labels),
        "NetworkDisabled": True,
        "StopSignal": "SIGKILL",
        "Healthcheck": {"Test": ["NONE"]},
    }


def environment(image: Image) -> dict[str, str]:
    """Returns the small environment that every program gets."""
    path = image.variables.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    return {"PATH": path, "HOME": "/workspace", "LANG": "C.UTF-8"}


def _closed(runtime: str, options: Sequence[str]) -> dict[str, Any]:
    """Returns the part of an order that is the same for sandboxes and loaders."""
    return {
        "Runtime": runtime,
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": list(options),
        "MaskedPaths": [*MASKED, HELD],
        "ReadonlyPaths": list(READ_ONLY),
        "NetworkMode": "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
    }


def _host(spec: SandboxSpec, around: Surroundings, profile: str, mounts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    limits = spec.limits
    return {
        **_closed(around.runtime, ("no-new-privileges", f"seccomp={profile}", *_masks(around))),
        "PidsLimit": limits.pids + OVERHEAD_PIDS,
        "Memory": memory(limits),
        "MemorySwap": memory(limits),
        **({"KernelMemoryTCP": queues(limits)} if around.bounds_queues else {}),
        "NanoCpus": int(min(limits.cpus, around.processors) * 1_000_000_000),
        "Ulimits": [{"Name": "nofile", "Soft": FILES, "Hard": FILES}, *_processes(around)],
        "Tmpfs": {
            **({"/var/tmp": "ro,nosuid,nodev,noexec,size=4096"} if around.is_podman else {}),  # noqa: S108 - inside
            **{place: _tmpfs(size, around) for place, size in parts(limits).items()},
        },
        "Mounts": [dict(mount) for mount in mounts],
    }


def _processes(around: Surroundings) -> Iterable[dict[str, Any]]:
    """Yields the limit of a user's processes for Podman, whose own not every host lets it set."""
    if around.is_podman:
        yield {"Name": "nproc", "Soft": PROCESSES, "Hard": PROCESSES}


def _masks(around: Surroundings) -> Iterator[str]:
    """Yields the masked paths in Podman's words, which passes over those of the Engine API."""
    if around.is_podman:
        yield f"mask={':'.join((*MASKED, HELD))}"


def _tmpfs(size: int, around: Surroundings) -> str:
    """Returns the options of a place that programs can write to."""
    usual = f"rw,exec,nosuid,nodev,size={size}"
    if around.is_podman:  # it takes neither an owner nor a number of files
        return f"{usual},notmpcopyup,mode=1777"
    uid, _, gid = around.user.partition(":")
    return f"{usual},mode=0700,uid={uid},gid={gid},nr_inodes={_inodes(size)}"


def resources(limits: Limits) -> dict[str, int]:
    """Returns the limits of each process, by number, as the native sandboxes have them.

    The agent sets them: an engine would hold its runtime to them, too. A core limit of 1 keeps crashes from the host's
    handler (core(5)).
    """
    found = {
        # This limit counts stacks whole, which are hardly touched; the control group counts what is.
        resource.RLIMIT_DATA: limits.memory_mb * _MIB + limits.pids * _STACK,
        resource.RLIMIT_FSIZE: 2 * limits.disk_mb * _MIB,
        resource.RLIMIT_CORE: 1,
        resource.RLIMIT_MEMLOCK: 1 << 16,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 1024,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
    }
    return {str(number): most for number, most in found.items()}


def _inodes(size: int) -> int:
    return max(4096, size // _MIB * _FILES_PER_MB)


def content_of(spec: SandboxSpec, packages: str) -> Iterator[Shown]:
    """Yields the content of a spec. ``packages`` is where the image's interpreter looks for them."""
    for mount in spec.mounts:
        for target in (mount.target, *mount.aliases):
            yield Shown(str(bound(mount.source)), target, isinstance(mount.source, Content))
    if spec.environment.packages is not None:
        yield Shown(str(bound(spec.environment.packages)), packages)


def mounts(wanted: Iterable[Shown], seats: Mapping[str, Seat]) -> list[dict[str, Any]]:
    """Returns the mounts of a container. ``seats`` has the sources that the engine does not see where they are."""
    volumes = sorted({seat.volume for seat in seats.values()})
    return [
        *(volume(name, f"{HELD}/{number}", read_only=True) for number, name in enumerate(volumes)),
        *(_shown(one, seats.get(one.source)) for one in wanted if one.target),
    ]


def _shown(wanted: Shown, seat: Seat | None) -> dict[str, Any]:
    if seat is None:
        return bind(wanted.source, wanted.target)
    # The engine chooses how mounts in its own directory spread: Docker refuses there what we say elsewhere.
    return {"Type": "bind", "Source": seat.place, "Target": wanted.target, "ReadOnly": True}


def volume(name: str, target: str, *, read_only: bool) -> dict[str, Any]:
    options = {"NoCopy": True}
    return {"Type": "volume", "Source": name, "Target": target, "ReadOnly": read_only, "VolumeOptions": options}


def bind(source: str, target: str) -> dict[str, Any]:
    options = {"Propagation": "rprivate"}
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True, "BindOptions": options}
