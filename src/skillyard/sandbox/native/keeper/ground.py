"""What a keeper asks of the ground that its sandboxes stand on.

A keeper is written once. Namespaces, Landlock and gVisor differ in where a sandbox comes from, how it is watched and
ended, and which traces it leaves. A :class:`Ground` answers that for the keeper, and the :class:`Place` that it gives
each sandbox (``sandbox.py``) for that sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.request import Key, Listen, Opened, Shape
from skillyard.sandbox.native.keeper.sandbox import Place, Sandbox
from skillyard.sandbox.native.keeper.watch.kernel_objects import Objects


@dataclass(frozen=True, slots=True)
class Warmth:
    """What a source that serves has: ``modules`` were imported ahead, ``faults`` say why others were not."""

    modules: tuple[str, ...] = ()
    faults: dict[str, str] = field(default_factory=dict)
    memory_mb: int = 0
    error: str = ""


class Source(Protocol):
    """What sandboxes of one environment and group come from: a zygote, or whatever starts them one by one."""

    @property
    def idle(self) -> bool:
        """Nobody waits for anything of it."""
        ...

    @property
    def pids(self) -> Sequence[int]: ...

    def weigh(self) -> int:
        """Returns the MiB that it holds; what holds more than it may is ended."""
        ...

    def order(self, sandbox: Sandbox) -> None:
        """Makes the sandbox's first process. One that cannot be made is reported to :attr:`Household.failed`."""
        ...

    def warm(self, then: Callable[[Warmth], None]) -> None:
        """Starts what serves before anybody asks, and calls ``then`` when it serves or has failed."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Household:
    """What a ground asks of its keeper. ``failed(sandbox, why)`` is called for each order that comes to nothing;
    ``grew()`` when a source may hold more memory than before. ``lives(key)`` says whether a source is there, ``inits``
    gives the sandboxes' first processes, and ``ours`` all children that somebody waits for."""

    failed: Callable[[Sandbox, str], None]
    grew: Callable[[], None]
    lives: Callable[[Key], bool]
    inits: Callable[[], Collection[int]]
    ours: Callable[[], Collection[int]]


class Ground(Protocol):
    @property
    def facts(self) -> Mapping[str, Any]:
        """What the server is told of this host."""
        ...

    def begin(self, household: Household) -> None:
        """Called once, before anything else is asked."""
        ...

    def source(self, key: Key, packages: str, preload: Sequence[str]) -> Source:
        """Returns a new source of sandboxes. Raises OSError."""
        ...

    def place(self, handle: str, shape: Shape) -> Place:
        """Makes the place of a sandbox: ids, groups, directories. Raises OSError; nothing is left then."""
        ...

    def listen(self, sandbox: Sandbox, wanted: Listen) -> Opened:
        """Opens sockets in a sandbox's network. Raises OSError."""
        ...

    def check(self, sandbox: Sandbox, objects: Objects) -> None:
        """Looks at what a sandbox holds, and ends it when that is more than it may. Called many times a second."""
        ...

    def outside(self, sandbox: Sandbox) -> Mapping[str, Any]:
        """Returns what a sandbox is on the host, for tests and probes."""
        ...

    def empty(self) -> bool:
        """Returns whether no trace of an ended sandbox is left."""
        ...

    def end_strays(self, done: Callable[[], None]) -> None:
        """Ends what belongs to no sandbox any more, then calls ``done``. The last sandbox has ended."""
        ...

    def leave(self) -> None:
        """Removes what the ground has on the host. Nothing runs on it any more."""
        ...


@dataclass(frozen=True, slots=True)
class Start:
    """How a keeper comes to stand on a ground. Each of the calls raises OSError.

    ``enter`` comes before the process is forked that becomes the keeper, ``settle`` in there, and
    ``make(loop, config)`` makes the ground.
    """

    enter: Callable[[], None]
    settle: Callable[[], None]
    make: Callable[[Loop, dict[str, Any]], Ground]
