"""The system calls that the standard library lacks. Everything raises OSError with the call's name.

Numbers: asm/unistd_64.h and asm-generic/unistd.h; meanings: the man page of each call. Runs in the keeper, the
zygote and each sandbox's init, so it imports next to nothing.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from collections.abc import Mapping

ARCH = os.uname().machine
SUPPORTED = ARCH in ("x86_64", "aarch64")
_X86 = ARCH == "x86_64"

NR_PIDFD_SEND_SIGNAL, NR_PIDFD_OPEN, NR_CLONE3, NR_CLOSE_RANGE, NR_OPENAT2 = 424, 434, 435, 436, 437
NR_OPEN_TREE, NR_MOVE_MOUNT, NR_FSOPEN, NR_FSCONFIG, NR_FSMOUNT, NR_MOUNT_SETATTR = 428, 429, 430, 431, 432, 442
NR_LANDLOCK_CREATE_RULESET, NR_LANDLOCK_ADD_RULE, NR_LANDLOCK_RESTRICT_SELF = 444, 445, 446
NR_PIVOT_ROOT, NR_CAPSET, NR_SECCOMP, NR_CLONE = (155, 126, 317, 56) if _X86 else (41, 91, 277, 220)

CLONE_PIDFD, CLONE_PARENT, CLONE_INTO_CGROUP = 0x1000, 0x8000, 0x200000000
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 1 << 12, 1 << 14, 1 << 18, 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8
_MOUNT_ATTR_IDMAP = 0x100000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH = 0x4, 0x40
FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC, FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE = 1, 1, 1, 6
RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS = 0x01, 0x02, 0x04
AT_EMPTY_PATH, AT_RECURSIVE, AT_FDCWD = 0x1000, 0x8000, -100
_AT_EXECFN = 31
"""getauxval(3): the address of a word that the kernel put on top of the stack."""
_STACK_SLACK = 1 << 16

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS = 1, 4, 8
PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_SECUREBITS = 23, 24, 28
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
SECBITS_LOCKED = 0b11101111
"""NOROOT, NO_SETUID_FIXUP, KEEP_CAPS off but locked, NO_CAP_AMBIENT_RAISE, each with its lock: capabilities(7)."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_int, _word, _text = ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p
_libc.prctl.argtypes = [_int, _word, _word, _word, _word]
_libc.mount.argtypes = [_text, _text, _text, _word, _text]
_libc.umount2.argtypes = [_text, _int]
_libc.unshare.argtypes = [_int]
_libc.setns.argtypes = [_int, _int]
_libc.sethostname.argtypes = [_text, ctypes.c_size_t]
# PyDLL keeps the interpreter lock: a child made by a raw clone must come back into a runtime that holds it.
_locked = ctypes.PyDLL(None, use_errno=True)
_locked.syscall.restype = ctypes.c_long


def call(name: str, number: int, *args: object) -> int:
    """A raw system call; OSError naming it when it fails."""
    got: int = _libc.syscall(ctypes.c_long(number), *args)
    if got < 0:
        _fail(name)
    return got


def _fail(name: str) -> None:
    errno = ctypes.get_errno()
    raise OSError(errno, f"{name}: {os.strerror(errno)}")


def _checked(name: str, got: int) -> int:
    if got < 0:
        _fail(name)
    return got


def give_back_memory() -> None:
    """Gives free memory back to the kernel, where the C library can (malloc_trim(3)).

    Compiling our modules leaves a tenth of a zygote's pages free, and each fork would copy their entries.
    """
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def unshare(flags: int) -> None:
    _checked("unshare", _libc.unshare(flags))


def setns(fd: int, kind: int) -> None:
    _checked("setns", _libc.setns(fd, kind))


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    got = _libc.mount(
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        flags,
        data.encode() or None,
    )
    _checked(f"mount {target}", got)


def umount(target: str) -> None:
    _checked(f"umount {target}", _libc.umount2(target.encode(), MNT_DETACH))


def pivot_root(new: str, old: str) -> None:
    call("pivot_root", NR_PIVOT_ROOT, new.encode(), old.encode())


def open_tree(path: str, *, recursive: bool = False) -> int:
    """A detached copy of the mount at ``path``, as a descriptor (open_tree(2))."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    return call(f"open_tree {path}", NR_OPEN_TREE, ctypes.c_int(AT_FDCWD), os.fsencode(path), ctypes.c_uint(flags))


def open_tree_at(fd: int) -> int:
    """Returns a detached copy of the mount at ``fd``, without the mounts below it."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH
    return call("open_tree", NR_OPEN_TREE, ctypes.c_int(fd), b"", ctypes.c_uint(flags))


