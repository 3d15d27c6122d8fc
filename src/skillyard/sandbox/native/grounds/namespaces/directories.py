"""Directories of the host in the root of a jail's sandbox.

Other jails may write beside them meanwhile. So each is opened once, without following a link, and compared with the one
that was meant; the mount is made of that descriptor. It comes without the mounts below it, and without devices.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections.abc import Sequence
from contextlib import ExitStack

from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.keeper.request import Directory
from skillyard.sandbox.native.linux import kernel, namespaces

_NO_LINKS = kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS
_QUIET = kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV


def opened(directories: Sequence[Directory], owner: int | None) -> list[int]:
    """Returns a detached mount of each directory, which the caller closes.

    Files of its user belong to the id ``owner`` in it; None where that is the user's own. Raises OSError that names the
    directory; nothing is open then.
    """
    with ExitStack() as stack:
        mounts = []
        for each in directories:
            mounts.append(_mount(each, owner))
            stack.callback(os.close, mounts[-1])
        stack.pop_all()
        return mounts


def hang(directories: Sequence[Directory], mounts: Sequence[int]) -> None:
    """Attaches the mounts in the root that the working directory is to become. Raises OSError."""
    for number, (each, mount) in enumerate(zip(directories, mounts, strict=True)):
        target = walls.held(number) if walls.is_private(each.path) else each.path
        place = target.lstrip("/")
        os.makedirs(place, 0o755, exist_ok=True)
        fd = kernel.open_place(place, _NO_LINKS | kernel.RESOLVE_NO_XDEV)
        try:
            kernel.hang(mount, fd)
        except OSError as error:
            raise OSError(error.errno, f"{each.path}: {error.strerror}") from None
        finally:
            os.close(fd)


def _mount(each: Directory, owner: int | None) -> int:
    try:
        source = kernel.open_place(each.path, _NO_LINKS)
    except OSError as error:
        why = "a part of its path is a link" if error.errno == errno.ELOOP else os.strerror(error.errno or 0)
        raise OSError(error.errno, f"{each.path}: {why}") from None
    try:
        found = os.fstat(source)
        if not stat.S_ISDIR(found.st_mode) or (found.st_dev, found.st_ino) != (each.device, each.inode):
            raise OSError(0, f"{each.path}: another file is at this place than a moment ago")
        return _quieted(_copy(source, each.path), each, owner)
    finally:
        os.close(source)


def _copy(source: int, path: str) -> int:
    try:
        return kernel.open_tree_at(source)
    except OSError as error:
        # EINVAL says that something is mounted below it which our user namespace may not uncover.
        why = "something is mounted below it" if error.errno == errno.EINVAL else os.strerror(error.errno or 0)
        raise OSError(error.errno, f"{path}: cannot be shown: {why}") from None


def _quieted(mount: int, each: Directory, owner: int | None) -> int:
    """Returns ``mount`` with its flags, and its files as the sandbox's own."""
    try:
        kernel.mount_setattr(
            mount, "", _QUIET | (kernel.MOUNT_ATTR_NOEXEC if each.writable else kernel.MOUNT_ATTR_RDONLY)
        )
        if owner is not None:
            _own(mount, each, owner)
    except BaseException:
        os.close(mount)
        raise
    return mount


def _own(mount: int, each: Directory, owner: int) -> None:
    """Maps the files of the directory's user to ``owner``, and no others (mount_setattr(2))."""
    users = _user_namespace(each, owner)
    try:
        kernel.map_ids(mount, users)
    except OSError as error:
        why = f"its file system cannot map files to another user: {os.strerror(error.errno or 0)}"
        raise OSError(error.errno, f"{each.path}: {why}") from None
    finally:
        os.close(users)


def _user_namespace(each: Directory, owner: int) -> int:
    """Returns a user namespace that maps the directory's user and group to ``owner``."""
    said, saying = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            kernel.unshare(kernel.CLONE_NEWUSER)
            os.write(saying, b"x")
            while True:
                signal.pause()
        finally:
            os._exit(1)
    os.close(saying)
    try:
        if not os.read(said, 1):
            raise OSError(0, "no user namespace to map files with")
        for name, shown in (("uid_map", each.uid), ("gid_map", each.gid)):
            namespaces.write(f"/proc/{pid}/{name}", f"{shown} {owner} 1")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(said)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
