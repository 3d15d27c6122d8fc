"""Directories of a great many skills: 50,000 bundles in seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_MANIFEST = """\
name = "{name}"
version = "{version}"
description = "Counts the words of a text and tells which are the most frequent, variant {number}"
kind = "action"
tags = ["text", "words"]

[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"

[inputs]
type = "object"
properties = {{ text = {{ type = "string" }} }}
required = ["text"]
"""
_SKILL_MD = """\
---
name: {last}
description: Counts the words of a text and tells which are the most frequent, variant {number}
---
# Words

Give it a text. It tells how many words there are, and the ten most frequent ones.
"""
_CODE = """\
from collections import Counter


def main(args):
    words = args["text"].split()
    return {{"count": len(words), "most": Counter(words).most_common(10), "variant": {number}}}
"""


def name_of(number: int) -> str:
    return f"team{number % 100:02d}.words{number:05d}"


def write_skills(root: Path, names: int, versions: int) -> Iterator[Path]:
    """``<root>/<name>/1.<n>.0`` for ``versions`` of each of ``names``: the directory of each name, when it is there."""
    for number in range(names):
        home = root / name_of(number)
        for minor in range(versions):
            write_version(home, number, minor)
        yield home


def write_version(home: Path, number: int, minor: int) -> Path:
    """One version of the skill whose directory ``home`` is."""
    values = {"name": home.name, "last": home.name.rpartition(".")[2], "version": f"1.{minor}.0"}
    bundle = home / values["version"]
    os.makedirs(bundle / "code")  # noqa: PTH103 - fifty thousand times
    for path, text in (("skill.toml", _MANIFEST), ("SKILL.md", _SKILL_MD), ("code/main.py", _CODE)):
        with open(f"{bundle}/{path}", "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text.format(number=number, **values))
    return bundle
