"""The sandbox port, small enough for a backend of one afternoon.

It is wide enough for a fork, a container and a cluster.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from skillyard.domain.network.session import Egress
from skillyard.domain.package.platforms import Platform
from skillyard.domain.sandbox.guarantees import Nature, Probe
from skillyard.domain.sandbox.spec import (
    DEFAULT_STREAMS,
    Entry,
    Held,
    Prepared,
    Program,
    SandboxSpec,
    Start,
    Stream,
    StreamLimits,
    Terminal,
)
from skillyard.domain.work.record import Ending, Usage


class Process(Protocol):
    """One started program. Its output is a log with offsets that can be read again, also after it ended."""

    @property
    def id(self) -> str: ...

    def output(self, stream: Stream, offset: int = 0) -> AsyncIterator[bytes]:
        """Yields the bytes of ``stream`` from ``offset`` on, until the process ended.

        They are pushed as they come. Of a lost process it yields those that are left. Raises OutputDropped when bytes
        from ``offset`` on were dropped from a ring before they were read, SandboxGone when the process ended in order
        and the rest cannot be had.
        """
        ...

    async def send(self, data: bytes) -> None:
        """Writes to the standard input of an ``Argv`` with ``stdin``.

        It returns when the backend took the data. Raises SandboxGone when nobody reads it any more.
        """
        ...

    async def close_stdin(self) -> None:
        """The program reads end of file. Idempotent."""
        ...

    async def wait(self) -> Ending:
        """Returns how the process ended, when it has.

        In a sandbox for one program, every process that it left behind is gone too. Many may wait, and again. Where
        only the connection to the sandbox broke, LOST says so (``Ending.cut_off``).
        """
        ...

    async def kill(self, reason: str = "") -> None:
        """End the whole tree at once; :meth:`wait` then gives CANCELLED. No effect once it has ended."""
        ...


@runtime_checkable
class OnTerminal(Protocol):
    """A process of a backend with the ability ``terminals``, which may have been started on one.

    Data that is sent to it counts as typed, and the end of its input as Ctrl-D. The terminal is hung up when
    the program has ended; other processes that have it open get SIGHUP then, or an error when they use it.
    """

    async def resize(self, size: Terminal) -> None:
        """Gives the terminal another size, and the program SIGWINCH.

        Raises InvalidInput where it has none, SandboxGone when it has ended.
        """
        ...


class Sandbox(Protocol):
    """A sandbox may also have two words for records.

    ``image`` is the digest of the image that it was made of: ``sha256:`` and 64 hexadecimal digits, or nothing where
    nobody knows it. ``made`` names the part of its backend that made its walls, where there are several.
    """

    @property
    def handle(self) -> str:
        """Returns what ``Backend.attach`` takes, after a restart too."""
        ...

    @property
    def enforced(self) -> dict[str, str]:
        """The level of each wall, limit or guarantee that is in force for this very sandbox."""
        ...

    async def start(
        self,
        program: Program,
        *,
        id: str,
        timeout_ms: int | None = None,
        streams: StreamLimits = DEFAULT_STREAMS,
    ) -> Process:
        """Starts a program. ``id`` is the caller's and unique in this sandbox.

        A second start with it gives the first process, also when an earlier server made the first. The deadline counts
        from here and is kept by the backend, not by the caller.

        A sandbox runs several programs, one after another or at once.
        """
        ...

    async def process(self, id: str) -> Process:
        """The process that was started under ``id``. Raises SandboxGone."""
        ...

    def read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """A regular file's bytes, streamed from inside. Links are not followed.

        Raises FileNotFound for what is missing or no regular file."""
        ...

    async def write(self, path: str, chunks: AsyncIterator[bytes], *, mode: int = 0o644) -> int:
        """Make or replace a file below a writable directory, parents included; the bytes written.

        Raises QuotaExceeded when the disk limit is reached."""
        ...

    async def entries(self, path: str) -> Sequence[Entry]:
        """The names directly below a directory, sorted, at most 10,000. Raises FileNotFound."""
        ...

    async def stat(self, path: str) -> Entry:
        """Returns a name of any kind; a link is told, not followed. Raises FileNotFound."""
        ...

    async def remove(self, path: str) -> None:
        """Removes a file, or a directory with all below it. Raises FileNotFound."""
        ...

    async def put(self, path: str, chunks: AsyncIterator[bytes]) -> None:
        """Unpacks a tar stream below the directory ``path``, which is made when it is missing.

        Files, directories and symbolic links are taken. Files and links take the place of those that are there; links
        are not followed. Raises InvalidInput for a stream that is damaged, names a place outside of ``path`` or holds
        another kind of entry, QuotaExceeded when the disk limit is reached. The entries before stay.
        """
        ...

    def get(self, path: str) -> AsyncIterator[bytes]:
        """Yields a tar stream (pax) of a file under its own name, or of all below a directory.

        Regular files, directories and symbolic links are in it; links are not followed, other kinds are left out. The
        content is untrusted. Raises FileNotFound.
        """
        ...

    async def end_files(self) -> None:
        """Ends the programs that the backend runs in the sandbox for files. Others start when they are needed.

        Then only the caller's own programs are there, of which nothing can reach one of the backend's.
        """
        ...


class ByteStream(Protocol):
    """A connection to a port of a sandbox."""

    async def read(self, most: int = 65536) -> bytes:
        """Returns at most ``most`` bytes, as soon as there are any; none at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Writes all of it, and waits until there is room for more. Raises SandboxGone when nobody reads it."""
        ...

    async def end(self) -> None:
        """Ends the direction into the sandbox; the other one goes on. Idempotent."""
        ...

    def quiet(self) -> bool:
        """Returns whether the connection stands, and nothing waits to be read."""
        ...

    async def close(self) -> None:
        """Ends both directions. Idempotent."""
        ...


@runtime_checkable
class Forwarding(Protocol):
    """A sandbox whose ports can be reached from outside (the ability ``forwarding``).

    ``SandboxSpec.forwarding`` asks for it.
    """

    async def forward(self, port: int) -> ByteStream:
        """Connects to a TCP port on the sandbox's loopback address.

        Nothing inside reaches outside by it. Raises InvalidInput when nobody listens there, SandboxGone.
        """
        ...


@runtime_checkable
class Remembering(Protocol):
    """A backend that knows without a survey of keys that have no sandbox."""

    def may_have(self, prefix: str, but: str | None) -> bool:
        """Returns whether a sandbox may be there whose key begins so, beside one with that handle."""
        ...


@runtime_checkable
class Following(Protocol):
    """A sandbox that starts a guest behind a program without another message of ours."""

    def follow(self, after: str, then: Start) -> None:
        """Has ``then`` start when ``after`` has ended by itself.

        That program is about to be started.
        """
        ...

    async def followed(self) -> tuple[bytes, Ending] | None:
        """Returns the channel and the ending of the program that was told to :meth:`follow`, once.

        None where it was not started, or anything else was begun in the sandbox since ``after`` was.
        Raises SandboxGone, SandboxFault.
        """
        ...


@runtime_checkable
class Forgetting(Protocol):
    """A sandbox that can let go of programs. It keeps their output for as long as it lives otherwise."""

    async def forget(self, id: str) -> None:
        """Lets go of a program that has ended, and of its output.

        Raises SandboxGone for one that is not known, SandboxFault for one that has not ended.
        """
        ...


@runtime_checkable
class Snapshotting(Protocol):
    """A sandbox that can be saved (the ability ``snapshots``). ``SandboxSpec.snapshot`` makes others of what was saved.

    The files are saved, not the processes.
    """

    async def snapshot(self) -> str:
        """Returns the id of a copy of the writable directories. It outlives the sandbox. Raises SandboxFault."""
        ...


@runtime_checkable
class Snapshots(Protocol):
    """A backend that keeps what :class:`Snapshotting` sandboxes saved."""

    async def discard(self, snapshot: str) -> None:
        """Removes a snapshot. Idempotent."""
        ...


class Backend(Protocol):
    """Makes sandboxes. Calls can be repeated: create is idempotent on its key, destroy on its handle."""

    @property
    def name(self) -> str: ...

    @property
    def nature(self) -> Nature:
        """Returns what it is by design, on any host."""
        ...

    async def probe(self) -> Probe:
        """Returns what can be enforced here and, for what cannot, why. Found by trying; may be cached."""
        ...

    async def create(self, spec: SandboxSpec, key: str) -> Sandbox:
        """A ready sandbox, used by nobody before. On failure nothing is left behind.

        Raises ProtectionMissing, SandboxFault, InvalidInput for an image, resource class or snapshot that it does not
        have.
        """
        ...

    async def attach(self, handle: str) -> Sandbox:
        """The live sandbox of an earlier ``create``, perhaps of an earlier server. Raises SandboxGone."""
        ...

    async def survey(self) -> Sequence[Held]:
        """Returns every lent sandbox that the backend holds, those of dead servers too.

        Ready ones in a pool are not lent.
        """
        ...

    async def destroy(self, handle: str) -> Usage:
        """End it and what runs in it; returns when no process, mount, cgroup and file of it is left.
        The usage of its whole life. Idempotent: a handle that is gone gives an empty Usage."""
        ...

    async def prepare(self, spec: SandboxSpec) -> Prepared | None:
        """Announces that sandboxes like this will be asked for. It never fails the caller.

        Returns the modules that were made ready, when they are; None where nothing can be imported ahead as
        ``EnvironmentRef.preload`` names it.
        """
        ...

    async def close(self) -> None:
        """Let go: RUN sandboxes end, TASK sandboxes stay where the backend can keep them."""
        ...


class Launched(NamedTuple):
    """A sandbox whose program was started ``ago_s`` before this, and may be ``over``."""

    sandbox: Sandbox
    ago_s: float
    over: bool = False


@runtime_checkable
class Launching(Protocol):
    """A backend that starts a program with its sandbox, in one step."""

    @property
    def enforces(self) -> Mapping[str, str] | None:
        """Returns the level of each wall in all of its sandboxes; None where each is to be asked."""
        ...

    def launch(self, spec: SandboxSpec, key: str, first: Start) -> Coroutine[Any, Any, Launched]:
        """As ``create``, with a program that was started. ``start`` with the same id gives its process.

        The program may be started before the result is awaited. It raises nothing until then. A caller that does
        not await it destroys what ``create`` gives for the key.

        A backend may tell of it some milliseconds later, together with the end of a short program.
        Where a backend lost the sandbox before it told of it, the program may be started again in another one.
        """
        ...


@runtime_checkable
class Imaged(Protocol):
    """A backend that makes sandboxes of images. Policy, skills and requests name them by digest."""

    def image_of(self, spec: SandboxSpec) -> str:
        """Returns the name of the image of a sandbox.

        It is the one that ``spec`` names, or the backend's own for its language.
        """
        ...


@runtime_checkable
class Foreign(Protocol):
    """A backend whose sandboxes may have another interpreter or platform than this server."""

    async def platform_of(self, spec: SandboxSpec) -> Platform | None:
        """Returns what packages are to be built for; None where those of this server fit.

        Of ``spec`` image, language and the name of the environment count. Raises InvalidInput for an image that the
        backend does not have, and for one without an interpreter that packages are had for; SandboxFault.
        """
        ...


@runtime_checkable
class Counting(Protocol):
    """A backend that counts the sandboxes of this server without asking anybody."""

    def counts(self) -> Mapping[str, int]:
        """Returns the numbers of sandboxes: ``lent`` ones, and ``ready`` ones, which are made ahead."""
        ...


@runtime_checkable
class Standing(Protocol):
    """A backend that finds the sandboxes of all servers of skillyard, not of its own alone."""

    async def standing(self) -> int:
        """Returns how many there are at its engine or provider, or on this host. Raises SandboxFault."""
        ...


@runtime_checkable
class Remote(Protocol):
    """A backend whose sandboxes an engine or a server makes, which may be away for a while."""

    async def reach(self) -> None:
        """Asks for a sign of life. Raises BackendAway."""
        ...


@runtime_checkable
class Changing(Protocol):
    """A backend whose sandboxes are made of what others may replace, such as an image."""

    async def changed(self) -> bool:
        """Returns whether new sandboxes would be made of something else than the last probe told.

        Of those that wait ready none is lent any more then, and the next probe tells what they are made of.
        Raises SandboxFault.
        """
        ...


@runtime_checkable
class Networked(Protocol):
    """A sandbox whose network can be given and changed while programs run in it."""

    @property
    def proxy_port(self) -> int:
        """Returns the port of the loopback inside at which proxy clients find the gate."""
        ...

    async def plug(self, egress: Egress) -> None:
        """Listens on the ports of ``egress`` and hands them to the gate.

        It is called after a policy was widened, after an attach, and when the gate was restarted. Ports that are
        listened on already stay. Raises SandboxGone, GateFault.
        """
        ...
