"""A sandbox and a call in it, as they are asked for (design §4).

They are values that every backend realises its own way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Any

from skillyard.domain.checks import is_blob_id
from skillyard.domain.errors import InvalidInput, shape, shown
from skillyard.domain.network.session import Egress
from skillyard.domain.package.platforms import Platform
from skillyard.domain.sandbox.content import Content, HostDirectory, JailDirectory
from skillyard.domain.sandbox.frames import DEFAULT_LIMITS, FrameLimits
from skillyard.domain.sandbox.guarantees import Demand
from skillyard.domain.work.command import VIEW, Command, Output
from skillyard.domain.work.limits import Limits
from skillyard.values import dataclass


class Owner(StrEnum):
    """The owner: RUN dies with its server; TASK outlives it and can be attached again."""

    RUN = "run"
    TASK = "task"


@dataclass(frozen=True, slots=True)
class Mount:
    """Shows a file or directory inside, read-only.

    ``aliases`` are further absolute paths that show the same thing, by link where the backend can.
    """

    source: Content | HostDirectory
    target: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnvironmentRef:
    """A prepared set of packages: ``packages`` is a site-packages directory (None: standard library only);
    ``preload`` names modules worth importing before a fork. The packages were built for ``platform``, None for this
    server's own."""

    name: str = "base"
    packages: Content | None = None
    preload: tuple[str, ...] = ()
    digest: str = ""
    platform: Platform | None = None

    def check_fits(self, platform: Platform | None) -> None:
        """Raises InvalidInput for packages in a sandbox of another platform than theirs."""
        if self.packages is not None and self.platform != platform:
            theirs, its = (str(one or "this server's Python") for one in (self.platform, platform))
            rule = (
                f"its packages are for {theirs}, and the sandbox has {its}, since its image was replaced; run it again"
            )
            raise InvalidInput("environment", rule)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The modules that were made ready for an environment.

    ``preloaded`` ones were imported ahead, ``faults`` say why others were not; ``memory_bytes`` is the memory that they
    hold while nothing runs.
    """

    preloaded: tuple[str, ...] = ()
    faults: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int = 0


PLACES = ("workspace", "tmp", "shm")
"""The places that a sandbox can write to: ``/workspace``, ``/tmp`` and ``/dev/shm``."""


MOST_TERMINALS = 16
"""The terminals that a sandbox may have open at once, where its walls are our own."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """A sandbox to be made.

    ``group`` keeps warm interpreters apart: two specs with different groups never share one (a principal's name where
    policy says so). ``tenant`` names whose share of the host it takes.
    ``single`` says that one program will be started: the sandbox may end with it, which is faster; it must still be
    destroyed. Where it stays after one that a limit ended or that crashed, a second program can collect the files that
    the first left. ``command`` says that this program is an :class:`Argv`, for a backend that makes such sandboxes
    otherwise. ``egress`` plugs it into a session of the gate; without it there is no network. ``forwarding`` says
    that its programs will listen on ports for :class:`~skillyard.ports.sandbox.Forwarding`; a backend without that
    ability refuses it, and one where nothing can listen otherwise needs it.
    ``terminals`` gives it terminals of its own, at most :data:`MOST_TERMINALS`; without, none can be opened inside.
    ``read_only`` names the places of :data:`PLACES` that its programs may not write to; a backend that cannot keep them
    from it refuses.
    ``directories`` are shown at their own paths, in a sandbox for one program.
    ``language`` is that of its program, which may decide about the image. ``image`` is named by digest, or by a name
    that the backend knows; empty for the backend's own choice. ``resource_class`` is a name that the backend knows, and
    ``snapshot`` an id of :class:`~skillyard.ports.sandbox.Snapshotting`. A backend that has none refuses them
    (:meth:`refuse_names`).
    """

    limits: Limits = field(default_factory=Limits)
    environment: EnvironmentRef = field(default_factory=EnvironmentRef)
    mounts: tuple[Mount, ...] = ()
    owner: Owner = Owner.RUN
    group: str = ""
    tenant: str = ""
    single: bool = False
    command: bool = False
    egress: Egress | None = None
    forwarding: bool = False
    terminals: bool = False
    read_only: tuple[str, ...] = ()
    kernel_only: frozenset[str] = frozenset()
    allow_degraded: frozenset[str] = frozenset()
    language: str = "python"
    image: str = ""
    resource_class: str = ""
    snapshot: str = ""
    directories: tuple[JailDirectory, ...] = ()

    def refuse_names(self, backend: str, *known: str) -> None:
        """Raises InvalidInput for a name of a kind that ``backend`` does not have.

        ``known`` are the kinds that it has.
        """
        for kind in ("image", "resource_class", "snapshot"):
            name = getattr(self, kind)
            if name and kind not in known:
                rule = f"the backend '{backend}' has none; leave it empty, or choose a backend that has"
                raise InvalidInput(kind, rule, shown(name))
        if self.read_only and "read_only" not in known:
            rule = f"'{backend}' cannot keep programs from writing there; choose another isolation"
            raise InvalidInput("read_only", rule, ", ".join(self.read_only))
        if self.terminals and "terminals" not in known:
            raise InvalidInput("terminals", f"'{backend}' has none of a sandbox's own; choose another isolation")
        if self.directories and "directories" not in known:
            rule = f"'{backend}' cannot show directories of the host; choose the isolation 'native'"
            raise InvalidInput("directories", rule, shown(self.directories[0].path))


MOST_SIDE = 0xFFFF
"""The most rows or columns that a kernel has a place for."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """The size of a terminal. Raises InvalidInput for one that no terminal has."""

    rows: int = 24
    columns: int = 80

    def __post_init__(self) -> None:
        for name, side in (("rows", self.rows), ("columns", self.columns)):
            if type(side) is not int or not 1 <= side <= MOST_SIDE:
                raise InvalidInput(name, f"must be a number from 1 to {MOST_SIDE}", shown(side))


@dataclass(frozen=True, slots=True)
class Argv:
    """A command.

    ``env`` is added to the sandbox's own small environment; ``stdin`` keeps the input open for :meth:`Process.send`,
    else it is empty. On a ``terminal`` the input is open too, and all output is on stdout; the sandbox needs
    :attr:`SandboxSpec.terminals`.
    """

    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/workspace"
    stdin: bool = False
    terminal: Terminal | None = None

    @property
    def reads(self) -> bool:
        """Returns whether its input is open."""
        return self.stdin or self.terminal is not None

    @property
    def variables(self) -> Mapping[str, str]:
        """Returns ``env``, with the kind of terminal where nothing names another."""
        return self.env if self.terminal is None else {"TERM": "xterm-256color", **self.env}


@dataclass(frozen=True, slots=True)
class Guest:
    """Python run by our guest (see :mod:`skillyard.guest`).

    One JSON request goes in, frames come back on :attr:`Stream.CHANNEL`. stdout and stderr share :attr:`Stream.STDOUT`,
    in the order written.

    ``alone`` is for a program that clears the sandbox. Others have ended by then. Those that were started as ``kept``
    are spared, with the processes that they started, and stand still meanwhile; all else is ended first. That takes the
    ability ``keeping``; a backend without it refuses kept programs.
    """

    request: Mapping[str, Any]
    kept: bool = False
    alone: bool = False


Program = Argv | Guest


class Stream(StrEnum):
    """STDERR stays empty for a Guest; CHANNEL stays empty for an Argv."""

    STDOUT = "stdout"
    STDERR = "stderr"
    CHANNEL = "channel"


class AtCap(StrEnum):
    """The fate of a program that wrote more than its limit of logs.

    END ends it with the outcome ``output``. RING drops the oldest bytes, and the program lives on. WAIT lets it
    wait for the reader of its output, of which nothing is kept: each stream has one reader, from the beginning on.
    """

    END = "end"
    RING = "ring"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Bytes that are kept of a process.

    ``log_bytes`` bound stdout and stderr together, or stdout alone where ``stderr_bytes`` bound stderr. With
    :attr:`AtCap.RING` each stream has a bound of its own: stderr has ``log_bytes`` too unless ``stderr_bytes`` differ.
    The channel always ends a program that writes more than ``channel_bytes``.
    """

    log_bytes: int = 64 * 1024 * 1024
    channel_bytes: int = 4 * 1024 * 1024 * 1024
    at_cap: AtCap = AtCap.END
    stderr_bytes: int | None = None


