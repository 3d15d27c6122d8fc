"""Builds images of sandboxes from the Dockerfile beside this file, by the engine's builder."""

from __future__ import annotations

import io
import json
import tarfile
import zoneinfo
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from importlib import resources
from pathlib import Path

from skillyard.domain.errors import InvalidInput, SandboxFault, shown
from skillyard.domain.sandbox.image import is_name
from skillyard.sandbox.oci.engine import Engine, EngineRefused
from skillyard.values import dataclass

BASE = "debian:bookworm-slim"
PROGRAMS = {
    "python": ("python3=python3",),
    "bash": ("bash=bash",),
    "javascript": ("node=nodejs",),
    "typescript": ("node=nodejs",),
}
"""The programs that each language needs, with the packages that have them. ``python3`` runs the agent of all."""
_SAID = "skillyard: "
_MENDS = {
    True: "name a base that has it with --from, or build with a network (without --offline)",
    False: "name a base that the engine has with --from; with --offline nothing is fetched",
}
"""The remedies of a build that failed, by whether it was offline."""
_MOST_ZONES = 16 << 20
_NOT_ZONES = ("posix", "right", "posixrules", "localtime")


@dataclass(frozen=True, slots=True)
class Built:
    """An image that stands. ``notes`` tell what it lacks."""

    tag: str
    id: str
    notes: tuple[str, ...]

    def settings(self, languages: Sequence[str]) -> str:
        """Returns the lines of ``config.toml`` that have it used for programs in ``languages``."""
        if not languages or "python" in languages:
            return f'[oci]\nimage = "{self.tag}"\n'
        table = ", ".join(f'{language} = "{self.tag}"' for language in dict.fromkeys(languages))
        return f"[oci]\nimages = {{ {table} }}\n"


def usual_tag(languages: Sequence[str], version: str) -> str:
    """Returns the name that an image for ``languages`` gets without another."""
    names = [name for name in dict.fromkeys(languages) if name != "python"]
    return f"skillyard/{'-'.join(['run', *names])}:{version.replace('+', '-')}"


async def build(engine: Engine, base: str, tag: str, languages: Sequence[str], uid: int, *, offline: bool) -> Built:
    """Builds an image for programs in ``languages`` as the user ``uid``.

    Offline the engine gives the build no network, and the base must be there. Raises InvalidInput for a base that
    cannot be built on, SandboxFault where the build fails, BackendAway.
    """
    for field, name in (("--from", base), ("--tag", tag)):
        if not is_name(name):
            raise InvalidInput(field, "must be the name of an image", shown(name))
    if "@" in tag or tag.startswith("sha256:"):
        raise InvalidInput("--tag", "must be a name, not a digest", shown(tag))
    await _check_base(engine, base, offline=offline)
    programs = dict.fromkeys(pair for language in ("python", *languages) for pair in PROGRAMS[language])
    arguments = {
        "BASE": base,
        "PROGRAMS": " ".join(programs),
        "SANDBOX_UID": str(uid),
        "OFFLINE": "1" if offline else "",
    }
    params = {"t": tag, "dockerfile": "Dockerfile", "buildargs": json.dumps(arguments), "rm": "1", "forcerm": "1"}
    if offline:
        params |= {"networkmode": "none"}
    notes: list[str] = []
    async with aclosing(engine.stream("/build", _context(), "application/x-tar", params)) as answer:
        async for told in answer:
            text = told.get("stream")
            if isinstance(text, str):
                notes += [line.removeprefix(_SAID) for line in text.splitlines() if line.startswith(_SAID)]
            if said := told.get("error"):
                raise SandboxFault(
                    f"the image was not built: {'; '.join(notes) or str(said)[:1000]}; {_MENDS[offline]}"
                )
    made = await engine.call("GET", f"/images/{tag}/json")
    return Built(tag, f"sha256:{str(made['Id']).removeprefix('sha256:')}", tuple(notes))


async def _check_base(engine: Engine, base: str, *, offline: bool) -> None:
    """Raises InvalidInput for a base that does more than is wanted, or is not there offline."""
    try:
        told = await engine.call("GET", f"/images/{base}/json")
    except EngineRefused as refused:
        if offline:
            raise InvalidInput("--from", f"the engine has none of that name ({refused.message})", shown(base)) from None
        return
    config = told.get("Config") or {}
    if config.get("OnBuild"):
        raise InvalidInput("--from", "must have no ONBUILD steps, which would run in this build", shown(base))
    if volumes := config.get("Volumes"):
        rule = f"must declare no volumes, which runs could fill, and it has {', '.join(volumes)[:200]}"
        raise InvalidInput("--from", rule, shown(base))


def _context() -> bytes:
    """Returns the Dockerfile and its parts as a tar archive: the same bytes for the same files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _add(tar, "Dockerfile", (resources.files("skillyard.sandbox.oci") / "Dockerfile").read_bytes())
        _add(tar, "parts/about", b"Parts of a base image that may lack them.\n")
        for name, data in _zones():
            _add(tar, f"parts/zoneinfo/{name}", data)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    tar.addfile(entry, io.BytesIO(data))


def _zones() -> Iterator[tuple[str, bytes]]:
    """Yields this machine's time zones, by name."""
    root = next((place for place in map(Path, zoneinfo.TZPATH) if (place / "Europe/Berlin").is_file()), None)
    left = _MOST_ZONES
    for path in sorted(root.rglob("*")) if root is not None else ():
        name = path.relative_to(root) if root is not None else path
        if name.parts[0] in _NOT_ZONES or not path.is_file():
            continue
        data = path.read_bytes()
        left -= len(data)
        if left < 0:
            return
        yield str(name), data
