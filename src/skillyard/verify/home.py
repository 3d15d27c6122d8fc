"""A runtime of the battery's own: under the user's settings, in a directory that is thrown away."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from skillyard.assembly import Runtime
from skillyard.engine.environments import remove_tree

if TYPE_CHECKING:
    from skillyard.ports.sandbox import Backend
    from skillyard.settings import Settings
    from skillyard.verify.yard import Yard

SKILL, SECRET = "verify.keeper", "VERIFY_SECRET"

_MANIFEST = f"""\
name = "{SKILL}"
version = "1.0.0"
description = "Keeps a secret, for skillyard verify"
kind = "action"

[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"

[permissions]
secrets = ["{SECRET}"]
"""
_MAIN = f"""\
import base64
import os
import sys


def main(args):
    value = os.environ.get("{SECRET}", "")
    if args["how"] == "leave":
        for place in (os.environ.get("TMPDIR", "/tmp"), os.getcwd()):
            with open(place + "/secret", "w") as file:
                file.write(value)
        return {{"had": bool(value)}}
    forms = [value, *(base64.b64encode(b"x" * n + value.encode()).decode() for n in range(3))]
    for form in forms:
        print(form)
        print("before " + form + " after", file=sys.stderr)
    for form in forms:
        for character in form:
            sys.stdout.write(character)
            sys.stdout.flush()
        print()
    if args["how"] == "raise":
        raise ValueError(" ".join(forms))
    if args["how"] == "exit":
        sys.exit(" ".join(forms))
    return {{"had": bool(value), "forms": forms, "summary": value, value: 1, "deep": [[{{"x": value}}]]}}
"""


@contextmanager
def workplace() -> Iterator[Path]:
    """A directory for a while."""
    place = Path(tempfile.mkdtemp(prefix="skillyard-verify-")).resolve()
    try:
        yield place
    finally:
        remove_tree(place)  # a data directory holds read-only directories


@asynccontextmanager
async def own_runtime(settings: Settings, place: Path, backend: Backend | None = None) -> AsyncIterator[Runtime]:
    """Open, with a skill that declares a secret, and that secret. ``backend`` replaces those of the settings."""
    _write_skill(place / "skills" / SKILL)
    own = settings.model_copy(update={"data_dir": place / "data", "skills_dirs": [place / "skills"]})
    async with Runtime(settings=own, backend=backend) as runtime:
        _values[place / "data"] = value = f"verify-secret-0{token_hex(12)}"
        await runtime.secrets.set(SECRET, value)
        try:
            yield runtime
        finally:
            del _values[place / "data"]


def secret_value(yard: Yard) -> str:
    """What the skill of the battery's runtime is given."""
    assert yard.runtime is not None
    return _values[Path(yard.runtime.settings.data_dir)]


_values: dict[Path, str] = {}


def _write_skill(directory: Path) -> None:
    (directory / "code").mkdir(parents=True)
    (directory / "skill.toml").write_text(_MANIFEST, encoding="utf-8")
    (directory / "SKILL.md").write_text(
        "---\nname: keeper\ndescription: Keeps a secret\n---\nIt keeps.\n", encoding="utf-8"
    )
    (directory / "code" / "main.py").write_text(_MAIN, encoding="utf-8")
