"""The system calls that foreign code may make, and the filters that hold it to them (seccomp(2)).

Default-deny. Two filters: the large one goes into the zygote once and is inherited; the small closing one goes into
each sandbox when its walls are built, and takes away what building them needed.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from skillyard.sandbox.native import kernel
from skillyard.sandbox.native.syscall_numbers import numbers


@dataclass(frozen=True, slots=True)
class Group:
    """Calls that belong together and why foreign code may make them."""

    name: str
    why: str
    calls: tuple[str, ...]


def _group(name: str, why: str, calls: str) -> Group:
    return Group(name, why, tuple(calls.split()))


ALLOWED: tuple[Group, ...] = (
    _group(
        "descriptors",
        "reading, writing and arranging open files",
        """read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close close_range dup dup2
        dup3 fcntl ioctl flock fsync fdatasync ftruncate fallocate fadvise64 readahead sendfile copy_file_range
        sync_file_range cachestat""",
    ),
    _group(
        "paths",
        "what the mounts and Landlock leave to be seen and changed",
        """open openat openat2 creat access faccessat faccessat2 stat fstat lstat newfstatat statx readlink readlinkat
        getcwd chdir fchdir mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat symlink
        symlinkat chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat umask
        getdents getdents64 statfs fstatfs truncate mknod mknodat getxattr lgetxattr fgetxattr listxattr
        llistxattr flistxattr""",
    ),
    _group(
        "waiting",
        "event loops",
        """poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd
        eventfd2 pipe pipe2 timerfd_create timerfd_settime timerfd_gettime signalfd signalfd4""",
    ),
    _group(
        "memory",
        "the process's own address space",
        """brk mmap munmap mprotect mremap madvise msync mincore mlock munlock mlock2 mlockall munlockall membarrier
        memfd_create""",
    ),
    _group(
        "processes",
        "children, threads and their ends; new namespaces are refused by the arguments of clone",
        """clone fork vfork execve execveat exit exit_group wait4 waitid getpid getppid gettid getpgid setpgid getpgrp
        getsid setsid kill tkill tgkill pidfd_open pidfd_send_signal set_tid_address set_robust_list get_robust_list
        rseq prctl arch_prctl personality""",
    ),
    _group(
        "scheduling",
        "niceness and queries; the processors of a sandbox are fixed, so sched_setaffinity is not here",
        """sched_yield sched_getaffinity sched_getparam sched_setparam sched_getscheduler sched_setscheduler
        sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_getattr getpriority setpriority
        ioprio_get ioprio_set getcpu""",
    ),
    _group(
        "limits",
        "reading the limits and lowering them",
        "getrlimit setrlimit prlimit64 getrusage times sysinfo uname",
    ),
    _group("locks", "what threads are built on", "futex futex_waitv futex_wake futex_wait futex_requeue"),
    _group(
        "time",
        "clocks to read and timers of one's own; no clock can be set",
        """nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time alarm pause getitimer setitimer
        timer_create timer_settime timer_gettime timer_getoverrun timer_delete restart_syscall""",
    ),
    _group(
        "signals",
        "between the processes of one sandbox",
        """rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_tgsigqueueinfo rt_sigsuspend
        rt_sigreturn sigaltstack""",
    ),
    _group(
        "identity",
        "one user id is mapped, so nothing can change to another",
        """getuid geteuid getgid getegid getresuid getresgid getgroups setuid setgid setreuid setregid setresuid
        setresgid setgroups setfsuid setfsgid capget capset""",
    ),
    _group("randomness", "the kernel's generator", "getrandom"),
    _group(
        "sockets",
        "unix sockets and loopback; other families are refused by the arguments of socket",
        """socket socketpair bind connect listen accept accept4 getsockname getpeername sendto recvfrom sendmsg recvmsg
        sendmmsg recvmmsg shutdown setsockopt getsockopt""",
    ),
)

BUILDING = (
    "clone3",
    "unshare",
    "setns",
    "mount",
    "umount2",
    "pivot_root",
    "open_tree",
    "move_mount",
    "mount_setattr",
    "sethostname",
    "seccomp",
    "landlock_create_ruleset",
    "landlock_add_rule",
    "landlock_restrict_self",
    "sched_setaffinity",
)
"""What the zygote and init need until the walls stand; the closing filter takes it away."""

ABSENT: tuple[str, ...] = (
    "clone3",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "inotify_init1",
    "inotify_add_watch",
    "inotify_rm_watch",
    "splice",
    "tee",
    "vmsplice",
)
"""Answered with ENOSYS, so that libraries fall back to what is allowed; all else is EPERM. inotify(7) watches inodes:
of a bound directory it tells what the host and every other sandbox open there, and its instances are counted
against whoever made the user namespace, so that one sandbox could leave the host's root with none."""

REFUSED_FCNTLS: Mapping[str, int] = {"F_SETLEASE": 1024, "F_NOTIFY": 1026}
"""fcntl(2): they tell of others' use of shared files, as inotify does."""

