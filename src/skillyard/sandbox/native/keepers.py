"""The keepers of one run directory: that for new work, and older ones with detached runs.

A keeper lives in a home: the run directory itself, or ``keeper-<version>`` in it where an older keeper has the
directory still. An older one gets no new work. Its sandboxes, known by their handles, are used and ended as far as it
speaks this server's messages, and it ends with the last of them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from skillyard.domain.errors import SandboxFault, SandboxGone
from skillyard.domain.sandbox.spec import Held, Owner
from skillyard.ipc.peers import peer
from skillyard.sandbox.native.launch import find, keeper_lives, make, version_of
from skillyard.sandbox.native.link import Link
from skillyard.sandbox.native.protocol import PROTOCOL, refused_by

_CLOSE_BOUND_S = 8.0
_CONNECTS = 5
_HOME = re.compile(r"keeper-[1-9][0-9]{0,5}")


@dataclass(slots=True)
class _Older:
    """A keeper that makes no new sandboxes.

    ``handles`` are those of its sandboxes when it was asked last; so many as ``kept`` are of detached runs.
    """

    home: Path
    version: int
    link: Link
    handles: frozenset[str] = frozenset()
    kept: int = 0

    def __str__(self) -> str:
        what = "a sandbox of a detached run" if self.kept == 1 else f"{self.kept} sandboxes of detached runs"
        return f"a keeper of version {self.version} holds {what}"

    async def held(self) -> list[Held]:
        """Returns the sandboxes that it lent. Raises SandboxGone, SandboxFault."""
        held = await held_by(self.link)
        self.handles = frozenset(each.handle for each in held)
        self.kept = sum(each.owner is Owner.TASK for each in held)
        return held


class Keepers:
    """Finds, starts and ends the keepers below ``run_dir``.

    ``start`` starts one in a home, ``clear`` removes the home of one that has ended, ``link`` makes the connection of a
    socket, and ``told`` hears of older keepers.
    """

    def __init__(
        self,
        run_dir: Path,
        start: Callable[[Path], Awaitable[socket]],
        clear: Callable[[Path], None],
        link: Callable[[socket], Link],
        told: Callable[[str], None],
    ) -> None:
        self._run_dir = run_dir
        self._start = start
        self._clear = clear
        self._link = link
        self._told = told
        self._older: list[_Older] = []
        self._missed: set[Path] = set()
        """The homes of older keepers whose connection ended."""

    @property
    def older(self) -> str:
        """Returns which older keepers are served; empty for none."""
        return "; ".join(map(str, self._older))

    def live(self) -> bool:
        """Returns whether a keeper is there."""
        return any(map(keeper_lives, homes(self._run_dir)))

    def of(self, handle: str) -> Link | None:
        """Returns the connection to the older keeper that holds a sandbox, if one does."""
        return next((older.link for older in self._older if handle in older.handles), None)

    async def connect(self) -> Link:
        """Returns the connection to the keeper for new work, which is started where there is none.

        A keeper that was killed may take a connection before it is gone: then another one. Raises SandboxFault, also
        for a newer keeper.
        """
        make(self._run_dir)
        for _ in range(_CONNECTS):
            with suppress(SandboxGone):
                found = await self._ours() or await self._new()
                self._missed.clear()  # all that live were met
                return found
        raise SandboxFault("each keeper ends as soon as it is there; its log is keeper.log in the run directory")

    async def survey(self) -> list[Held]:
        """Returns the sandboxes of older keepers. One that holds none any more is ended.

        Raises SandboxFault when one lives and cannot be reached.
        """
        for home in list(self._missed):
            await self._meet_again(home)
        found: list[Held] = []
        for older in list(self._older):
            with suppress(SandboxGone):
                found += await self._look_at(older)
        return found

    async def destroyed(self, handle: str) -> None:
        """Ends the older keeper whose last sandbox this was."""
        for older in self._older:
            if handle in older.handles:
                with suppress(SandboxGone):
                    await self._look_at(older)
                return

    def lost(self, link: Link) -> None:
        """Forgets the older keeper whose connection has ended, until :meth:`survey` finds it again."""
        for older in list(self._older):
            if older.link is link:
                self._older.remove(older)
                self._missed.add(older.home)
                self._told(f"{older}, and the connection to it has ended")

    async def _meet_again(self, home: Path) -> None:
        for _ in range(_CONNECTS):
            if not keeper_lives(home) or any(older.home == home for older in self._older):
                self._missed.discard(home)
                return
            with suppress(SandboxGone):
                await self._met(home, alone=False)
        if not any(older.home == home for older in self._older):
            raise SandboxFault(f"the keeper of {home} cannot be reached; its log is keeper.log there")

    def close(self) -> None:
        """Leaves older keepers alone: the next server finds them."""
        closing, self._older = self._older, []
        for older in closing:
            older.link.close()

    async def _ours(self) -> Link | None:
        ours: Link | None = None
        try:
            for home in homes(self._run_dir):
                if any(older.home == home for older in self._older):
                    continue
                if keeper_lives(home):
                    ours = await self._met(home, alone=ours is None) or ours
                elif home != self._run_dir:
                    self._clear(home)
        except BaseException:
            if ours is not None:
                ours.close()
            raise
        return ours

    async def _met(self, home: Path, *, alone: bool) -> Link | None:
        """Returns the connection to a keeper that is for new work. An older one is kept beside it, or ended."""
        sock = await find(home)
        if sock is None:
            return None
        pid, link = peer(sock)[0], self._link(sock)
        try:
            version = int((await link.facts())["protocol"])
            if version == PROTOCOL and alone:
                return link
            if version > PROTOCOL:
                raise SandboxFault(
                    f"the keeper of {home} speaks version {version} of its protocol, this server {PROTOCOL}: start the "
                    f"newer skillyard that began it, or end process {pid}, and the detached runs in it are lost"
                )
            older = _Older(home, version, link)
            link.refused = refused_by(version)
            await older.held()
            if older.kept:
                self._older.append(older)
                self._told(f"{older}: it is served until they end, and new work goes to one of version {PROTOCOL}")
                return None
            self._told(f"a keeper of version {version} is ended, and one of version {PROTOCOL} takes its place")
            await self._end(older)
        except BaseException:
            link.close()
            raise
        return None

    async def _new(self) -> Link:
        taken = any(older.home == self._run_dir for older in self._older)
        link = self._link(await self._start(self._run_dir / f"keeper-{PROTOCOL}" if taken else self._run_dir))
        try:
            await link.facts()
        except BaseException:
            link.close()
            raise
        return link

    async def _look_at(self, older: _Older) -> list[Held]:
        held = await older.held()
        if not held and older in self._older:
            self._older.remove(older)
            try:
                await self._end(older)
                self._told(f"the keeper of version {older.version} held nothing any more, and has ended")
            except SandboxFault as fault:  # it ends by itself without a server
                self._told(f"the keeper of version {older.version}: {fault.message}")
                older.link.close()
        return held

    async def _end(self, older: _Older) -> None:
        await stop(older.link)
        older.link.close()
        if older.home != self._run_dir:
            self._clear(older.home)


async def stop(link: Link) -> None:
    """Ends a keeper, unless it holds sandboxes that outlive this server. Raises SandboxFault."""
    try:
        async with asyncio.timeout(_CLOSE_BOUND_S) as bound:
            answer, _ = await link.answer({"op": "stop"})
            if not answer["kept"]:
                bound.reschedule(asyncio.get_running_loop().time() + _CLOSE_BOUND_S + answer["bound_s"])
                await link.ended.wait()
    except SandboxGone:
        pass  # killed while we asked: all it held ended with it
    except TimeoutError:
        raise SandboxFault("the keeper did not end in time") from None


async def held_by(link: Link) -> list[Held]:
    """Returns the sandboxes that a keeper lent. Raises SandboxGone, SandboxFault."""
    answer, _ = await link.answer({"op": "survey"})
    return [Held(h["handle"], h["key"], Owner(h["owner"]), h["age"]) for h in answer["held"]]


def homes(run_dir: Path) -> Iterator[Path]:
    """Yields the places where a keeper may be."""
    yield run_dir
    with suppress(FileNotFoundError):
        yield from sorted(each for each in run_dir.iterdir() if _HOME.fullmatch(each.name))


def other_versions(run_dir: Path) -> dict[Path, str]:
    """Returns the homes of living keepers of another version, each with a sentence about it."""
    found: dict[Path, str] = {}
    for home in homes(run_dir):
        version = version_of(home) or PROTOCOL
        if version < PROTOCOL:
            found[home] = f"version {version} is served beside {PROTOCOL} until its detached runs have ended"
        elif version > PROTOCOL:
            found[home] = f"version {version} is newer than {PROTOCOL}, and a server of this release does not start"
    return found
