"""The walls of one sandbox, built from inside by the process that becomes its init.

Each step comes before the one that gives up the privilege it needs. Any step that fails ends the sandbox before foreign
code exists. ``namespaces(7)``, ``user_namespaces(7)``, ``mount_namespaces(7)``.
"""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from skillyard.sandbox.native.inside.agreed import CHANNEL_FD as CHANNEL_FD
from skillyard.sandbox.native.inside.agreed import CODE_ROOT as CODE_ROOT
from skillyard.sandbox.native.inside.agreed import DONE as DONE
from skillyard.sandbox.native.inside.agreed import INSIDE_ID as INSIDE_ID
from skillyard.sandbox.native.inside.agreed import READY as READY
from skillyard.sandbox.native.inside.agreed import SHM as SHM
from skillyard.sandbox.native.inside.agreed import STACK_FD as STACK_FD
from skillyard.sandbox.native.inside.agreed import TMP as TMP
from skillyard.sandbox.native.inside.agreed import WORKSPACE as WORKSPACE
from skillyard.sandbox.native.inside.agreed import WRITABLE as WRITABLE
from skillyard.sandbox.native.linux import kernel, landlock

INTO_CGROUP, PLAIN = b"+", b" "
"""The first byte of an order to the zygote: whether the last descriptor is a cgroup to be cloned into."""

SINGLE_INTO_CGROUP, SINGLE_PLAIN = b"F", b"f"
"""The same of a sandbox for one guest program. The compiled part makes ``first.c`` its first process."""

HOSTNAME = "sandbox"
SKILLS, BLOBS = "/skills", "/blobs"
SHOWN = {"skills": SKILLS, "blobs": BLOBS}
TERMINALS = "/dev/pts"
TERMINAL_FLAGS = kernel.MS_NOSUID | kernel.MS_NOEXEC
EMPTY = "/run/empty"
HELD = "/run/held"
"""The directory for mounts to which a link leads from below one of WRITABLE."""
TRUST = "/run/egress/ca.pem"
"""An empty file in the shared root, over which a sandbox's own can be mounted."""
RESERVED_PIDS = 300
TCP_SETTINGS = {"tcp_rto_max_ms": "1000", "tcp_orphan_retries": "1"}
"""Settings of a sandbox's network below /proc/sys/net/ipv4 (tcp(7)).

A connection of an ended program holds data that no memory limit counts, and by itself the kernel tries for two minutes
to send them. The first setting came with Linux 6.15."""
OOM_SCORE = "500"
"""When the host runs out of memory, foreign code ends first, whatever the server was given."""

SMALL_STACK = 4 << 20
"""Bytes of a thread's stack where RLIMIT_DATA bounds a process. A hundred fit into the default limits."""
_USUAL_STACK = 8 << 20


class Shown(NamedTuple):
    """A directory of the host that the root shows at ``path``."""

    path: str
    writable: bool


def held(number: int) -> str:
    """Returns the place where the directory of that number waits for its sandbox."""
    return f"{HELD}/{number}"


def is_private(path: str) -> bool:
    """Returns whether ``path`` lies below a place that each sandbox has of its own."""
    return path.startswith(tuple(f"{place}/" for place in WRITABLE.values()))


NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS

MASKED_FILES = (
    "kcore", "keys", "key-users", "kmsg", "kallsyms", "timer_list", "sched_debug", "sysrq-trigger", "interrupts",
    "latency_stats", "slabinfo", "vmallocinfo", "kpagecount", "kpageflags", "kpagecgroup", "config.gz", "cmdline",
    "modules", "iomem", "ioports", "locks", "partitions", "diskstats", "swaps", "mdstat", "schedstat",
)  # fmt: skip
"""Files of /proc that tell of the host or reach into it; they show as empty. See also MASKED_DIRECTORIES."""

MASKED_DIRECTORIES = ("acpi", "asound", "bus", "driver", "fs", "irq", "scsi", "sysvipc", "tty", "pressure")
"""They show as empty. ``sys`` stays readable and becomes read-only."""


