"""The filters that hold foreign code to the system calls it may make (seccomp(2)).

They deny by default. The large filter goes into the zygote once and is inherited; the small closing one goes into each
sandbox when its walls are built, and takes away the calls that built them. The lists of calls are here, those of
arguments in :mod:`skillyard.sandbox.native.linux.call_arguments`; ``docs/system-calls.md`` is made of both.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from skillyard.sandbox.native.linux import bpf, kernel
from skillyard.sandbox.native.linux.bpf import ALLOW, JEQ, JGE, KILL, LOAD, Instruction, refuse
from skillyard.sandbox.native.linux.call_arguments import (
    BUILDING_RULES,
    CLOSING_RULES,
    JAIL_RULES,
    RULES,
    UNCOUNTED_RULES,
    Rule,
)
from skillyard.sandbox.native.linux.syscall_numbers import numbers


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

BUILDING: Mapping[str, str] = {
    "clone3": "makes a sandbox with all its namespaces at once",
    "unshare": "a cgroup namespace, and the user namespace that maps one id",
    "mount": "the tmpfs of the workspace, /proc, its masks",
    "umount2": "takes away the scratch places of packages that are imported ahead",
    "sethostname": "a name that tells nothing",
    "seccomp": "the closing filter itself",
    "landlock_create_ruleset": "the Landlock wall",
    "landlock_add_rule": "the Landlock wall",
    "landlock_restrict_self": "the Landlock wall",
    "sched_setaffinity": "fixes the processors where no controller counts them",
}
"""Calls that the zygote needs until a sandbox's walls stand, and why. The closing filter takes them away."""

_WATCHES = (
    "inotify(7) watches inodes: of a bound directory it tells what the host and every other sandbox open there, and "
    "its instances are counted against the maker of the user namespace, so that one sandbox could leave "
    "the host with none"
)
_RINGS = "io_uring(7) makes calls that no filter sees"
_PIPES = "moving pages between pipes and files without a copy has a history of holes; copies do the same"

ABSENT: Mapping[str, str] = {
    "clone3": "its flags lie in memory, where no filter can read them; clone does the same with flags that it can",
    "io_uring_setup": _RINGS,
    "io_uring_enter": _RINGS,
    "io_uring_register": _RINGS,
    "inotify_init1": _WATCHES,
    "inotify_add_watch": _WATCHES,
    "inotify_rm_watch": _WATCHES,
    "splice": _PIPES,
    "tee": _PIPES,
    "vmsplice": _PIPES,
}
"""Answered with ENOSYS, so that libraries fall back to what is allowed, and why they are refused."""


_PROBES = (
    "Linux lets it through without asking any filter since user-space probes need it (x86_64); it serves its own "
    "trampolines only, and anybody else gets `SIGILL` or `ENXIO`"
)

UNFILTERED: Mapping[str, str] = {"uretprobe": _PROBES, "uprobe": _PROBES}
"""No filter of ours or of others refuses these on kernels that have them (6.11 and 6.18), and why."""


AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Of linux/audit.h: what the kernel calls the way by which a call came in."""

X32_BIT = 0x40000000


def large_filter(arch: str = kernel.ARCH) -> list[Instruction]:
    """For the zygote: the allow-list, and for the while of building, what builds the walls."""
    nr = numbers(arch)
    program = head(arch) + _rules((*RULES, *BUILDING_RULES), nr)
    for name in ABSENT:
        if name not in BUILDING:
            program += bpf.when(nr[name], [refuse(errno.ENOSYS)])
    names = [name for group in ALLOWED for name in group.calls] + list(BUILDING)
    newer = max(nr.values()) + 1
    program += [(JGE, 0, 1, newer), refuse(errno.ENOSYS)]
    return program + bpf.search(nr[name] for name in names if name in nr)


def closing_filter(
    arch: str = kernel.ARCH, *, memory_counted: bool = True, directories: bool = False
) -> list[Instruction]:
    """For a sandbox whose walls stand: what built them is refused from here on.

    Where no controller counts memory, so is memory that no process shows as its own, and with ``directories`` of the
    host the calls that would reach programs or rights of the host through a file.
    """
    nr = numbers(arch)
    program = head(arch)
    if not memory_counted:
        program += _rules(UNCOUNTED_RULES, nr)
    if directories:
        program += _rules(JAIL_RULES, nr)
    program += _rules(CLOSING_RULES, nr)
    for name in BUILDING:
        program += bpf.when(nr[name], [refuse(errno.ENOSYS if name in ABSENT else errno.EPERM)])
    return [*program, ALLOW]


def assemble(program: list[Instruction]) -> bytes:
    """As :func:`skillyard.sandbox.native.linux.kernel.install_filter` takes it."""
    return bpf.assemble(program)


def head(arch: str) -> list[Instruction]:
    """Another architecture's entry, or x32's, ends the process: its numbers mean other calls."""
    head: list[Instruction] = [
        (LOAD, 0, 0, bpf.ARCH),
        (JEQ, 1, 0, AUDIT_ARCH[arch]),
        KILL,
        (LOAD, 0, 0, bpf.NR),
    ]
    if arch == "x86_64":
        head += [(JGE, 0, 1, X32_BIT), KILL]
    return head


def _rules(rules: Iterable[Rule], nr: Mapping[str, int]) -> list[Instruction]:
    return [step for rule in rules for name in rule.calls if name in nr for step in bpf.when(nr[name], rule.body)]
