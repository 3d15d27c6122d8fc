"""The ground below a keeper, as a protocol.

A keeper is written once. Namespaces, Landlock and gVisor make, watch and end sandboxes in other ways and leave other
traces. A :class:`Ground` does that for the keeper, and the :class:`Place` that it gives each sandbox (``sandbox.py``)
for that sandbox.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.request import Directory, Key, Listen, Opened, Shape
from skillyard.sandbox.native.keeper.sandbox import Place, Sandbox
from skillyard.sandbox.native.keeper.watch.kernel_objects import Objects


@dataclass(frozen=True, slots=True)
class Warmth:
    """The state of a source: ``modules`` were imported ahead, and not those with ``faults``."""

    modules: tuple[str, ...] = ()
    faults: dict[str, str] = field(default_factory=dict)
    memory_mb: int = 0
    error: str = ""


class Source(Protocol):
    """The source of sandboxes of one environment and group: a zygote, or a starter of each."""

    @property
    def idle(self) -> bool:
        """Returns whether nobody waits for anything of it."""
        ...

    @property
    def pids(self) -> Sequence[int]: ...

    def weigh(self) -> int:
        """Returns the MiB that it holds. Processes that hold too much are ended."""
        ...

    def order(self, sandbox: Sandbox) -> None:
        """Makes the sandbox's first process, or reports to :attr:`Household.failed`."""
        ...

    def warm(self, then: Callable[[Warmth], None]) -> None:
        """Starts it ahead of the first order; calls ``then`` when it serves or has failed."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Household:
    """The keeper of a ground.

    ``failed(sandbox, why)`` is called for each order that fails, ``grew()`` when a source may hold more memory than
    before. ``lives(key)`` says whether a source is there, ``inits`` gives the sandboxes' first processes, and ``ours``
    all children that somebody waits for.
    """

    failed: Callable[[Sandbox, str], None]
    grew: Callable[[], None]
    lives: Callable[[Key], bool]
    inits: Callable[[], Collection[int]]
    ours: Callable[[], Collection[int]]


class Ground(Protocol):
    @property
    def facts(self) -> Mapping[str, Any]:
        """Returns the facts of this host for the server."""
        ...

    @property
    def tells_single(self) -> bool:
        """Returns whether a sandbox for one guest program is made otherwise than others."""
        ...

    def begin(self, household: Household) -> None:
        """Meets the keeper, before anything else is asked."""
        ...

    def source(self, key: Key, packages: str, preload: Sequence[str], directories: Sequence[Directory] = ()) -> Source:
        """Returns a new source of sandboxes, which show ``directories``. Raises OSError."""
        ...

    def place(self, handle: str, shape: Shape) -> Place:
        """Makes the place of a sandbox: ids, groups, directories. Raises OSError; nothing is left then."""
        ...

    def listen(self, sandbox: Sandbox, wanted: Listen) -> Opened:
        """Opens sockets in a sandbox's network. Raises OSError."""
        ...

    def dial(self, sandbox: Sandbox, port: int, *, six: bool) -> socket.socket:
        """Begins a connection to a port on a sandbox's loopback address, of IPv6 where ``six``.

        Raises ConnectionRefusedError when nobody listens, ProcessLookupError when it has ended, OSError.
        """
        ...

    def check(self, sandbox: Sandbox, objects: Objects) -> None:
        """Ends a sandbox that holds more than it may. Called many times a second."""
        ...

    def outside(self, sandbox: Sandbox) -> Mapping[str, Any]:
        """Returns how a sandbox looks from the host, for tests and probes."""
        ...

    def empty(self) -> bool:
        """Returns whether no trace of an ended sandbox is left."""
        ...

    def end_strays(self, done: Callable[[], None]) -> None:
        """Ends processes that are left after the last sandbox, then calls ``done``."""
        ...

    def leave(self) -> None:
        """Removes all that the ground has on the host. Nothing runs on it any more."""
        ...


@dataclass(frozen=True, slots=True)
class Start:
    """The steps by which a keeper gets its ground. Each raises OSError.

    ``enter`` comes before the fork of the keeper, ``settle`` comes in the keeper, and ``make(loop, config)`` makes the
    ground.
    """

    enter: Callable[[], None]
    settle: Callable[[], None]
    make: Callable[[Loop, dict[str, Any]], Ground]
