"""The order for a stage: what it makes, and the content that it shows, by digest."""

from __future__ import annotations

import hashlib
import json
import resource
import stat
from collections.abc import Iterator, Set
from pathlib import Path
from typing import IO, Any

from skillyard.domain.errors import SandboxFault
from skillyard.domain.sandbox.content import Content, HostDirectory
from skillyard.domain.sandbox.spec import Owner, SandboxSpec
from skillyard.guest.command import START
from skillyard.sandbox.content import bound
from skillyard.sandbox.e2b.stage import DIRECTORY, FILE, LINK, PROGRAM
from skillyard.sandbox.native.inside.walls import HOSTNAME, MASKED_DIRECTORIES, MASKED_FILES
from skillyard.sandbox.oci import calls, container

UID = 65_532
LEASE_S = 60.0
"""How long programs that belong to a server outlive it; longer than on a host, as the way to a provider is longer."""
_FILES = (FILE, PROGRAM)
_PIECE = 1 << 20
_STACK = 8 << 20
SPARE = 2
"""Processes of ours: the agent, and a program that makes others or a worker for files."""


def fixed(guest: str) -> dict[str, Any]:
    """Returns the part of each order that a stage can go by ahead. ``guest`` is the guest's place in the machine."""
    return {
        "uid": UID,
        "host": HOSTNAME,
        "guest": guest,
        "filters": {machine: calls.exact(machine) for machine in ("x86_64", "aarch64")},
        "masked_files": MASKED_FILES,
        "masked_directories": MASKED_DIRECTORIES,
    }


def order(spec: SandboxSpec, key: str, guest: str, processors: int, nonce: str = "") -> dict[str, Any]:
    """Returns the order for a sandbox. ``guest`` is the guest's place in the machine.

    ``nonce`` is the agent's for its first channel (:class:`skillyard.sandbox.agent_channel.Agreed`).
    """
    limits = spec.limits
    # RLIMIT_DATA counts stacks whole, which are hardly touched; the control group counts what is.
    data = (limits.memory_mb << 20) + limits.pids * _STACK
    own = {resource.RLIMIT_NOFILE: container.FILES, resource.RLIMIT_DATA: data}
    agent = {
        "key": key,
        "nonce": nonce,
        "env": {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/workspace", "LANG": "C.UTF-8"},
        "single": spec.single,
        "lease_s": LEASE_S if spec.owner is Owner.RUN else None,
        "timeout_ms": limits.timeout_ms,
        # The interpreter of a run begins while its request is on the way: commands of other languages need none.
        "ahead": spec.single and not spec.command and spec.language == "python",
        "limits": {**container.resources(limits), **{str(number): most for number, most in own.items()}},
    }
    packages = spec.environment.packages
    return {
        "agent": agent,
        "start": START,
        "fixed": fixed(guest),
        "disk_mb": limits.disk_mb,
        "group": {
            "memory": container.memory(limits),
            "pids": limits.pids + SPARE,
            "cpus": min(limits.cpus, processors),
        },
        "mounts": [[name_of(mount.source), mount.target, *mount.aliases] for mount in spec.mounts],
        "packages": "" if packages is None else name_of(packages),
    }


def name_of(source: Content | HostDirectory) -> str:
    """Returns the name of content in a machine."""
    if isinstance(source, Content):
        return hashlib.sha256(source.digest.encode()).hexdigest()[:40] if "/" in source.digest else source.digest
    return f"host-{hashlib.sha256(bytes(source.path)).hexdigest()[:40]}"


def lacking(spec: SandboxSpec, baked: Set[str]) -> dict[str, Path]:
    """Returns the content that has to be uploaded, by name, each once."""
    packages = spec.environment.packages
    sources = [*(mount.source for mount in spec.mounts), *([] if packages is None else [packages])]
    return {name: bound(source) for source in sources if (name := name_of(source)) not in baked}


def pack(content: dict[str, Path], into: IO[bytes]) -> None:
    """Writes content for the stage: an index behind its length, then the bytes of files.

    Everything is root's and readable by everybody; sockets, pipes and devices are left out. Raises SandboxFault for
    content that is missing.
    """
    try:
        members = [(name, source, entry) for name, path in content.items() for name, source in _members(name, path)
                   if (entry := _entry(name, source))]  # fmt: skip
        index = json.dumps([entry for _, _, entry in members]).encode()
        into.write(b"%08x" % len(index) + index)
        for name, source, (_, kind, *told) in members:
            if kind in _FILES:
                with source.open("rb") as file:
                    if _copied(file, into, told[0]) < told[0]:
                        raise SandboxFault(f"the source {name} became shorter meanwhile")
    except OSError as error:
        raise SandboxFault(f"the source {error.filename} cannot be read: {error.strerror}") from None


def _members(name: str, path: Path) -> Iterator[tuple[str, Path]]:
    yield name, path
    if path.is_dir() and not path.is_symlink():
        for child in sorted(path.rglob("*")):
            yield f"{name}/{child.relative_to(path)}", child


def _entry(name: str, source: Path) -> list[Any]:
    """Returns the name and the kind; of a link its target, of a file its size and time. Empty for what is left out."""
    info = source.lstat()
    if stat.S_ISDIR(info.st_mode):
        return [name, DIRECTORY]
    if stat.S_ISLNK(info.st_mode):
        return [name, LINK, str(source.readlink())]
    kind = _FILES[bool(info.st_mode & 0o111)]
    return [name, kind, info.st_size, int(info.st_mtime)] if stat.S_ISREG(info.st_mode) else []


def _copied(file: IO[bytes], into: IO[bytes], size: int) -> int:
    """Returns how many of the first ``size`` bytes there were."""
    copied = 0
    while data := file.read(min(_PIECE, size - copied)):
        copied += into.write(data)
    return copied
