"""A new skill that passes strict validation: what ``skill new`` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from skillyard.domain.errors import InvalidInput, shape
from skillyard.domain.manifest_name import GUIDE, check_name
from skillyard.domain.manifest_report import Report
from skillyard.domain.skill import SkillKind

_MANIFEST = """\
name = {name}
version = "0.1.0"
description = {description}
kind = "{kind}"
tags = []
"""

_RUNTIME = """
[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"

# Hosts that it may reach, and secrets that it gets; it has neither unless they stand here:
# [permissions]
# network = ["api.example.com:443"]
# secrets = [{ name = "API_KEY", delivery = "gate", hosts = ["api.example.com"] }]

[inputs]
type = "object"
required = ["text"]
additionalProperties = false

[inputs.properties.text]
type = "string"
description = "The text to work on"
"""

_SKILL_MD = """\
---
name: {identifier}
description: {description}
metadata:
  title: {quoted_title}
---
# {title}

Say here what the skill does, when to use it, and what to watch out for.
"""

_USAGE = """
## Input

`text`: the text to work on.

## Output

`length`: its number of characters.

## Example

```json
{{"name": {name}, "args": {{"text": "hello"}}}}
```
"""

_MAIN = '''\
"""The entrypoint: a function that takes the args object and returns a small JSON object."""

from runtime import log


def main(args):
    text = args["text"]
    log.info(f"working on {len(text)} characters")
    return {"summary": f"The text has {len(text)} characters.", "length": len(text)}
'''


def new_skill(path: Path, name: str, kind: SkillKind | Literal["action", "instruction"] = "action") -> list[Path]:
    """Write a skill into the directory ``path``, which must be absent or empty; the files written.

    Raises InvalidInput for a name or kind that breaks a rule, and for a directory that holds something.
    """
    checked = _checked_kind(kind)
    _check_name(name, checked)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidInput("path", "must be a directory that is absent or empty")
    files = _files(name, checked)
    for relative, text in files.items():
        target = path / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return [path / relative for relative in files]


def _checked_kind(kind: str) -> SkillKind:
    if kind not in set(SkillKind):
        raise InvalidInput("kind", "must be 'action' or 'instruction'", shape(kind))
    return SkillKind(kind)


def _check_name(name: str, kind: SkillKind) -> None:
    report = Report()
    check_name(report, ("name",), name, importable=kind is SkillKind.ACTION)
    errors = [problem.message for problem in report.problems if problem.level == "error"]
    if errors:
        raise InvalidInput("name", errors[0].removeprefix("name: "))
    if name == GUIDE:
        raise InvalidInput("name", f"'{GUIDE}' is built in")


def _files(name: str, kind: SkillKind) -> dict[str, str]:
    identifier = name.rpartition(".")[2]
    title = " ".join(part.capitalize() for part in name.split("."))
    description = f"{title}: say in one line what it does and when to use it."
    manifest = _MANIFEST.format(name=json.dumps(name), description=json.dumps(description), kind=kind.value)
    text = _SKILL_MD.format(
        identifier=_quoted(identifier), description=json.dumps(description), title=title, quoted_title=json.dumps(title)
    )
    if kind is SkillKind.INSTRUCTION:
        return {"skill.toml": manifest, "SKILL.md": text}
    usage = _USAGE.format(name=json.dumps(name))
    return {"skill.toml": manifest + _RUNTIME, "SKILL.md": text + usage, "code/main.py": _MAIN}


def _quoted(text: str) -> str:
    """A segment such as ``123`` or ``true`` would not be a string without quotes."""
    return text if text.isalpha() and text.lower() not in ("true", "false", "null") else json.dumps(text)
