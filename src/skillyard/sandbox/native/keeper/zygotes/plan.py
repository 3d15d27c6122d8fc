"""How zygotes are made and kept."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Protocol

from skillyard.sandbox.native.grounds.namespaces.pid_space import PidSpace
from skillyard.sandbox.native.groups.groups import Group


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How zygotes are kept. All forks of one share its address layout and hash seed, so none serves for more than
    ``runs`` clones or ``seconds``, nor waits for longer unused. One that imports modules ahead may take ``import_s``
    seconds for each, and may then hold ``preload_mb``; all together ``total_mb``."""

    runs: int = 2000
    seconds: float = 1800.0
    preload_mb: int = 256
    total_mb: int = 1024
    import_s: float = 30.0

    @property
    def most_mb(self) -> int:
        """What one may hold while it imports: more than afterwards, since what is read is parsed."""
        return 2 * self.preload_mb + 64


@dataclass(frozen=True, slots=True)
class Started:
    """A zygote that started. ``space`` and ``group`` are those of this process alone, where it has any. ``mounts`` is
    its mountinfo from before packages' code ran in it."""

    pid: int
    space: PidSpace | None = None
    group: Group | None = None
    mounts: str = ""


class Plan(Protocol):
    """How the process is made that becomes a zygote. ``modules`` are to be imported by it, in order."""

    @property
    def modules(self) -> tuple[str, ...]: ...

    def start(self, sock: socket.socket, errors: int, modules: tuple[str, ...]) -> Started:
        """Fork and exec it; it speaks on ``sock`` and complains on ``errors``. Raises OSError."""
        ...
