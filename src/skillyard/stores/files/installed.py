"""Compares an installation with its lock and with the records of its distributions.

Every file must stand in the ``RECORD`` of a distribution with a digest that fits (the binary distribution format of the
packaging specifications); bytecode may lie beside the source that it was made from. Every distribution of the lock must
be there, and no other one.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from skillyard.domain.archive.names import printable
from skillyard.domain.package.environment import Lock, parse_lock
from skillyard.domain.package.names import normalized
from skillyard.ports.environments import BadEnvironment
from skillyard.values import dataclass

MAX_RECORD = 64 * 1024 * 1024
_ALGORITHMS = frozenset({"sha256", "sha384", "sha512"})
_INFO = ".dist-info"
_SIGNATURES = ("RECORD", "RECORD.jws", "RECORD.p7s")
_BYTECODE = re.compile(r"(?:(.*)/)?__pycache__/([^/]+?)\.[A-Za-z0-9_]+(?:-[A-Za-z0-9_]+)*(?:\.opt-[0-9a-z]+)?\.pyc")
_TAG = re.compile(r"^Tag: *([A-Za-z0-9_.]+-[A-Za-z0-9_.]+-[A-Za-z0-9_.]+)\s*$", re.MULTILINE)
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Installed:
    """The content of an environment: ``distributions`` are versions by normalized name, ``modules`` top-level names.
    ``size`` is in bytes."""

    distributions: Mapping[str, str]
    modules: tuple[str, ...]
    size: int


def check_installed(home: Path, lock: Lock) -> Installed:
    """``home`` holds regular files and directories only. Raises BadEnvironment, OSError."""
    files = dict(_files(home))
    infos = _infos(home)
    _compare(lock, infos)
    claims: dict[str, list[tuple[str, str]]] = {}
    for name, info in infos.items():
        for path, algorithm, digest in _record(home / info, info, name):
            claims.setdefault(path, []).append((algorithm, digest))
    _check_claims(home, files, claims, {f"{info}/{name}" for info in infos.values() for name in _SIGNATURES})
    versions = {name: info.removesuffix(_INFO).partition("-")[2] for name, info in infos.items()}
    return Installed(versions, _modules(files), sum(files.values()))


def wheel_tags(home: Path) -> dict[str, tuple[str, ...]]:
    """The tags that each distribution's ``WHEEL`` names. Raises OSError."""
    found = {}
    for name, info in _infos(home).items():
        with (home / info / "WHEEL").open(encoding="utf-8", errors="replace") as file:
            found[name] = tuple(_TAG.findall(file.read(65536)))
    return found


def _files(home: Path) -> Iterator[tuple[str, int]]:
    """Relative paths with ``/`` and sizes."""
    top = str(home)
    for directory, _, names in os.walk(top):
        inner = directory[len(top) + 1 :]
        for name in names:
            yield f"{inner}/{name}" if inner else name, os.lstat(f"{directory}/{name}").st_size


def _infos(home: Path) -> dict[str, str]:
    """``.dist-info`` directories by the normalized name of their distribution."""
    found: dict[str, str] = {}
    for path in home.iterdir():
        if path.name.endswith(_INFO) and path.is_dir():
            name = normalized(path.name.removesuffix(_INFO).partition("-")[0])
            if name in found:
                raise BadEnvironment(f"the build installed '{printable(name)}' twice")
            found[name] = path.name
    return found


def _compare(lock: Lock, infos: Mapping[str, str]) -> None:
    pins = {pin.name: pin.version for pin in parse_lock(lock.text)}
    for name in sorted(pins.keys() - infos.keys()):
        raise BadEnvironment(f"the build did not install '{name}', which its lock names")
    for name in sorted(infos.keys() - pins.keys()):
        raise BadEnvironment(f"the build installed '{printable(name)}', which its lock does not name")
    for name, info in infos.items():
        version = info.removesuffix(_INFO).partition("-")[2]
        if _plain(version) != _plain(pins[name]):
            raise BadEnvironment(
                f"the build installed version {printable(version)} of '{name}' instead of {pins[name]}"
            )


def _plain(version: str) -> str:
    """Returns a version without the differences that file names of wheels make.

    They write ``-`` and ``+`` as ``_`` and may leave a version as its author wrote it, so that separators, case and
    trailing zeros do not count."""
    text = re.sub(r"[-_+.]", ".", version.lower().removeprefix("v"))
    return re.sub(r"(?:\.0)+(?=$|\.?[a-z])", "", text)


def _record(directory: Path, info: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Path, algorithm and digest in URL-safe base64 of each line."""
    file = directory / "RECORD"
    if not file.is_file():
        raise BadEnvironment(f"the distribution '{name}' has no RECORD of its files")
    if file.stat().st_size > MAX_RECORD:
        raise BadEnvironment(f"the RECORD of '{name}' is too large")
    own = {f"{info}/{signature}" for signature in _SIGNATURES}
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.reader(lines, strict=True):
                if row and row[0] not in own:
                    yield _line(row, name)
    except (csv.Error, ValueError) as error:
        raise BadEnvironment(f"the RECORD of '{name}' cannot be read: {printable(str(error))}") from None


def _line(row: list[str], name: str) -> tuple[str, str, str]:
    path = row[0]
    algorithm, _, digest = row[1].partition("=") if len(row) > 1 else ("", "", "")
    if path.startswith("/") or not path or any(part in ("", ".", "..") for part in path.split("/")):
        raise BadEnvironment(f"the RECORD of '{name}' names a path outside the environment: {printable(path)}")
    if algorithm not in _ALGORITHMS or not digest:
        raise BadEnvironment(f"the RECORD of '{name}' has no digest for {printable(path)}")
    return path, algorithm, digest


def _check_claims(
    home: Path, files: Mapping[str, int], claims: Mapping[str, list[tuple[str, str]]], records: set[str]
) -> None:
    for path in claims:
        if path not in files:
            raise BadEnvironment(f"the build left out {printable(path)}, which a distribution records")
    for path in files:
        claimed = claims.get(path)
        if claimed is None:
            if path not in records and not _is_bytecode(path, claims):
                raise BadEnvironment(f"the build holds {printable(path)}, which no distribution records")
        elif not _fits(home / path, claimed):
            raise BadEnvironment(f"{printable(path)} is not what its distribution records: the digests differ")


def _is_bytecode(path: str, claims: Mapping[str, object]) -> bool:
    match = _BYTECODE.fullmatch(path)
    if match is None:
        return False
    return (f"{match[1]}/{match[2]}.py" if match[1] else f"{match[2]}.py") in claims


def _fits(path: Path, claimed: list[tuple[str, str]]) -> bool:
    """Where two distributions bring the same path, one of them has won."""
    found: dict[str, str] = {}
    for algorithm, digest in claimed:
        if algorithm not in found:
            found[algorithm] = _digest(path, algorithm)
        if found[algorithm] == digest.rstrip("="):
            return True
    return False


def _digest(path: Path, algorithm: str) -> str:
    whole = hashlib.new(algorithm)
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            whole.update(piece)
    return base64.urlsafe_b64encode(whole.digest()).decode().rstrip("=")


def _modules(files: Mapping[str, int]) -> tuple[str, ...]:
    """Returns what ``import`` finds: modules, and directories that hold one at any depth."""
    found = set()
    for path in files:
        top, slash, rest = path.partition("/")
        name = top if slash else top.partition(".")[0]
        last = rest.rpartition("/")[2] if slash else top
        if name.isidentifier() and name != "__pycache__" and last.endswith((".py", ".so", ".pyc")):
            found.add(name)
    return tuple(sorted(found - {"bin"}))
