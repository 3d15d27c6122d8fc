"""Rules for the arguments of system calls of foreign code, in words and as filter code.

One table, so that the filters (:mod:`skillyard.sandbox.native.linux.seccomp`) and ``docs/system-calls.md``
cannot differ.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from skillyard.sandbox.native.linux import bpf, kernel
from skillyard.sandbox.native.linux.bpf import ALLOW, AND, ARG0, ARG1, ARG2, ARG3, JEQ, JSET, LOAD, Instruction, refuse


def _table(text: str) -> Mapping[str, int]:
    """Reads words of the form name:number."""
    return {name: int(number, 0) for name, _, number in (word.partition(":") for word in text.split())}


FCNTLS = _table("""
    F_DUPFD:0 F_GETFD:1 F_SETFD:2 F_GETFL:3 F_SETFL:4 F_GETLK:5 F_SETLK:6 F_SETLKW:7 F_SETOWN:8 F_GETOWN:9 F_SETSIG:10
    F_GETSIG:11 F_SETOWN_EX:15 F_GETOWN_EX:16 F_DUPFD_QUERY:1027 F_DUPFD_CLOEXEC:1030 F_SETPIPE_SZ:1031
    F_GETPIPE_SZ:1032 F_ADD_SEALS:1033 F_GET_SEALS:1034
""")
PEER_OPTIONS: Mapping[str, int] = {"SO_PASSPIDFD": 76, "SO_PEERPIDFD": 77}
PROTOCOL_OPTIONS: Mapping[str, int] = {"TCP_ULP": 31}
FILTER_OPTIONS = _table("SO_ATTACH_FILTER:26 SO_ATTACH_BPF:50 SO_ATTACH_REUSEPORT_CBPF:51 SO_ATTACH_REUSEPORT_EBPF:52")
_GROUPS = "MCAST_JOIN_GROUP:42 MCAST_JOIN_SOURCE_GROUP:46 MCAST_MSFILTER:48"
IP_OPTIONS = _table(f"IP_ADD_MEMBERSHIP:35 IP_ADD_SOURCE_MEMBERSHIP:39 IP_MSFILTER:41 {_GROUPS}")
IPV6_OPTIONS = _table(f"IPV6_JOIN_GROUP:20 IPV6_JOIN_ANYCAST:27 IPV6_FLOWLABEL_MGR:32 {_GROUPS}")
IOCTLS = _table("""
    TCGETS:0x5401 TCSETS:0x5402 TCSETSW:0x5403 TCSETSF:0x5404 TCSBRK:0x5409 TCXONC:0x540a TCFLSH:0x540b
    TIOCSCTTY:0x540e TIOCGPGRP:0x540f TIOCSPGRP:0x5410 TIOCOUTQ:0x5411 TIOCGWINSZ:0x5413 TIOCSWINSZ:0x5414
    FIONREAD:0x541b FIONBIO:0x5421 TIOCNOTTY:0x5422 TIOCGSID:0x5429 TIOCGPTN:0x80045430 TIOCSPTLCK:0x40045431
    TIOCGPTPEER:0x5441 FIONCLEX:0x5450 FIOCLEX:0x5451 FIOASYNC:0x5452 TCGETS2:0x802c542a TCSETS2:0x402c542b
    TCSETSW2:0x402c542c TCSETSF2:0x402c542d FS_IOC_GETFLAGS:0x80086601 SIOCATMARK:0x8905 SIOCGIFNAME:0x8910
    SIOCGIFCONF:0x8912 SIOCGIFFLAGS:0x8913 SIOCSIFFLAGS:0x8914 SIOCGIFADDR:0x8915 SIOCGIFDSTADDR:0x8917
    SIOCGIFBRDADDR:0x8919 SIOCGIFNETMASK:0x891b SIOCGIFMTU:0x8921 SIOCGIFHWADDR:0x8927 SIOCGIFINDEX:0x8933
    SIOCGIFTXQLEN:0x8942 SIOCETHTOOL:0x8946 SIOCOUTQNSD:0x894b