def move_mount(fd: int, target: str) -> None:
    """Attach a detached mount. A symbolic link at ``target`` is not followed."""
    call(
        f"move_mount {target}",
        NR_MOVE_MOUNT,
        ctypes.c_int(fd),
        b"",
        ctypes.c_int(AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(MOVE_MOUNT_F_EMPTY_PATH),
    )


def hang(fd: int, target: int) -> None:
    """Attaches a detached mount at the place of the descriptor ``target``."""
    call(
        "move_mount",
        NR_MOVE_MOUNT,
        ctypes.c_int(fd),
        b"",
        ctypes.c_int(target),
        b"",
        ctypes.c_uint(MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH),
    )


def new_tmpfs(options: Mapping[str, str], attributes: int) -> int:
    """Returns a fresh tmpfs as a detached mount (fsmount(2)), owned by our user namespace."""
    context = call("fsopen", NR_FSOPEN, b"tmpfs", ctypes.c_uint(FSOPEN_CLOEXEC))
    try:
        for name, value in options.items():
            _fsconfig(context, FSCONFIG_SET_STRING, name.encode(), value.encode())
        _fsconfig(context, FSCONFIG_CMD_CREATE, None, None)
        flags = ctypes.c_uint(FSMOUNT_CLOEXEC)
        return call("fsmount", NR_FSMOUNT, ctypes.c_int(context), flags, ctypes.c_uint(attributes))
    finally:
        os.close(context)


def _fsconfig(context: int, command: int, name: bytes | None, value: bytes | None) -> None:
    call("fsconfig", NR_FSCONFIG, ctypes.c_int(context), ctypes.c_uint(command), name, value, ctypes.c_int(0))


def open_place(path: str, resolve: int, at: int = AT_FDCWD) -> int:
    """Opens ``path`` below ``at`` by name only (O_PATH), within openat2(2)'s ``resolve``."""
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, 0, resolve)
    size = ctypes.c_size_t(len(how))
    return call(f"openat2 {path}", NR_OPENAT2, ctypes.c_int(at), os.fsencode(path), how, size)


