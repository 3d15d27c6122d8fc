"""Resolving and installing, each in a fresh sandbox that can reach only the package index.

Their output is a stream of bytes that somebody hostile may have written. A lock is parsed and written anew; the store
reads an installation (:meth:`skillyard.ports.environments.EnvironmentStore.add`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from skillyard.domain.package.environment import MAX_TEXT, Lock, Pin, Wanted, lock_text, parse_lock
from skillyard.domain.package.names import normalized
from skillyard.engine.packages.build import BuildLog
from skillyard.engine.packages.environment import BuildFailed, platform_name
from skillyard.engine.packages.steps import Steps

MIB = 1024 * 1024


class Builder(Protocol):
    """``log`` gets what is said meanwhile. All raise BuildFailed."""

    async def resolve(self, wanted: Wanted, log: BuildLog) -> Lock: ...

    def install(self, lock: Lock, log: BuildLog) -> AsyncGenerator[bytes, None]:
        """A tar archive of the installed packages. It has to be closed."""
        ...

    def fetch(self, lock: Lock, tags: Mapping[str, Sequence[str]], log: BuildLog) -> AsyncGenerator[bytes, None]:
        """A tar archive of the wheels that ``lock`` names; ``tags`` say which of each package. It has to be closed."""
        ...

    @property
    def at_work(self) -> frozenset[str]:
        """The keys of its sandboxes."""
        ...


class SandboxBuilder:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    @property
    def at_work(self) -> frozenset[str]:
        return frozenset(self._steps.at_work)

    async def resolve(self, wanted: Wanted, log: BuildLog) -> Lock:
        held = [f"{pin.name}=={pin.version}" for pin in wanted.held]
        asked = {"step": "resolve", "requirements": list(wanted.requirements), "held": held}
        async with aclosing(self._steps.output(asked, log, 2 * MAX_TEXT)) as output:
            text = await _whole(output)
        pins = parse_lock(text)
        return Lock(lock_text(pins), _platform(pins, self._steps.source))

    async def install(self, lock: Lock, log: BuildLog) -> AsyncGenerator[bytes, None]:
        asked = {"step": "install", "lock": lock.text}
        async with aclosing(self._steps.output(asked, log, self._steps.most_bytes)) as output:
            async for chunk in output:
                yield chunk

    async def fetch(self, lock: Lock, tags: Mapping[str, Sequence[str]], log: BuildLog) -> AsyncGenerator[bytes, None]:
        wheels: dict[str, Any] = {
            pin.name: {"version": pin.version, "hashes": list(pin.hashes), "tags": list(tags.get(pin.name, ()))}
            for pin in parse_lock(lock.text)
        }
        asked = {"step": "fetch", "wheels": wheels}
        async with aclosing(self._steps.output(asked, log, self._steps.most_bytes)) as output:
            async for chunk in output:
                yield chunk


def _platform(pins: Sequence[Pin], source: Sequence[str]) -> str:
    """Returns what is built from source is another thing than the wheel of the same version."""
    built = {normalized(name) for name in source} & {pin.name for pin in pins}
    return " ".join([platform_name(), *(f"source:{name}" for name in sorted(built))])


async def _whole(output: AsyncIterator[bytes]) -> str:
    pieces = [piece async for piece in output]
    try:
        return b"".join(pieces).decode()
    except UnicodeDecodeError:
        raise BuildFailed("the resolved lock is not text") from None