PEER_OPTIONS: Mapping[str, int] = {"SO_PASSPIDFD": 76, "SO_PEERPIDFD": 77}
"""unix(7): a handle on the process at the other end of the channel, which is the keeper."""

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
"""socket(2). AF_VSOCK and the like know no network namespace; every further family is more kernel to attack."""
INTERNET_TYPES: Mapping[str, int] = {"SOCK_STREAM": 1, "SOCK_DGRAM": 2}
INTERNET_PROTOCOLS: Mapping[str, int] = {"default": 0, "IPPROTO_TCP": 6, "IPPROTO_UDP": 17}
"""Others (SCTP, DCCP …) would have the kernel load modules."""
NETLINK_ROUTE = 0
"""netlink(7): the addresses and links of the sandbox's own network namespace."""

PRCTL_OPTIONS: Mapping[str, int] = {
    "PR_SET_PDEATHSIG": 1,
    "PR_GET_PDEATHSIG": 2,
    "PR_GET_DUMPABLE": 3,
    "PR_SET_DUMPABLE": 4,
    "PR_SET_NAME": 15,
    "PR_GET_NAME": 16,
    "PR_GET_SECCOMP": 21,
    "PR_CAPBSET_READ": 23,
    "PR_GET_SECUREBITS": 27,
    "PR_SET_TIMERSLACK": 29,
    "PR_GET_TIMERSLACK": 30,
    "PR_SET_CHILD_SUBREAPER": 36,
    "PR_GET_CHILD_SUBREAPER": 37,
    "PR_SET_NO_NEW_PRIVS": 38,
    "PR_GET_NO_NEW_PRIVS": 39,
    "PR_GET_TID_ADDRESS": 40,
    "PR_SET_THP_DISABLE": 41,
    "PR_GET_THP_DISABLE": 42,
    "PR_SET_VMA": 0x53564D41,
}

REFUSED_IOCTLS: Mapping[str, int] = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C, "TIOCSETD": 0x5423}
"""ioctl_tty(2): putting words into a terminal's mouth, the console, line disciplines."""

NEW_NAMESPACES = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWCGROUP
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
)

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_RET_ALLOW = 0x7FFF0000
_RET_KILL = 0x80000000
_RET_ERRNO = 0x00050000
_LOAD, _AND, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH, _ARG0, _ARG1, _ARG2, _ARG3 = 0, 4, 16, 24, 32, 40
_SOL_SOCKET, _SOL_TCP, _TCP_ULP, _MSG_OOB = 1, 6, 31, 1
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20
_TYPE_MASK = 0xF
_PER_QUERY_PERSONALITY = 0xFFFFFFFF

Instruction = tuple[int, int, int, int]
"""code, jump if true, jump if false, constant (linux/filter.h)."""


def _refuse(number: int = errno.EPERM) -> Instruction:
    return (_RETURN, 0, 0, _RET_ERRNO | number)


_ALLOW: Instruction = (_RETURN, 0, 0, _RET_ALLOW)
_KILL: Instruction = (_RETURN, 0, 0, _RET_KILL)


def _head(arch: str) -> list[Instruction]:
    """Another architecture's entry, or x32's, ends the process: its numbers mean other calls."""
    head: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_JEQ, 1, 0, _AUDIT_ARCH[arch]),
        _KILL,
        (_LOAD, 0, 0, _NR),
    ]
    if arch == "x86_64":
        head += [(_JGE, 0, 1, _X32_BIT), _KILL]
    return head


def _when(number: int, body: Sequence[Instruction]) -> list[Instruction]:
    """``body`` decides about the call ``number``; it must end in a return."""
    return [(_JEQ, 0, len(body), number), *body]


def _one_of(argument: int, values: Iterable[int], otherwise: Instruction) -> list[Instruction]:
    wanted = list(values)
    checks = [(_JEQ, len(wanted) - i, 0, value) for i, value in enumerate(wanted)]
    return [(_LOAD, 0, 0, argument), *checks, otherwise, _ALLOW]


def _none_of(argument: int, values: Iterable[int]) -> list[Instruction]:
    wanted = list(values)
    checks = [(_JEQ, len(wanted) - i, 0, value) for i, value in enumerate(wanted)]
    return [(_LOAD, 0, 0, argument), *checks, _ALLOW, _refuse()]


def _option(level: int, names: Iterable[int]) -> list[Instruction]:
    """setsockopt(2) and getsockopt(2) but for these options of ``level``."""
    body = _none_of(_ARG2, names)
    return [(_LOAD, 0, 0, _ARG1), (_JEQ, 0, len(body), level), *body]


def _without(argument: int, flag: int) -> list[Instruction]:
    return [(_LOAD, 0, 0, argument), (_JSET, 0, 1, flag), _refuse(errno.EOPNOTSUPP), _ALLOW]