""")
"""Requests for terminals, descriptors and sockets (ioctl_tty(2), netdevice(7)). ``SIOCSIFFLAGS`` brings the loopback up
when the walls are built; without CAP_NET_ADMIN the kernel refuses it."""
INTERFACES = [IOCTLS[name] for name in IOCTLS if name.startswith("SIOC") and name not in ("SIOCATMARK", "SIOCOUTQNSD")]
"""Requests that any socket answers about its network namespace."""

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
INTERNET_TYPES: Mapping[str, int] = {"SOCK_STREAM": 1, "SOCK_DGRAM": 2}
INTERNET_PROTOCOLS: Mapping[str, int] = {"default": 0, "IPPROTO_TCP": 6, "IPPROTO_UDP": 17}
NETLINK_ROUTE = 0

PRCTL_OPTIONS = _table("""
    PR_SET_PDEATHSIG:1 PR_GET_PDEATHSIG:2 PR_GET_DUMPABLE:3 PR_SET_DUMPABLE:4 PR_SET_NAME:15 PR_GET_NAME:16
    PR_GET_SECCOMP:21 PR_CAPBSET_READ:23 PR_GET_SECUREBITS:27 PR_SET_TIMERSLACK:29 PR_GET_TIMERSLACK:30
    PR_SET_CHILD_SUBREAPER:36 PR_GET_CHILD_SUBREAPER:37 PR_SET_NO_NEW_PRIVS:38 PR_GET_NO_NEW_PRIVS:39
    PR_GET_TID_ADDRESS:40 PR_SET_THP_DISABLE:41 PR_GET_THP_DISABLE:42 PR_SET_VMA:0x53564d41
""")

_NAMESPACES = "NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET"
NAMESPACE_FLAGS: Mapping[str, int] = {f"CLONE_{name}": getattr(kernel, f"CLONE_{name}") for name in _NAMESPACES.split()}
NEW_NAMESPACES = sum(NAMESPACE_FLAGS.values())

_SOL_IP, _SOL_SOCKET, _SOL_TCP, _SOL_IPV6, _MSG_OOB = 0, 1, 6, 41, 1
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x01, 0x20, 0x40000
_MFD_HUGETLB = 0x4
_CLOSE_RANGE_UNSHARE = 0x2
_CLONE_FILES, _CLONE_THREAD = 0x400, 0x10000
_RLIMIT_CORE = 4
_FIRST, _PRIO_USER, _IOPRIO_WHO_USER = 1, 2, 3
_TYPE_MASK = 0xF
_PER_QUERY_PERSONALITY = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for ``calls``: ``says`` tells the arguments that pass; ``body`` decides it."""

    calls: tuple[str, ...]
    says: str
    why: str
    body: tuple[Instruction, ...]


def _names(values: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in values)


def _socket() -> list[Instruction]:
    """By family, then type, then protocol."""
    types, protocols = list(INTERNET_TYPES.values()), list(INTERNET_PROTOCOLS.values())
    internet = [
        (LOAD, 0, 0, ARG1),
        (AND, 0, 0, _TYPE_MASK),
        *((JEQ, len(types) - i, 0, value) for i, value in enumerate(types)),
        refuse(errno.EPROTONOSUPPORT),
        *bpf.one_of(ARG2, protocols, refuse(errno.EPROTONOSUPPORT)),
    ]
    netlink = bpf.one_of(ARG2, [NETLINK_ROUTE], refuse(errno.EPROTONOSUPPORT))
    return [
        (LOAD, 0, 0, ARG0),
        (JEQ, 4, 0, AF_NETLINK),
        (JEQ, 3 + len(netlink), 0, AF_INET),
        (JEQ, 2 + len(netlink), 0, AF_INET6),
        (JEQ, 1 + len(netlink) + len(internet), 0, AF_UNIX),
        refuse(errno.EAFNOSUPPORT),
        *netlink,
        *internet,
        ALLOW,
    ]


