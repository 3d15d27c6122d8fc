"""A server's request for a sandbox: its shape, its lease, and its files and ports."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from skillyard.ipc.channel import close_all
from skillyard.sandbox.native.inside import walls

MIB = 1 << 20
MOST_STREAMS = 260
MOST_DATAGRAMS = 4

Key = tuple[str, str, bool]
"""Environment, group and whether ports are forwarded, which all sandboxes of one zygote have in common."""


@dataclass(frozen=True, slots=True)
class Listen:
    """TCP and UDP ports of every address. Raises ValueError for too many or invalid ones."""

    streams: tuple[int, ...]
    datagrams: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.streams) > MOST_STREAMS or len(self.datagrams) > MOST_DATAGRAMS:
            raise ValueError(f"at most {MOST_STREAMS} TCP and {MOST_DATAGRAMS} UDP ports can be listened on")
        if not all(type(port) is int and 1 <= port <= 65535 for port in (*self.streams, *self.datagrams)):
            raise ValueError("ports are numbers from 1 to 65535")


@dataclass(slots=True)
class Opened:
    """Opened sockets. ``taken`` ports had a listener already, ours or the sandbox's own."""

    sockets: list[socket.socket] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)

    def close(self) -> None:
        close_all(self.sockets)


@dataclass(frozen=True, slots=True)
class Show:
    """A source to show at ``target``, below walls.SHOWN or walls.TRUST; ``aliases`` beside it."""

    source: str
    target: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory of the host to show at its own path; ``device`` and ``inode`` name it.

    Files of ``uid`` and ``gid`` belong to the sandbox's user.
    """

    path: str
    device: int
    inode: int
    uid: int
    gid: int
    writable: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties by which two ready sandboxes are interchangeable."""

    environment: str
    group: str
    memory_mb: int
    cpus: float
    pids: int
    disk_mb: int
    listen: Listen | None = None
    """Ports with listeners ahead of time."""
    forwarding: bool = False
    """Whether programs need another zygote to listen."""
    read_only: str = ""
    """Names of walls.WRITABLE with commas between, which are read-only all the same."""
    single: bool = False
    """Whether it is for one guest program, where the ground makes such sandboxes otherwise."""

    terminals: bool = False

    def __post_init__(self) -> None:
        if self.read_only and not set(self.closed) <= walls.WRITABLE.keys():
            raise ValueError(f"a sandbox has no such places: {self.read_only}")

    @property
    def closed(self) -> tuple[str, ...]:
        """The places of ``read_only``."""
        return tuple(filter(None, self.read_only.split(",")))

    @property
    def told(self) -> dict[str, Any]:
        """Returns the fields as the server tells them: those of a usual value are left out."""
        own = (field for field in fields(self) if field.name not in ("listen", "single"))
        return {each.name: value for each in own if (value := getattr(self, each.name)) != each.default}

    @property
    def key(self) -> Key:
        return self.environment, self.group, self.forwarding


@dataclass(slots=True)
class Lease:
    """The lease of a sandbox: ``owner`` is ``run`` or ``task``, ``tenant`` the principal.

    ``timeout_ms`` is for programs without their own. ``command`` says that its one program is none of our guest's.
    """

    key: str
    owner: str
    single: bool
    timeout_ms: int
    tenant: str = ""
    command: bool = False
    at: float = field(default_factory=time.monotonic)


def allowed(target: str, aliases: Sequence[str]) -> bool:
    """Returns whether something may be shown there.

    Each path is a plain name directly below /skills or /blobs, or the file of certificates alone.
    """
    return (target == walls.TRUST and not aliases) or all(map(_plain, (target, *aliases)))


def _plain(target: str) -> bool:
    parent, _, name = target.rpartition("/")
    return parent in walls.SHOWN.values() and name not in ("", ".", "..") and "\0" not in name