class Build(NamedTuple):
    """The keeper's orders for one sandbox.

    ``uid`` is its id in the zygote's user namespace: its own or, where there is but one, the zygote's. ``stack_bytes``
    is the size of a thread's stack unless it asks for another; 0 for the usual. ``closed`` are the places of WRITABLE
    that cannot be written to. With ``terminals`` it can open so many of its own.
    """

    uid: int
    own_uid: bool
    disk_bytes: int
    inodes: int
    processes: int
    data_bytes: int
    stack_bytes: int
    descriptors: int
    terminals: int
    cpus: tuple[int, ...]
    landlock: int
    proc_files: tuple[str, ...]
    proc_directories: tuple[str, ...]
    closed: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Returns words and commas, which touch few pages of a fresh clone when they are read."""
        return " ".join(
            ",".join(map(str, value)) if isinstance(value, tuple) else str(int(value)) for value in self
        ).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Build:
        *numbers, cpus, landlock_abi, files, directories, closed = raw.decode().split(" ")
        uid, own_uid, disk, inodes, processes, data, stack, descriptors, terminals = map(int, numbers)
        return cls(
            uid,
            bool(own_uid),
            disk,
            inodes,
            processes,
            data,
            stack,
            descriptors,
            terminals,
            tuple(map(int, cpus.split(","))) if cpus else (),
            int(landlock_abi),
            tuple(files.split(",")) if files else (),
            tuple(directories.split(",")) if directories else (),
            tuple(closed.split(",")) if closed else (),
        )


def build(spec: Build, cgroups: Sequence[int], closing: bytes, shown: Sequence[Shown] = ()) -> None:
    """Turns this fresh clone (NAMESPACES) into a sandbox's init. Raises OSError naming the step."""
    _join(cgroups)
    kernel.unshare(kernel.CLONE_NEWCGROUP)
    _name()
    _loopback_up()
    _mount_box(spec)
    _mount_held(shown)
    if spec.terminals:
        kernel.mount("terminals", TERMINALS, "devpts", TERMINAL_FLAGS, terminal_options(spec.terminals))
    _mount_proc(spec)
    _write("/proc/self/oom_score_adj", OOM_SCORE)
    if spec.cpus:
        os.sched_setaffinity(0, spec.cpus)
    _become_nobody(spec)
    _limit(spec)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    os.chdir(WORKSPACE)
    if spec.landlock:
        rules = [("/", landlock.READ), ("/dev", landlock.TERMINALS if spec.terminals else landlock.DEVICES)]
        rules += [
            (path, landlock.writable(spec.landlock)) for name, path in WRITABLE.items() if name not in spec.closed
        ]
        rules += [(each.path, landlock.jailed(spec.landlock)) for each in shown if each.writable]
        landlock.restrict(spec.landlock, rules)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.install_filter(closing)


def _join(cgroups: Sequence[int]) -> None:
    for fd in cgroups:
        os.write(fd, b"0")
        os.close(fd)


def _name() -> None:
    """Sets the host name. Where a container's filter refuses it, the probe finds the wall missing."""
    try:
        kernel.sethostname(HOSTNAME)
    except PermissionError:
        return


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        up = struct.pack("16sh14x", b"lo", 0x1 | 0x40)  # IFF_UP | IFF_RUNNING, netdevice(7)
        fcntl.ioctl(probe, 0x8914, up)  # SIOCSIFFLAGS


def _mount_box(spec: Build) -> None:
    """Mounts one tmpfs for all that the sandbox can write, so that one limit counts it all.

    Nobody in there gets to its root, over which its own /tmp is mounted. To unmount it waits for all processors.
    """
    options = f"size={spec.disk_bytes},nr_inodes={spec.inodes},mode=0755"
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("box", TMP, "tmpfs", flags, options)
    for name, target in WRITABLE.items():
        path = f"{TMP}/{name}"
        os.mkdir(path, 0o755)
        if spec.own_uid:
            os.chown(path, spec.uid, spec.uid)
        kernel.mount(path, target, None, kernel.MS_BIND)
    os.chmod(TMP, 0o1777)
    os.chmod(SHM, 0o1777)
    for name in spec.closed:
        kernel.mount("none", WRITABLE[name], None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | flags)


def terminal_options(most: int) -> str:
    """Returns the options of a file system of terminals that no other sandbox sees (devpts)."""
    return f"newinstance,ptmxmode=0666,mode=0600,max={most}"


