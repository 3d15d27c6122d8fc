"""What a server asks of the keeper for a sandbox: its shape, its lease, and what it shows and listens on."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from skillyard.ipc.channel import close_all
from skillyard.sandbox.native.inside import walls

MIB = 1 << 20
MOST_STREAMS = 260
MOST_DATAGRAMS = 4

Key = tuple[str, str]
"""What all sandboxes of one zygote have in common: environment and group."""


@dataclass(frozen=True, slots=True)
class Listen:
    """TCP and UDP ports of every address of a sandbox. Raises ValueError for too many and for what is not a port."""

    streams: tuple[int, ...]
    datagrams: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.streams) > MOST_STREAMS or len(self.datagrams) > MOST_DATAGRAMS:
            raise ValueError(f"at most {MOST_STREAMS} TCP and {MOST_DATAGRAMS} UDP ports can be listened on")
        if not all(type(port) is int and 1 <= port <= 65535 for port in (*self.streams, *self.datagrams)):
            raise ValueError("ports are numbers from 1 to 65535")


@dataclass(slots=True)
class Opened:
    """``taken`` ports are listened on already, by whoever got them earlier or by the sandbox's own programs."""

    sockets: list[socket.socket] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)

    def close(self) -> None:
        close_all(self.sockets)


@dataclass(frozen=True, slots=True)
class Show:
    """``target`` lies below one of walls.SHOWN, or is walls.TRUST; ``aliases`` beside it."""

    source: str
    target: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """What makes two sandboxes interchangeable before they are lent."""

    environment: str
    group: str
    memory_mb: int
    cpus: float
    pids: int
    disk_mb: int
    listen: Listen | None = None
    """What is listened on in its network ahead of time."""

    @property
    def key(self) -> Key:
        return self.environment, self.group


@dataclass(slots=True)
class Lease:
    """Who has it and for how long: ``owner`` is ``run`` or ``task``; ``timeout_ms`` for programs without their own;
    ``tenant`` is whose share of the host it uses."""

    key: str
    owner: str
    single: bool
    timeout_ms: int
    tenant: str = ""
    at: float = field(default_factory=time.monotonic)


def allowed(target: str, aliases: Sequence[str]) -> bool:
    """Whether something may be shown there: each path is one plain name directly below /skills or /blobs, or it is the
    file of certificates alone."""
    return (target == walls.TRUST and not aliases) or all(map(_plain, (target, *aliases)))


def _plain(target: str) -> bool:
    parent, _, name = target.rpartition("/")
    return parent in walls.SHOWN.values() and name not in ("", ".", "..") and "\0" not in name