def _but_options(level: int, names: Iterable[int]) -> list[Instruction]:
    """Refuses these options of ``level``, and falls through for other levels."""
    body = bpf.none_of(ARG2, names)
    return [(LOAD, 0, 0, ARG1), (JEQ, 0, len(body), level), *body]


def _options() -> list[Instruction]:
    by_level = (
        (_SOL_SOCKET, [*PEER_OPTIONS.values(), *FILTER_OPTIONS.values()]),
        (_SOL_TCP, PROTOCOL_OPTIONS.values()),
        (_SOL_IP, IP_OPTIONS.values()),
        (_SOL_IPV6, IPV6_OPTIONS.values()),
    )
    return [step for level, names in by_level for step in _but_options(level, names)] + [ALLOW]


def _no_urgent_data(call: str, argument: int) -> Rule:
    return Rule(
        (call,),
        "not with `MSG_OOB` (`EOPNOTSUPP`)",
        "urgent data is a rarely used path of the kernel that has been a way in",
        tuple(bpf.without(argument, _MSG_OOB, refuse(errno.EOPNOTSUPP))),
    )


_CORE_STAYS = (
    "core(5): with the limit 0 a crash is still piped into the host's core dump handler, which runs as root; with 1 it "
    "is not. Programs that keep secrets set 0 and give up when they may not"
)


def _core_stays(kind: int, given: int, asked: int | None = None) -> list[Instruction]:
    """Of setrlimit(2) and prlimit(2): ``given`` and ``asked`` are pointers, to what is to be set and to where the old
    value is wanted, which nobody would write."""
    done = [refuse(0)]
    if asked is not None:
        done = [*bpf.unless_null(asked, [refuse(errno.EPERM)]), refuse(0)]
    return [(LOAD, 0, 0, kind), (JEQ, 1, 0, _RLIMIT_CORE), ALLOW, *bpf.unless_null(given, done), ALLOW]


_NOT_THE_FIRST = (
    "the first process starts every program of a sandbox, and what it has they inherit: one that changed it would slow "
    "down or end those of later calls in a session"
)


def _but(argument: int, value: int) -> list[Instruction]:
    """Refuses this value, and falls through for others."""
    return [(LOAD, 0, 0, argument), (JEQ, 0, 1, value), refuse()]