def _mount_held(shown: Sequence[Shown]) -> None:
    """Links to directories of the host from below a place of the sandbox's own.

    A mount there would have the place's rights beneath it (landlock(7)), and a pipe of the host could be written to.
    """
    for number, each in enumerate(shown):
        if is_private(each.path):
            os.makedirs(os.path.dirname(each.path), 0o755, exist_ok=True)
            os.symlink(held(number), each.path)


def _mount_proc(spec: Build) -> None:
    quiet = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "/proc", "proc", quiet)
    _pass_low_pids()
    _drop_orphans_soon()
    for name in spec.proc_files:
        kernel.mount("/dev/null", f"/proc/{name}", None, kernel.MS_BIND)
    for name in spec.proc_directories:
        kernel.mount(EMPTY, f"/proc/{name}", None, kernel.MS_BIND)
    kernel.mount("/proc/sys", "/proc/sys", None, kernel.MS_BIND)
    kernel.mount("none", "/proc/sys", None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | quiet)


def _pass_low_pids() -> None:
    """Uses up the low pids, so that no process in here has the zygote's, 2.

    Libraries tell a fork by the pid (OpenSSL). The kernel gives RESERVED_PIDS once, in order, and begins behind them
    when it comes round (kernel/pid.c).
    """
    try:
        _write("/proc/sys/kernel/ns_last_pid", str(RESERVED_PIDS))
    except OSError:  # a kernel without CONFIG_CHECKPOINT_RESTORE
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)


def _drop_orphans_soon() -> None:
    """Shortens the life of connections whose program has ended, where the kernel lets it be set."""
    for name, value in TCP_SETTINGS.items():
        with suppress(OSError):
            _write(f"/proc/sys/net/ipv4/{name}", value)


def _become_nobody(spec: Build) -> None:
    """Takes the host's id of this sandbox, then a user namespace in which that is INSIDE_ID."""
    uid = spec.uid
    if spec.own_uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    kernel.unshare(kernel.CLONE_NEWUSER)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/gid_map", f"{INSIDE_ID} {uid} 1")
    _write("/proc/self/uid_map", f"{INSIDE_ID} {uid} 1")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def core_limit() -> int:
    """Returns the limit of core dumps: 1, or 0 where the server itself has 0.

    With 1 the kernel does not start the host's core dump handler, which runs as root; with 0 it does (core(5)).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    return 1 if hard == resource.RLIM_INFINITY else min(1, hard)


def lessen_stacks(size: int) -> None:
    """Gives threads of programs that are started later stacks of ``size``.

    The C library takes the limit for it (pthread_create(3)), and RLIMIT_DATA counts stacks whole. The stack of this
    process and its forks is grown now, before the limit counts. Programs may raise the limit again.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft != resource.RLIM_INFINITY and soft <= size:
        return
    kernel.grow_stack(stack_room(soft))
    resource.setrlimit(resource.RLIMIT_STACK, (size, hard))


def stack_room(soft: int) -> int:
    """Returns the bytes of stack that a process gets under the limit ``soft``."""
    return _USUAL_STACK if soft == resource.RLIM_INFINITY else min(soft, _USUAL_STACK)


def descriptors() -> int:
    """Returns a sandbox's limit of descriptors: at most half of the keeper's, which calls this.

    Descriptors in flight count by user, and a sender is held to its own limit (unix(7), ETOOMANYREFS); so the messages
    of sandboxes stop nobody else.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1024 if hard == resource.RLIM_INFINITY else min(1024, hard // 2)


def _limit(spec: Build) -> None:
    if spec.stack_bytes:
        lessen_stacks(spec.stack_bytes)
    for kind, value in limits(spec):
        kernel.set_limit(kind, value)


def limits(spec: Build) -> tuple[tuple[int, int], ...]:
    """Returns the limits of each process, soft and hard (setrlimit(2)).

    RLIMIT_NPROC counts per user namespace when it is set inside one (Linux 5.14).
    """
    return (
        (resource.RLIMIT_NPROC, spec.processes),
        (resource.RLIMIT_DATA, spec.data_bytes),
        (resource.RLIMIT_FSIZE, 2 * spec.disk_bytes),  # above the tmpfs: a full disk reads as ENOSPC
        (resource.RLIMIT_CORE, core_limit()),
        (resource.RLIMIT_NOFILE, spec.descriptors),
        (resource.RLIMIT_MEMLOCK, 1 << 16),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 1024),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_RTPRIO, 0),
    )
