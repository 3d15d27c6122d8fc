"""The system calls that foreign code may make, in groups, and those that are gone or pretend to be.

The lists from which the filters are made (:mod:`skillyard.sandbox.native.linux.seccomp`) and ``docs/system-calls.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
    "umount2": "takes away the place where the tmpfs was first mounted",
    "sethostname": "a name that tells nothing",
    "seccomp": "the closing filter itself",
    "landlock_create_ruleset": "the Landlock wall",
    "landlock_add_rule": "the Landlock wall",
    "landlock_restrict_self": "the Landlock wall",
    "sched_setaffinity": "fixes the processors where no controller counts them",
}
"""What the zygote needs until a sandbox's walls stand, and for what; the closing filter takes it away."""

_WATCHES = (
    "inotify(7) watches inodes: of a bound directory it tells what the host and every other sandbox open there, and "
    "its instances are counted against whoever made the user namespace, so that one sandbox could leave "
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