DEFAULT_STREAMS = StreamLimits()


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a program, as :meth:`~skillyard.ports.sandbox.Sandbox.start` takes it."""

    program: Program
    id: str
    timeout_ms: int | None = None
    streams: StreamLimits = DEFAULT_STREAMS


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, directory, link or other name (``kind``) of a sandbox. Untrusted.

    ``mode`` has the permission bits, ``modified_s`` the time of the last change in seconds since 1970.
    """

    name: str
    kind: str
    size: int
    mode: int = 0
    modified_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Held:
    """A sandbox that a backend still holds, known to us or not. ``key`` is what ``create`` was given."""

    handle: str
    key: str
    owner: Owner
    age_s: float


def make_spec(
    demand: Demand,
    limits: Limits,
    environment: EnvironmentRef,
    mounts: tuple[Mount, ...] = (),
    group: str = "",
    tenant: str = "",
    read_only: tuple[str, ...] = (),
    language: str = "python",
    image: str = "",
) -> SandboxSpec:
    """Returns the spec of a sandbox for one program under what policy demands."""
    return SandboxSpec(
        limits=limits,
        environment=environment,
        mounts=mounts,
        group=group,
        tenant=tenant,
        single=True,
        read_only=read_only,
        kernel_only=demand.kernel_only,
        allow_degraded=demand.allow_degraded,
        language=language,
        image=image,
    )


VERSION = 1
_PREFIX = re.compile(r"blob:[A-Za-z0-9._-]{1,100}-")


@dataclass(frozen=True, slots=True)
class SkillMount:
    """Where a skill shows inside. ``entry`` is relative to ``root``; None for an instruction skill."""

    root: str
    entry: str | None = None


@dataclass(frozen=True, slots=True)
class BlobMount:
    kind: str
    size: int