def _not_the_first(call: str, user: int) -> Rule:
    return Rule(
        (call,),
        "not for the process 1, and not for a user",
        _NOT_THE_FIRST,
        (*_but(ARG0, user), *_but(ARG1, _FIRST), ALLOW),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        ("socket",),
        f"`AF_UNIX`; `AF_INET` and `AF_INET6` with {_names(INTERNET_TYPES)} and the protocols "
        f"{_names(INTERNET_PROTOCOLS)}; `AF_NETLINK` with `NETLINK_ROUTE` (others: `EAFNOSUPPORT`, `EPROTONOSUPPORT`)",
        "AF_VSOCK and the like know no network namespace; other families and protocols are more kernel to attack, or "
        "have it load modules; routing netlink shows the sandbox's own addresses",
        tuple(_socket()),
    ),
    Rule(
        ("socketpair",),
        "`AF_UNIX` (others: `EAFNOSUPPORT`)",
        "as for socket",
        tuple(bpf.one_of(ARG0, [AF_UNIX], refuse(errno.EAFNOSUPPORT))),
    ),
    Rule(
        ("ioctl",),
        f"{_names(IOCTLS)} (others: `ENOTTY`)",
        "ioctl_tty(2): putting words into a terminal's mouth, the console, line disciplines; ioctl_iflags(2) and each "
        "file system's own commands change what others see of a file, or take space that no limit counts",
        tuple(bpf.one_of(ARG1, IOCTLS.values(), refuse(errno.ENOTTY))),
    ),
    Rule(
        ("personality",),
        "0 and the query 0xffffffff",
        "others take away address randomisation or make memory executable",
        tuple(bpf.one_of(ARG0, [0, _PER_QUERY_PERSONALITY], refuse())),
    ),
    Rule(
        ("fcntl",),
        f"{_names(FCNTLS)} (others: `EINVAL`)",
        "fcntl(2): leases and notes tell of others' use of shared files, as inotify does; a write hint changes a file "
        "for all who have it; locks of open file descriptions (`F_OFD_SETLK`) have no process that they could be "
        "counted with",
        tuple(bpf.one_of(ARG1, FCNTLS.values(), refuse(errno.EINVAL))),
    ),
    Rule(
        ("setsockopt", "getsockopt"),
        f"any option but {_names(PEER_OPTIONS)}; {_names(PROTOCOL_OPTIONS)}; {_names(FILTER_OPTIONS)}; "
        f"{_names(dict.fromkeys((*IP_OPTIONS, *IPV6_OPTIONS)))}",
        "unix(7): a handle on the process at the other end of the channel, which is the keeper; protocols above TCP "
        "are modules of the kernel; programs for packets are compiled into a store of the host's that has an end; "
        "multicast groups are memory that nobody counts, and flow labels a number of the host's",
        tuple(_options()),
    ),
    _no_urgent_data("sendto", ARG3),
    _no_urgent_data("sendmsg", ARG2),
    _no_urgent_data("sendmmsg", ARG3),
    Rule(
        ("clone",),
        f"without {_names(NAMESPACE_FLAGS)}; `CLONE_FILES` with `CLONE_THREAD` and not without",
        "a new user namespace would give capabilities over new namespaces, and with them much more kernel; threads "
        "have the descriptors of their process and no other process has them, so that the keeper sees all locks",
        (
            (LOAD, 0, 0, ARG0),
            (JSET, 0, 1, NEW_NAMESPACES),
            refuse(),
            (AND, 0, 0, _CLONE_FILES | _CLONE_THREAD),
            (JEQ, 1, 0, 0),
            (JEQ, 0, 1, _CLONE_FILES | _CLONE_THREAD),
            ALLOW,
            refuse(),
        ),
    ),
    Rule(
        ("close_range",),
        "not with `CLOSE_RANGE_UNSHARE` (`EINVAL`)",
        "as for clone: it gives a thread descriptors of its own",
        tuple(bpf.without(ARG2, _CLOSE_RANGE_UNSHARE, refuse(errno.EINVAL))),
    ),
    Rule(
        ("mmap",),
        "not with `MAP_HUGETLB` (`ENOMEM`)",
        "huge pages are a pool that the host keeps for others, and no memory limit counts them",
        tuple(bpf.without(ARG3, _MAP_HUGETLB, refuse(errno.ENOMEM))),
    ),
    Rule(
        ("memfd_create",),
        "not with `MFD_HUGETLB` (`EINVAL`)",
        "as for mmap",
        tuple(bpf.without(ARG1, _MFD_HUGETLB, refuse(errno.EINVAL))),
    ),
)
"""In the large filter, from the zygote on."""

CLOSING_RULES: tuple[Rule, ...] = (
    Rule(
        ("prctl",),
        f"{_names(PRCTL_OPTIONS)}",
        "building the walls needs others; no further filter, no capability, no change of the memory map's borders",
        tuple(bpf.one_of(ARG0, PRCTL_OPTIONS.values(), refuse())),
    ),
    Rule(
        ("prlimit64",),
        "not for the process 1; any limit; `RLIMIT_CORE` can be read, and setting it is answered as done and does "
        "nothing (`EPERM` where the old value is wanted too)",
        f"{_NOT_THE_FIRST}. {_CORE_STAYS}",
        (*_but(ARG0, _FIRST), *_core_stays(ARG1, ARG2, ARG3)),
    ),
    Rule(
        ("sched_setscheduler", "sched_setparam"),
        "not for the process 1",
        _NOT_THE_FIRST,
        (*_but(ARG0, _FIRST), ALLOW),
    ),
    _not_the_first("setpriority", _PRIO_USER),
    _not_the_first("ioprio_set", _IOPRIO_WHO_USER),
    Rule(("setrlimit",), "as prlimit64", _CORE_STAYS, tuple(_core_stays(ARG0, ARG1))),
)
"""In the closing filter, once the walls stand."""