def _socket() -> list[Instruction]:
    """By family, then type, then protocol."""
    types, protocols = list(INTERNET_TYPES.values()), list(INTERNET_PROTOCOLS.values())
    internet = [
        (_LOAD, 0, 0, _ARG1),
        (_AND, 0, 0, _TYPE_MASK),
        *((_JEQ, len(types) - i, 0, value) for i, value in enumerate(types)),
        _refuse(errno.EPROTONOSUPPORT),
        *_one_of(_ARG2, protocols, _refuse(errno.EPROTONOSUPPORT)),
    ]
    netlink = _one_of(_ARG2, [NETLINK_ROUTE], _refuse(errno.EPROTONOSUPPORT))
    return [
        (_LOAD, 0, 0, _ARG0),
        (_JEQ, 4, 0, AF_NETLINK),
        (_JEQ, 3 + len(netlink), 0, AF_INET),
        (_JEQ, 2 + len(netlink), 0, AF_INET6),
        (_JEQ, 1 + len(netlink) + len(internet), 0, AF_UNIX),
        _refuse(errno.EAFNOSUPPORT),
        *netlink,
        *internet,
        _ALLOW,
    ]


def _ranges(values: Iterable[int]) -> list[tuple[int, int]]:
    """Sorted, half-open ranges that cover exactly ``values``."""
    out: list[tuple[int, int]] = []
    for value in sorted(set(values)):
        if out and out[-1][1] == value:
            out[-1] = (out[-1][0], value + 1)
        else:
            out.append((value, value + 1))
    return out


def _search(bounds: Sequence[int], inside: bool) -> list[Instruction]:
    """A binary search over the edges of ranges: ``inside`` says what lies left of the first edge."""
    if not bounds:
        return [_ALLOW if inside else _refuse()]
    middle = len(bounds) // 2
    right = _search(bounds[middle + 1 :], inside ^ (middle % 2 == 0))
    left = _search(bounds[:middle], inside)
    if len(left) > 255:
        raise ValueError("the filter is too long for its jumps")
    return [(_JGE, len(left), 0, bounds[middle]), *left, *right]


def large_filter(arch: str = kernel.ARCH) -> list[Instruction]:
    """For the zygote: the allow-list, and for the while of building, what builds the walls."""
    nr = numbers(arch)
    program = _head(arch)
    program += _when(nr["socket"], _socket())
    program += _when(nr["socketpair"], _one_of(_ARG0, [AF_UNIX], _refuse(errno.EAFNOSUPPORT)))
    program += _when(nr["ioctl"], _none_of(_ARG1, REFUSED_IOCTLS.values()))
    program += _when(nr["personality"], _one_of(_ARG0, [0, _PER_QUERY_PERSONALITY], _refuse()))
    program += _when(nr["fcntl"], _none_of(_ARG1, REFUSED_FCNTLS.values()))
    for name in ("setsockopt", "getsockopt"):
        peer = _option(_SOL_SOCKET, PEER_OPTIONS.values())
        program += _when(nr[name], [*peer, *_option(_SOL_TCP, [_TCP_ULP]), _ALLOW])
    for name, argument in (("sendto", _ARG3), ("sendmsg", _ARG2), ("sendmmsg", _ARG3)):
        program += _when(nr[name], _without(argument, _MSG_OOB))
    clone = [(_LOAD, 0, 0, _ARG0), (_JSET, 0, 1, NEW_NAMESPACES), _refuse(), _ALLOW]
    program += _when(nr["clone"], clone)
    for name in ABSENT[1:]:
        program += _when(nr[name], [_refuse(errno.ENOSYS)])
    names = [name for group in ALLOWED for name in group.calls] + list(BUILDING)
    edges = [edge for pair in _ranges(nr[name] for name in names if name in nr) for edge in pair]
    newer = max(nr.values()) + 1
    program += [(_JGE, 0, 1, newer), _refuse(errno.ENOSYS)]
    return program + _search(edges, inside=False)


def closing_filter(arch: str = kernel.ARCH, *, memory_counted: bool = True) -> list[Instruction]:
    """For a sandbox whose walls stand: what built them is refused from here on. Where no controller counts memory,
    so is memory that no process shows as its own: memfd_create(2), and shared anonymous mappings."""
    nr = numbers(arch)
    program = _head(arch)
    if not memory_counted:
        shared = [(_JSET, 0, 2, _MAP_ANONYMOUS), (_JSET, 0, 1, _MAP_SHARED), _refuse(errno.ENOMEM), _ALLOW]
        program += _when(nr["mmap"], [(_LOAD, 0, 0, _ARG3), *shared])
        program += _when(nr["memfd_create"], [_refuse(errno.ENOSYS)])
    program += _when(nr["prctl"], _one_of(_ARG0, PRCTL_OPTIONS.values(), _refuse()))
    program += _when(nr["clone3"], [_refuse(errno.ENOSYS)])
    for name in BUILDING:
        if name != "clone3":
            program += _when(nr[name], [_refuse()])
    return [*program, _ALLOW]


def assemble(program: Sequence[Instruction]) -> bytes:
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)
