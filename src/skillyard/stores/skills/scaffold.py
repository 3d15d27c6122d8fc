"""The files of ``skill new``: a skill that passes strict validation, with its examples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.skill.agent_skill import FrontMatter, check_agent_skill
from skillyard.domain.skill.name import GUIDE, check_name
from skillyard.domain.skill.report import Problem, Report
from skillyard.domain.skill.skill import SkillFormat, SkillKind

MANIFEST = """\
name = {name}
version = "0.1.0"
description = {description}
kind = "{kind}"
tags = []
"""

RUNTIME = """
[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"

# Packages of Python, installed once and kept apart from everything else:
# [dependencies]
# numpy = ">=2"

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

SKILL_MD = """\
---
name: {identifier}
description: {description}
metadata:
  title: {quoted_title}
---
# {title}

Say here what the skill does, when to use it, and what to watch out for.
"""

USAGE = """
## Input

`text`: the text to work on.

## Output

`length`: its number of characters.

## Example

```json
{{"name": {name}, "args": {{"text": "hello"}}}}
```
"""

MAIN = '''\
"""The entrypoint: a function that takes the args object and returns a small JSON object."""

from runtime import log


def main(args):
    text = args["text"]
    log.info(f"working on {len(text)} characters")
    return {"summary": f"The text has {len(text)} characters.", "length": len(text)}
'''

EXAMPLES = """\
# Runs of this skill with what they must give: skillyard skill test DIR

[[example]]
name = "counts the characters"
args = { text = "hello" }

[example.expect]
output = { length = 5 }
log = "working on 5 characters"

[[example]]
name = "needs a text"
args = {}

[example.expect]
error = "ValidationError"
"""

AGENT_SKILL_MD = """\
---
name: {identifier}
description: {description}
metadata:
  version: "0.1.0"
---
# {title}

Say here what to do, step by step, when the skill is used.

## Count lines and words

Run `scripts/count.py` with the path of a text file. It prints one JSON object:

```sh
python scripts/count.py poem.txt
```

Without a path it reads standard input.
"""

SCRIPT = '''\
#!/usr/bin/env python3
"""Count the lines and words of a text: of the file that is named, else of standard input."""

import json
import sys
from pathlib import Path


def count(text):
    return {"lines": len(text.splitlines()), "words": len(text.split())}


def main(argv):
    if len(argv) > 1:
        sys.exit("usage: count.py [FILE]")
    text = Path(argv[0]).read_text(encoding="utf-8") if argv else sys.stdin.read()
    print(json.dumps(count(text)))


if __name__ == "__main__":
    main(sys.argv[1:])
'''

SCRIPT_EXAMPLES = """\
# Runs of the scripts with what they must give: skillyard skill test DIR

[[example]]
name = "counts a file"
script = "scripts/count.py"
blobs = { poem = "tests/poem.txt" }
argv = ["{poem}"]

[example.expect]
exit = 0
stdout = '{"lines": 2, "words": 6}'

[[example]]
name = "counts what it is given"
script = "scripts/count.py"
stdin = "one two"

[example.expect]
stdout = '"words": 2'

[[example]]
name = "refuses two files"
script = "scripts/count.py"
argv = ["a", "b"]

[example.expect]
exit = 1
stderr = "usage"

[[example]]
name = "can be imported"
code = '''
from count import count


def main(args):
    return count("one\\ntwo")
'''

[example.expect]
output = { lines = 2, words = 2 }
"""

POEM = """\
Roses are red,
violets are blue.
"""


Kind = SkillKind | Literal["action", "instruction"]
Format = SkillFormat | Literal["skills-protocol", "agent-skills"]


def new_skill(path: Path, name: str, kind: Kind | None = None, format: Format = SkillFormat.PROTOCOL) -> list[Path]:
    """Writes a skill into the directory ``path``, which must be absent or empty. Returns the files.

    ``kind`` is an action when left out; an Agent Skill is an instruction skill. Raises InvalidInput for a name, kind or
    format that breaks a rule, and for a directory that holds something.
    """
    form = _checked_format(format)
    agent = form is SkillFormat.AGENT_SKILLS
    checked = _checked_kind(kind or ("instruction" if agent else "action"))
    if agent and checked is SkillKind.ACTION:
        raise InvalidInput("kind", "must be 'instruction' for an Agent Skill, which is text with scripts")
    (_check_agent_name if agent else _check_name)(name, checked)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidInput("path", "must be a directory that is absent or empty")
    return _write(path, _agent_files(name) if agent else _files(name, checked))


def _write(path: Path, files: Mapping[str, str]) -> list[Path]:
    for relative, text in files.items():
        target = path / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        if text.startswith("#!"):
            target.chmod(target.stat().st_mode | 0o111)
    return [path / relative for relative in files]


def _checked_kind(kind: str) -> SkillKind:
    if kind not in set(SkillKind):
        raise InvalidInput("kind", "must be 'action' or 'instruction'", shown(kind))
    return SkillKind(kind)


def _checked_format(format: str) -> SkillFormat:
    if format not in set(SkillFormat):
        raise InvalidInput("format", "must be 'skills-protocol' or 'agent-skills'", shown(format))
    return SkillFormat(format)


def _check_name(name: str, kind: SkillKind) -> None:
    report = Report()
    check_name(report, ("name",), name, importable=kind is SkillKind.ACTION)
    _refuse(report.problems)
    if name == GUIDE:
        raise InvalidInput("name", f"'{GUIDE}' is built in")


def _check_agent_name(name: str, _kind: SkillKind) -> None:
    front = FrontMatter({"name": name, "description": "x"}, {("name",): name, ("description",): "x"})
    _refuse(check_agent_skill(front, name)[1])


def _refuse(problems: list[Problem]) -> None:
    errors = [problem.message for problem in problems if problem.level == "error"]
    if errors:
        raise InvalidInput("name", errors[0].removeprefix("name: "))


def _files(name: str, kind: SkillKind) -> dict[str, str]:
    title = " ".join(part.capitalize() for part in name.split("."))
    description = f"{title}: say in one line what it does and when to use it."
    manifest = MANIFEST.format(name=json.dumps(name), description=json.dumps(description), kind=kind.value)
    text = SKILL_MD.format(
        identifier=_quoted(name.rpartition(".")[2]),
        description=json.dumps(description),
        title=title,
        quoted_title=json.dumps(title),
    )
    if kind is SkillKind.INSTRUCTION:
        return {"skill.toml": manifest, "SKILL.md": text}
    return {
        "skill.toml": manifest + RUNTIME,
        "SKILL.md": text + USAGE.format(name=json.dumps(name)),
        "code/main.py": MAIN,
        "tests/examples.toml": EXAMPLES,
    }


def _agent_files(name: str) -> dict[str, str]:
    title = name.replace("-", " ").capitalize()
    description = f"{title}: say what it does, and when to use it."
    head = {"identifier": _quoted(name), "description": json.dumps(description), "title": title}
    return {
        "SKILL.md": AGENT_SKILL_MD.format(**head),
        "scripts/count.py": SCRIPT,
        "tests/examples.toml": SCRIPT_EXAMPLES,
        "tests/poem.txt": POEM,
    }


def _quoted(text: str) -> str:
    """A segment such as ``123`` or ``true`` would not be a string without quotes."""
    plain = text.replace("-", "")
    return text if plain.isalpha() and text.lower() not in ("true", "false", "null") else json.dumps(text)