BUILDING_RULES: tuple[Rule, ...] = (
    Rule(
        ("mount",),
        "no `MS_REMOUNT` without `MS_RDONLY`",
        "packages are imported ahead in a zygote, which mounts and whose root is read-only: what it shows may be the "
        "server's own files",
        (
            (LOAD, 0, 0, ARG3),
            (JSET, 0, 2, kernel.MS_REMOUNT),
            (JSET, 1, 0, kernel.MS_RDONLY),
            refuse(),
            ALLOW,
        ),
    ),
)
"""In the large filter, of what builds the walls."""

UNCOUNTED_RULES: tuple[Rule, ...] = (
    Rule(
        ("mmap",),
        "not with `MAP_SHARED` and `MAP_ANONYMOUS` together (`ENOMEM`)",
        "memory that no process shows as its own escapes the keeper's watch",
        (
            (LOAD, 0, 0, ARG3),
            (JSET, 0, 2, _MAP_ANONYMOUS),
            (JSET, 0, 1, _MAP_SHARED),
            refuse(errno.ENOMEM),
            ALLOW,
        ),
    ),
    Rule(("memfd_create",), "never (`ENOSYS`)", "as for mmap", (refuse(errno.ENOSYS),)),
)
"""In the closing filter, where no cgroup controller counts memory."""


_SET_IDS = 0o6000
_STREAM, _SEQPACKET = 1, 5
_O_CREAT, _O_TMPFILE = 0o100, 0o20000000
_RISE = (
    "files in a directory of the host belong to its user there: a set-user-ID or set-group-ID bit would lend that user "
    "to everybody on the host"
)
_REACH = (
    "a socket that lies in a directory of the host has a program of the host at its other end, and no mount namespace "
    "is in between (unix(7))"
)


def _no_set_ids(calls: tuple[str, ...], mode: int) -> Rule:
    return Rule(
        calls, "not with a mode that sets a user or a group", _RISE, tuple(bpf.without(mode, _SET_IDS, refuse()))
    )


def _no_set_ids_when_made(call: str, flags: int, mode: int) -> Rule:
    """Of calls whose mode counts only when they make a file."""
    body = (
        (LOAD, 0, 0, flags),
        (JSET, 1, 0, _O_CREAT | _O_TMPFILE),
        ALLOW,
        *bpf.without(mode, _SET_IDS, refuse()),
    )
    return Rule((call,), "makes no file with a mode that sets a user or a group", _RISE, body)


JAIL_RULES: tuple[Rule, ...] = (
    _no_set_ids(("chmod", "fchmod", "creat", "mknod"), ARG1),
    _no_set_ids(("fchmodat", "fchmodat2", "mknodat"), ARG2),
    _no_set_ids_when_made("open", ARG1, ARG2),
    _no_set_ids_when_made("openat", ARG2, ARG3),
    Rule(
        ("openat2",),
        "never (`ENOSYS`)",
        f"its mode lies in memory, where no filter can read it; {_RISE}",
        (refuse(errno.ENOSYS),),
    ),
    Rule(
        ("socket",),
        "not `AF_UNIX` (`EAFNOSUPPORT`)",
        _REACH,
        ((LOAD, 0, 0, ARG0), (JEQ, 1, 0, AF_UNIX), ALLOW, refuse(errno.EAFNOSUPPORT)),
    ),
    Rule(
        ("socketpair",),
        "`SOCK_STREAM` and `SOCK_SEQPACKET`, which can be connected to nothing else (others: `EPROTONOSUPPORT`)",
        _REACH,
        (
            (LOAD, 0, 0, ARG1),
            (AND, 0, 0, _TYPE_MASK),
            (JEQ, 2, 0, _STREAM),
            (JEQ, 1, 0, _SEQPACKET),
            refuse(errno.EPROTONOSUPPORT),
            ALLOW,
        ),
    ),
)
"""In the closing filter of a sandbox that shows directories of the host."""