def map_ids(fd: int, users: int) -> None:
    """Shows the files of the detached mount ``fd`` with the owners that ``users`` maps."""
    _mount_setattr(fd, "", struct.pack("QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, users), AT_EMPTY_PATH)


def mount_setattr(fd: int, path: str, add: int, *, recursive: bool = False) -> None:
    """Change a mount's flags; ``path`` empty means the mount behind ``fd``."""
    attr = struct.pack("QQQQ", add, 0, 0, 0)
    _mount_setattr(fd, path, attr, (0 if path else AT_EMPTY_PATH) | (AT_RECURSIVE if recursive else 0))


def _mount_setattr(fd: int, path: str, attr: bytes, flags: int) -> None:
    call(
        f"mount_setattr {path or fd}",
        NR_MOUNT_SETATTR,
        ctypes.c_int(fd),
        path.encode(),
        ctypes.c_uint(flags),
        attr,
        ctypes.c_size_t(len(attr)),
    )


def prctl(option: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
    got: int = _libc.prctl(option, a, b, c, d)
    if got < 0:
        _fail(f"prctl {option}")
    return got


def drop_capabilities() -> None:
    """Empties every capability set of this thread for good, the bounding set, too."""
    last = 63
    for cap in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0:
            last = cap
            break
    if last < 37:
        raise OSError(0, f"prctl capbset_drop: stopped at capability {last}")
    prctl(PR_SET_SECUREBITS, SECBITS_LOCKED)
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    hold_only()


def drop_all_held() -> None:
    """Empties the effective, permitted, inheritable and ambient sets of this thread."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    hold_only()


def hold_only(*capabilities: int) -> None:
    """Make these the effective, permitted and inheritable capabilities of this thread."""
    mask = sum(1 << number for number in capabilities)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = struct.pack("Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3
    call("capset", NR_CAPSET, header, struct.pack("6I", low, low, low, high, high, high))


def capabilities() -> int:
    """Returns how many capabilities this kernel knows."""
    return next(cap for cap in range(64) if _libc.prctl(PR_CAPBSET_READ, cap, 0, 0, 0) < 0)


def keep_capabilities() -> None:
    """Makes all capabilities ambient, so that they survive an exec by a user that is not 0."""
    count = capabilities()
    hold_only(*range(count))
    for cap in range(count):
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap)


class _CloneArgs(ctypes.Structure):
    _names = "flags pidfd child_tid parent_tid exit_signal stack stack_size tls set_tid set_tid_size cgroup"
    _fields_ = [(name, ctypes.c_uint64) for name in _names.split()]


def clone(flags: int, *, cgroup: int = -1) -> tuple[int, int]:
    """Calls clone3(2) like fork: returns (0, -1) in the child, (pid, pidfd) in the parent.

    With CLONE_PARENT the child is a sibling: our parent hears of its end and learns its use. The fork handlers of the
    interpreter and of libc do not run, and libc's cached thread id is stale: the caller must have one thread, and the
    child must run no foreign code.
    """
    pidfd = ctypes.c_int(-1)
    exit_signal = 0 if flags & CLONE_PARENT else 17
    args = _CloneArgs(flags=flags | CLONE_PIDFD, pidfd=ctypes.addressof(pidfd), exit_signal=exit_signal)
    if cgroup >= 0:
        args.flags |= CLONE_INTO_CGROUP
        args.cgroup = cgroup
    pid = _locked.syscall(ctypes.c_long(NR_CLONE3), ctypes.byref(args), ctypes.c_size_t(ctypes.sizeof(args)))
    if pid < 0:
        _fail("clone3")
    return (0, -1) if pid == 0 else (pid, pidfd.value)


def clone_sibling() -> tuple[int, int]:
    """Clones a sibling without namespaces by clone(2), which a container's filter allows."""
    pidfd = ctypes.c_int(-1)
    flags = ctypes.c_ulong(CLONE_PARENT | CLONE_PIDFD)
    nothing = ctypes.c_void_p(None)
    pid = _locked.syscall(ctypes.c_long(NR_CLONE), flags, nothing, ctypes.byref(pidfd), nothing, nothing)
    if pid < 0:
        _fail("clone")
    return (0, -1) if pid == 0 else (pid, pidfd.value)


def pidfd_open(pid: int) -> int:
    return call("pidfd_open", NR_PIDFD_OPEN, ctypes.c_int(pid), ctypes.c_uint(0))


def pidfd_kill(fd: int, signal: int = 9) -> bool:
    """Whether there was still something to signal."""
    got = _libc.syscall(
        ctypes.c_long(NR_PIDFD_SEND_SIGNAL), ctypes.c_int(fd), ctypes.c_int(signal), None, ctypes.c_uint(0)
    )
    return bool(got == 0)


def close_from(first: int) -> None:
    """Closes all descriptors from ``first`` on."""
    # The range ends at the largest descriptor: older gVisors refuse one that goes beyond.
    call("close_range", NR_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(0x7FFFFFFF), ctypes.c_uint(0))


def install_filter(assembled: bytes) -> None:
    """seccomp(2) in filter mode for this thread and all it makes, for good. Needs no_new_privs or CAP_SYS_ADMIN."""
    code = ctypes.create_string_buffer(assembled, len(assembled))
    program = struct.pack("HxxxxxxP", len(assembled) // 8, ctypes.addressof(code))
    call("seccomp", NR_SECCOMP, ctypes.c_uint(1), ctypes.c_uint(0), program)


def grow_stack(size: int) -> None:
    """Grows the stack of the first thread to the limit ``size``, at the price of one page. The limit counts the
    mapping, which grows down to any touched address in it."""
    _libc.getauxval.restype = ctypes.c_ulong
    top = _libc.getauxval(ctypes.c_ulong(_AT_EXECFN))
    if top:
        ctypes.memset(top - size + _STACK_SLACK, 0, 1)


def set_file_ids(uid: int, gid: int) -> None:
    """Sets the owner of files that this thread makes (setfsuid(2)); root keeps its rights."""
    _libc.setfsgid(ctypes.c_int(gid))
    _libc.setfsuid(ctypes.c_int(uid))


def sethostname(name: str) -> None:
    raw = name.encode()
    _checked("sethostname", _libc.sethostname(raw, len(raw)))


def signal_descriptor(signals: set[int]) -> int:
    """signalfd(2) for signals that the caller has blocked; non-blocking, close-on-exec."""
    mask = (ctypes.c_ulong * 16)()
    for number in signals:
        mask[0] |= 1 << (number - 1)
    return _checked("signalfd", _libc.signalfd(-1, ctypes.byref(mask), os.O_NONBLOCK | os.O_CLOEXEC))


_NAMED = {
    resource.RLIMIT_NPROC: "processes, ulimit -u",
    resource.RLIMIT_NOFILE: "open files, ulimit -n",
    resource.RLIMIT_DATA: "data in KiB, ulimit -d",
    resource.RLIMIT_FSIZE: "size of files, ulimit -f",
    resource.RLIMIT_MEMLOCK: "locked memory, ulimit -l",
    resource.RLIMIT_SIGPENDING: "pending signals, ulimit -i",
}


def set_limit(kind: int, value: int) -> None:
    """Sets a resource limit, soft and hard. Raises PermissionError that names the server's lower limit."""
    try:
        resource.setrlimit(kind, (value, value))
    except ValueError:
        raise PermissionError(refused_limit(kind, value)) from None


def refused_limit(kind: int, value: int) -> str:
    """Returns why a limit would be refused: the server has a lower one."""
    _, hard = resource.getrlimit(kind)
    name = _NAMED.get(kind, f"resource limit {kind}")
    return f"the server's own hard limit ({name}) is {hard}, and the sandbox needs {value}"
