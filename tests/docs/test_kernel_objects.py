"""The table of kernel objects in ``docs/limits.md``: no call is forgotten, and each bound is met by an attack."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from skillyard.sandbox.native.linux import seccomp
from skillyard.verify.families import everything

ROOT = Path(__file__).parents[2]
MADE_BY, BOUND, SHOWN_BY = 1, 4, 5

MAKE_NOTHING = """
read readv pread64 preadv preadv2 lseek close_range ioctl fsync fdatasync fadvise64 readahead sync_file_range
cachestat access faccessat faccessat2 stat fstat lstat newfstatat statx readlink readlinkat getcwd chdir fchdir rmdir
unlink unlinkat rename renameat renameat2 chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes
utimensat futimesat umask getdents getdents64 statfs fstatfs getxattr lgetxattr fgetxattr listxattr llistxattr
flistxattr poll ppoll select pselect6 epoll_wait epoll_pwait epoll_pwait2 timerfd_settime timerfd_gettime msync
mincore munlock munlockall membarrier execve execveat exit exit_group wait4 waitid getpid getppid gettid getpgid
setpgid getpgrp getsid setsid set_tid_address set_robust_list get_robust_list rseq prctl arch_prctl personality
sched_yield sched_getaffinity sched_getparam sched_setparam sched_getscheduler sched_setscheduler
sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_getattr getpriority setpriority ioprio_get
ioprio_set getcpu getrlimit setrlimit prlimit64 getrusage times sysinfo uname futex futex_waitv futex_wake futex_wait
futex_requeue nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time alarm pause getitimer setitimer
timer_settime timer_gettime timer_getoverrun timer_delete restart_syscall rt_sigaction rt_sigprocmask rt_sigpending
rt_sigtimedwait rt_sigsuspend rt_sigreturn sigaltstack getuid geteuid getgid getegid getresuid getresgid getgroups
setuid setgid setreuid setregid setresuid setresgid setgroups setfsuid setfsgid capget capset getrandom getsockname
getpeername recvfrom recvmsg recvmmsg getsockopt
"""
"""Calls that leave nothing behind in the kernel that they did not find there, or a field of what is there already."""


def rows() -> list[list[str]]:
    text = (ROOT / "docs" / "limits.md").read_text("utf-8")
    table = text.partition("## What the kernel makes for a run")[2].partition("\n\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def test_each_allowed_call_has_a_row_or_makes_nothing() -> None:
    allowed = {name for group in seccomp.ALLOWED for name in group.calls}
    making = {name for row in rows() for name in names(row[MADE_BY])}
    nothing = set(MAKE_NOTHING.split())
    assert making & nothing == set()
    assert making | nothing == allowed


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_each_bound_is_met(row: list[str]) -> None:
    """By an attack of ``skillyard verify``, or by a test."""
    attacks = {attack.name for attack in everything()}
    assert len(row) == 7
    assert row[BOUND]
    shown = names(row[SHOWN_BY])
    assert shown
    for name in shown - attacks:
        path, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text("utf-8"), name
