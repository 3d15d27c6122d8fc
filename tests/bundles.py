"""Small bundles to publish, as archives in memory."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping

MANIFEST = """\
name = "{name}"
version = "{version}"
description = "{description}"
kind = "action"

[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"
"""
CODE = "def main(args):\n    return {{'said': {word!r}}}\n"
NOTE = "---\nname: {name}\ndescription: Something that was written down.\n{more}---\n\n# A note\n"


def action(name: str, description: str, tables: str) -> str:
    """The manifest of an action in ``code/main.py``, with further tables of TOML."""
    return MANIFEST.format(name=name, version="1.0.0", description=description) + "\n" + tables.lstrip()


def skill_files(name: str = "acme.words.say", version: str = "1.0.0", *, word: str = "hello") -> dict[str, bytes]:
    """An action skill that answers ``word``."""
    last = name.rpartition(".")[2]
    return {
        "skill.toml": MANIFEST.format(name=name, version=version, description="Says what it was given.").encode(),
        "SKILL.md": f"---\nname: {last}\ndescription: Says what it was given.\n---\n\n# Say\n".encode(),
        "code/main.py": CODE.format(word=word).encode(),
    }


def note_files(name: str = "some-note", version: str | None = None, *, text: str = "") -> dict[str, bytes]:
    """An Agent Skill."""
    more = f'metadata:\n  version: "{version}"\n' if version else ""
    return {"SKILL.md": (NOTE.format(name=name, more=more) + text).encode()}


def tar(files: Mapping[str, bytes], *, mode: str = "w:gz", prefix: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for path, data in files.items():
            info = tarfile.TarInfo(prefix + path)
            info.size, info.mode = len(data), 0o644
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zipped(files: Mapping[str, bytes], *, prefix: str = "") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(prefix + path, data)
    return out.getvalue()


def unpacked(archive: bytes) -> dict[str, bytes]:
    """The files of a tar.gz or a zip, without the directory that all of them are in."""
    if archive.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            found = {name: opened.read(name) for name in opened.namelist()}
    else:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened_tar:
            found = {m.name: opened_tar.extractfile(m).read() for m in opened_tar if m.isfile()}  # type: ignore[union-attr]
    return {name.partition("/")[2]: data for name, data in found.items()}


def a_skill(name: str = "acme.words.say", version: str = "1.0.0", *, word: str = "hello") -> bytes:
    return tar(skill_files(name, version, word=word))
