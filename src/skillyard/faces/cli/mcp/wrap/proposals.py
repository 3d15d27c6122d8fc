"""Proposes a profile: directories of a server's own arguments, and its variables by name."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path

from skillyard.domain.errors import InvalidInput
from skillyard.faces.cli.jail.directories import chosen
from skillyard.faces.cli.jail.packages import Package, parse
from skillyard.faces.cli.mcp.wrap.entries import LeftAlone, Stdio
from skillyard.values import dataclass

_RUNNERS = ("npx", "uvx", "pipx")
_IN_EVERY_JAIL = (
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/share",
    "/bin",
    "/sbin",
    "/lib",
)
_CODE = (".js", ".mjs", ".cjs", ".ts", ".py", ".pyz", ".jar", ".rb", ".sh")
_MARKS = ("package.json", "pyproject.toml", "pyvenv.cfg", "node_modules")
_LEVELS = 4
"""How far above a program the mark of its package is looked for."""
_TOKEN = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL|(?:^|_)(?:AUTH|PAT|PWD|DSN)(?:$|_)", re.IGNORECASE)


@dataclass(slots=True)
class Proposal:
    """The grants of one server. ``words`` are its command, ``notes`` sentences for the operator."""

    server: Stdio
    words: tuple[str, ...]
    read: list[Path] = field(default_factory=list)
    write: list[Path] = field(default_factory=list)
    package: Package | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> list[str]:
        """Returns the variables that look like credentials."""
        return [name for name in self.server.env if _TOKEN.search(name)]


def proposed(server: Stdio, known: Stdio | None, closed: Sequence[Path]) -> Proposal:
    """Returns the proposal for a server.

    ``known`` is the server without references, None where its client alone knows them; ``closed`` are places that no
    jail may see. Raises LeftAlone for a command of npx, uvx or pipx that names no package.
    """
    found = Proposal(server, server.words)
    if Path(server.words[0]).name in _RUNNERS:
        found.package = _package(server)
    if known is None:
        return found
    places: dict[Path, bool] = {}
    if found.package is None:
        command = _program(known)
        if command is not None and not _in_every_jail(command):
            found.words = (str(command), *server.words[1:])
            places.update(dict.fromkeys(_program_places(command), True))
    arguments = known.words[1:] if found.package is None else _package(known).args
    for word in (*arguments, *known.env.values()):
        for place, program in _named(word, known.cwd, found.notes):
            places[place] = program or places.get(place, False)
    for place in sorted(places, key=lambda path: len(path.parts)):
        _propose(found, place, closed, program=places[place])
    return found


def _package(server: Stdio) -> Package:
    try:
        return parse(server.words)
    except InvalidInput as error:
        raise LeftAlone(f"its package cannot be fetched ahead: {error.message}") from None


def _program(known: Stdio) -> Path | None:
    """Returns the file of a command that a jail does not find by its name, None where it does."""
    name = known.words[0]
    if "/" not in name and (name == "python3" or Path("/usr/bin", name).exists()):
        return None
    if "/" in name and not name.startswith("/"):
        name = str(Path(known.cwd, name)) if known.cwd else ""
    found = shutil.which(name)
    return Path(os.path.normpath(Path(found).absolute())) if found else None


def _in_every_jail(place: Path) -> bool:
    return any(place.is_relative_to(root) for root in _IN_EVERY_JAIL)


def _program_places(command: Path) -> Iterator[Path]:
    """Yields the directories of a program: where it is named, and where a link leads to."""
    for file in dict.fromkeys((command, command.resolve())):
        if not _in_every_jail(file):
            yield _root(file)


def _root(file: Path) -> Path:
    """Returns the directory of the package that a program belongs to, or its own."""
    for above in file.parents[:_LEVELS]:
        if any((above / mark).exists() for mark in _MARKS) and above != Path.home():
            return above
    return file.parent


def _named(word: str, cwd: str, notes: list[str]) -> Iterator[tuple[Path, bool]]:
    """Yields the directory that an argument names, and whether a program of it is named.

    The path may stand behind an equals sign.
    """
    for text in dict.fromkeys((word, word.partition("=")[2])):
        text = text.removeprefix("file://")
        if not text.startswith("/") and not (cwd and text.startswith(("./", "../"))):
            continue
        place = Path(os.path.normpath(Path(cwd or "/", text)))
        try:
            real = place.resolve()
            program = place.is_file() and real.suffix in _CODE
            if place.is_dir():
                directory = real
            elif place.is_file():
                directory = _root(real) if program else real.parent
            elif place.parent.is_dir() and len(place.parts) > _LEVELS - 1:
                directory = real.parent  # a file that the server makes
            else:
                continue
        except (OSError, ValueError, RuntimeError):  # too long, or links that go round
            continue
        if real != place:
            notes.append(f"{place} is reached through a link, which no jail has: name {real} in its arguments")
        yield directory, program


def _propose(found: Proposal, place: Path, closed: Sequence[Path], *, program: bool) -> None:
    if _in_every_jail(place) or any(place.is_relative_to(shown) for shown in found.read):
        return
    if _is_private(place, program=program):
        found.notes.append(f"{place} is not proposed: such places hold credentials; --read names it if that is meant")
        return
    try:
        chosen([place], [], closed)
    except InvalidInput as error:
        found.notes.append(f"{place} is not proposed: it {error.message.partition(': ')[2]}")
        return
    found.read.append(place)


def _is_private(place: Path, *, program: bool) -> bool:
    """Returns whether a place is a hidden one of the home directory.

    Keys and configurations of clients lie there; a program may be deeper in one, such as ``~/.nvm/versions``.
    """
    home = Path.home().resolve()
    if not place.is_relative_to(home) or place == home:
        return False
    hidden, *deeper = place.relative_to(home).parts
    return hidden.startswith(".") and not (program and len(deeper) > 1 and hidden in _PROGRAMS)


_PROGRAMS = (".local", ".nvm", ".npm", ".volta", ".pyenv", ".bun", ".deno", ".cargo", ".asdf", ".cache")
