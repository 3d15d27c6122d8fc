"""The processes that may order jails of a server: its user's, not confined by more than it.

The user of a socket's other end is not enough. An agent's own sandbox may show a program the files of its user, and
with them the socket; a jail that such a program orders would have what the program has not. So the kernel is asked
which process it is, and that process is compared with this one.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Mapping
from pathlib import Path

from skillyard.ipc.peers import peer
from skillyard.values import dataclass

_SO_PEERPIDFD = 77
"""Gives the process of the other end (unix(7), since Linux 6.5)."""
_NAMESPACES = ("user", "mnt", "pid", "net")
_IDS = ("Uid", "Gid")


class NotAdmitted(Exception):
    """The other end may not order a jail; the text says why."""


def check_peer(sock: socket.socket) -> None:
    """Raises NotAdmitted for an end that may not order a jail."""
    _, uid = peer(sock)
    if uid != os.geteuid():
        raise NotAdmitted(f"a process of the user {uid} asks, and the server is of {os.geteuid()}")
    try:
        pidfd = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        raise NotAdmitted(f"the kernel does not say which process asks (Linux 6.5 does): {error.strerror}") from None
    try:
        theirs = Standing.of(_pid(pidfd))
        if select.select([pidfd], [], [], 0)[0]:
            raise NotAdmitted("the process that asked has ended")
    except (OSError, ValueError) as error:
        raise NotAdmitted(f"the process that asks cannot be looked at: {error}") from None
    finally:
        os.close(pidfd)
    if why := theirs.lacks(Standing.of(os.getpid())):
        raise NotAdmitted(why)


@dataclass(frozen=True, slots=True)
class Standing:
    """The rights of a process, as far as /proc tells them."""

    ids: tuple[str, ...]
    groups: frozenset[str]
    capabilities: int
    no_new_privs: int
    filters: int
    label: str
    root: tuple[int, int]
    namespaces: Mapping[str, str]

    @classmethod
    def of(cls, pid: int) -> Standing:
        """Raises OSError, ValueError for one that cannot be looked at."""
        place = Path(f"/proc/{pid}")
        told = dict(line.partition(":")[::2] for line in (place / "status").read_text("utf-8", "replace").splitlines())
        root = (place / "root").stat()
        return cls(
            ids=tuple(" ".join(told[name].split()) for name in _IDS),
            groups=frozenset(told["Groups"].split()),
            capabilities=int(told["CapEff"], 16),
            no_new_privs=int(told["NoNewPrivs"]),
            filters=int(told.get("Seccomp_filters", "0")),
            label=_label(place / "attr" / "current"),
            root=(root.st_dev, root.st_ino),
            namespaces={name: str((place / "ns" / name).readlink()) for name in _NAMESPACES},
        )

    def lacks(self, server: Standing) -> str:
        """Returns how this process is confined more than ``server``; nothing when it is not."""
        others = [name for name, inode in server.namespaces.items() if self.namespaces[name] != inode]
        why = {
            f"it has other namespaces than the server: {', '.join(others)}": others,
            "it has another root directory than the server": self.root != server.root,
            "its user and group ids are not those of the server": self.ids != server.ids,
            "the server is in groups that it is not in": not server.groups <= self.groups,
            "the server has capabilities that it has not": server.capabilities & ~self.capabilities,
            "it may gain no privileges, and the server may": self.no_new_privs > server.no_new_privs,
            "it has more filters of system calls than the server": self.filters > server.filters,
            "its label of a security module is not the server's": self.label != server.label,
        }
        return next((text for text, holds in why.items() if holds), "")


def _pid(pidfd: int) -> int:
    """Returns the pid in our namespace. Raises ValueError for one that has none here."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("Pid:") and (pid := int(line.split()[1])) > 0:
            return pid
    raise ValueError("it has no number here")


def _label(file: Path) -> str:
    """Returns the label of AppArmor, SELinux or Smack; empty where there is none."""
    try:
        return file.read_text("utf-8", "replace").strip("\0\n")
    except OSError:
        return ""
