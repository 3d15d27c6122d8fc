"""What a sandbox is asked to be: values that every backend realises its own way (design §4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from skillyard.domain.network.session import Egress
from skillyard.domain.work.limits import Limits


class Owner(StrEnum):
    """RUN dies with the server that asked for it; TASK outlives the server and can be attached again."""

    RUN = "run"
    TASK = "task"


@dataclass(frozen=True, slots=True)
class Mount:
    """A read-only file or directory of the host shown inside. ``source`` never changes once mounted:
    stores give immutable snapshots, files 0444 and directories 0555 (executables 0555).

    ``aliases`` are further absolute paths that show the same thing, by link where the backend can.
    """

    source: Path
    target: str
    digest: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnvironmentRef:
    """A prepared set of packages: ``packages`` is a site-packages directory (None: standard library only);
    ``preload`` names modules worth importing before a fork."""

    name: str = "base"
    packages: Path | None = None
    preload: tuple[str, ...] = ()
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was made ready for an environment: ``preloaded`` modules were imported ahead, ``faults`` say why others were
    not; ``memory_bytes`` is what it holds while nothing runs."""

    preloaded: tuple[str, ...] = ()
    faults: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """A sandbox to be made. ``group`` keeps warm interpreters apart: two specs with different groups never
    share one (a principal's name where policy says so). ``tenant`` is whose sandbox it is: where a backend shares
    the host out, it does so between tenants. ``single`` says that one program will be started: the
    sandbox may end with it, which is faster; it must still be destroyed. Where it stays after one that a limit ended or
    that crashed, a second program can collect what that left. ``egress`` plugs it into a session of the
    gate; without it there is no network."""

    limits: Limits = field(default_factory=Limits)
    environment: EnvironmentRef = field(default_factory=EnvironmentRef)
    mounts: tuple[Mount, ...] = ()
    owner: Owner = Owner.RUN
    group: str = ""
    tenant: str = ""
    single: bool = False
    egress: Egress | None = None
    kernel_only: frozenset[str] = frozenset()
    allow_degraded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Argv:
    """A command. ``env`` is added to the sandbox's own small environment; ``stdin`` keeps the input open
    for :meth:`Process.send`, else it is empty."""

    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/workspace"
    stdin: bool = False


@dataclass(frozen=True, slots=True)
class Guest:
    """Python run by our guest: one JSON request in, frames back on :attr:`Stream.CHANNEL`
    (see :mod:`skillyard.guest`). stdout and stderr share :attr:`Stream.STDOUT`, in the order written."""

    request: Mapping[str, Any]


Program = Argv | Guest


class Stream(StrEnum):
    """STDERR stays empty for a Guest; CHANNEL stays empty for an Argv."""

    STDOUT = "stdout"
    STDERR = "stderr"
    CHANNEL = "channel"


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Bytes that a process may write before it is ended with the outcome ``output``."""

    log_bytes: int = 64 * 1024 * 1024
    channel_bytes: int = 4 * 1024 * 1024 * 1024


DEFAULT_STREAMS = StreamLimits()


@dataclass(frozen=True, slots=True)
class Entry:
    """A name below a directory of a sandbox. ``kind``: file, directory, link or other. Untrusted."""

    name: str
    kind: str
    size: int


@dataclass(frozen=True, slots=True)
class Held:
    """A sandbox that a backend still holds, known to us or not. ``key`` is what ``create`` was given."""

    handle: str
    key: str
    owner: Owner
    age_s: float
