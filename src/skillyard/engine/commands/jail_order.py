"""A jail as an operator orders it, and the streams of its program."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import field
from pathlib import PurePosixPath
from typing import Protocol

from skillyard.domain.network.rule import Rule
from skillyard.domain.network.session import GateSecret
from skillyard.domain.sandbox.content import JailDirectory
from skillyard.domain.sandbox.spec import Mount, Stream
from skillyard.domain.work.limits import Limits
from skillyard.engine.secrets.service import GivenSecret
from skillyard.values import dataclass


@dataclass(frozen=True, slots=True)
class JailOrder:
    """A program with its grants. It has nothing else of the host.

    ``env`` are variables, ``rules`` the hosts that it may reach, ``mounts`` content of stores. ``gated`` are secrets
    at the gate: its arguments or variables hold their placeholders.
    """

    args: tuple[str, ...]
    limits: Limits
    directories: tuple[JailDirectory, ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    rules: tuple[Rule, ...] = ()
    secrets: tuple[GivenSecret, ...] = ()
    gated: tuple[GateSecret, ...] = ()
    cwd: str = "/workspace"
    labels: Mapping[str, str] = field(default_factory=dict)
    isolation: str | None = None
    waits: bool = True
    """Whether it waits for a place, instead of being refused."""

    @property
    def language(self) -> str:
        """Returns the language of the program, by which a backend with images has one for it."""
        return _LANGUAGES.get(PurePosixPath(self.args[0]).name, "python")


_LANGUAGES = {
    **dict.fromkeys(("node", "nodejs"), "javascript"),
    **dict.fromkeys(("tsx", "ts-node", "deno", "bun"), "typescript"),
    **dict.fromkeys(("bash", "sh"), "bash"),
}


class Wires(Protocol):
    """The client's end of the standard streams."""

    async def read(self) -> bytes:
        """Returns the next bytes of standard input; none at its end."""
        ...

    async def write(self, stream: Stream, data: bytes) -> None:
        """Writes to a standard stream, and waits until the client took it. Raises OSError when it takes no more."""
        ...

    def close(self, stream: Stream) -> None:
        """Learns that the program wrote its last byte to a stream. Idempotent."""
        ...

    @property
    def gone(self) -> asyncio.Future[str]:
        """Returns what is done, with a sentence, when the client is gone or asks for the end."""
        ...
