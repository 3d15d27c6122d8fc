"""Small bundles for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

MANIFEST = """\
name = "{name}"
version = "{version}"
description = "A skill"
kind = "action"

[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"
"""

MAIN = "def main(args):\n    return args\n"


def write(directory: Path, files: Mapping[str, str | bytes]) -> Path:
    for path, content in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
    return directory


def action_files(name: str = "acme.text.count", version: str = "1.0.0", main: str = MAIN) -> dict[str, str | bytes]:
    skill_md = f"---\nname: {name.rpartition('.')[2]}\ndescription: A skill\n---\nUse it.\n"
    return {"skill.toml": MANIFEST.format(name=name, version=version), "SKILL.md": skill_md, "code/main.py": main}


def action(root: Path, name: str = "acme.text.count", version: str = "1.0.0", main: str = MAIN) -> Path:
    """An action skill in ``<root>/<name>``."""
    return write(root / name, action_files(name, version, main))


def agent_skill(root: Path, name: str = "pdf-tools", more: str = "", body: str = "Do this.\n") -> Path:
    """A plain Agent Skill in ``<root>/<name>``; ``more`` are further lines of front matter."""
    text = f"---\nname: {name}\ndescription: What it does\n{more}---\n{body}"
    return write(root / name, {"SKILL.md": text})