@dataclass(frozen=True, slots=True)
class GuestCall:
    """One call: of ``code``, or of the mounted skill ``skill``. ``args`` can be sent as JSON.

    ``entrypoint`` is what was asked for by name; without one it is ``main``, and code that has none is a script.
    ``skills`` are by the name they are imported by, ``blobs`` by id, ``env`` holds the declared secrets.
    ``limits`` are those of the :class:`~skillyard.domain.sandbox.frames.FrameReader`, so that honest code meets a clear
    error before it breaks them.
    """

    blob_prefix: str
    entrypoint: str | None = None
    code: str | None = None
    skill: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    skills: Mapping[str, SkillMount] = field(default_factory=dict)
    blobs: Mapping[str, BlobMount] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    limits: FrameLimits = DEFAULT_LIMITS

    def request(self) -> dict[str, Any]:
        """For :class:`~skillyard.domain.sandbox.spec.Guest`. Raises InvalidInput."""
        self._check()
        return {
            "v": VERSION,
            "op": "call",
            "code": self.code,
            "skill": self.skill,
            "entrypoint": self.entrypoint,
            "args": self.args,
            "skills": {name: {"root": s.root, "entry": s.entry} for name, s in self.skills.items()},
            "blobs": {blob_id: {"kind": b.kind, "size": b.size} for blob_id, b in self.blobs.items()},
            "blob_prefix": self.blob_prefix,
            "env": dict(self.env),
            "max_blobs": self.limits.blobs,
            "max_blob_bytes": self.limits.blob_bytes,
            "max_open_blobs": self.limits.open_blobs,
            "max_result_bytes": self.limits.result_bytes,
            "files": {
                "count": self.limits.files,
                "each_bytes": self.limits.file_bytes,
                "bytes": self.limits.files_bytes,
            },
        }

    def _check(self) -> None:
        if (self.code is None) == (self.skill is None):
            raise InvalidInput("code", "either code or a skill is called, not both")
        if self.skill is not None and getattr(self.skills.get(self.skill), "entry", None) is None:
            raise InvalidInput("skill", "must be mounted and have an entrypoint", shape(self.skill))
        if not _PREFIX.fullmatch(self.blob_prefix):
            raise InvalidInput("blob_prefix", "must be 'blob:', an id and '-'", shape(self.blob_prefix))
        for blob_id in self.blobs:
            if not is_blob_id(blob_id):
                raise InvalidInput("blobs", "every key must be a blob id", shape(blob_id))


def collect_request(blob_prefix: str, limits: FrameLimits, command: Command | None = None) -> dict[str, Any]:
    """Returns the request for a second program in a sandbox. It sends the files that the first left."""
    request = GuestCall(blob_prefix, code="", limits=limits).request() | {"op": "collect", "code": None}
    return request if command is None else request | {"command": {"outputs": _places(command, command.outputs)}}


def stay_request(call: GuestCall) -> dict[str, Any]:
    """Returns the request for a program that does nothing, with which a sandbox stays."""
    return call.request() | {"op": "stay", "files": {}}


def clear_request() -> dict[str, Any]:
    """Returns the request for a program that clears a sandbox of all but its files."""
    return GuestCall("blob:0-", code="").request() | {"op": "clear", "code": None, "command": {"outputs": []}}


def interpreter_request(call: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the request for an interpreter that runs cells like ``call``. It gets no secrets and no blobs itself."""
    return {**call, "op": "interpreter", "interpreter": name, "code": None, "env": {}, "blobs": {}}


def cell_request(call: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the request for a program that has the code of ``call`` run in an interpreter."""
    return {**call, "op": "cell", "interpreter": name}


def asking_request(name: str) -> dict[str, Any]:
    """Returns the request for a program that exits with 0 when an idle interpreter answers."""
    return cell_request(GuestCall("blob:0-", code="").request(), name) | {"code": None}


def command_request(call: GuestCall, skill: str, command: Command, *, view: bool = True) -> dict[str, Any]:
    """Returns the request for a command in ``skill``, which ``call`` mounts. Raises InvalidInput.

    Without ``view`` the skill is not copied, and its own files are the working directory ``skill``.
    """
    command = command if view else replace(command, view=VIEW)
    return call.request() | {
        "op": "command",
        "code": None,
        "skill": skill,
        "command": {
            "skill": skill,
            "view": view,
            "language": command.language,
            "text": command.text,
            **({} if command.view == VIEW else {"place": command.view}),
            "workdir": command.inside(command.workdir),
            "env": dict(command.env),
            "inputs": [[one.blob_id, command.inside(one.path)] for one in command.inputs],
            "outputs": _places(command, command.outputs),
            **({} if command.service is None else {"service": command.service.stored()}),
        },
    }


def _places(command: Command, outputs: Iterable[Output]) -> list[str]:
    return [command.inside(one.path) for one in outputs]


def encode_request(request: Mapping[str, Any]) -> bytes:
    """The bytes that the guest reads. Raises InvalidInput for what JSON does not have."""
    try:
        return json.dumps(request, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput("args", f"must be JSON-serializable: {str(error)[:200]}", shape(request)) from None
