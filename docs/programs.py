"""``docs/programs.md``: programs as models write them, and the result of each."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_suffix(".toml")

HEAD = """# Programs as models write them

`run_code` takes code that was written without reading the guide. A test runs each of these programs in a real runtime
(`tests/docs/test_programs.py`). The column *gives* leaves out the time in a summary, and tracebacks.

The rules behind the table:

- **What runs.** `entrypoint` names a function that must be there. Without it `main` is called, and code that defines
  none runs as a script, with `__name__` as `"__main__"`. `sys.exit(0)` succeeds with `{}`.
- **Arguments.** A function's only parameter, when it is required and not keyword-only, gets the whole object `args`
  whatever its name. So does a first parameter named `args` when no key is meant for it and the others have defaults,
  and `*rest` alone. Everything else gets the values of `args` by name. Skills' functions are called alike.
- **Values.** `datetime`, `date`, `time` become ISO 8601; `UUID` and paths text; members of an `Enum` their value;
  dataclasses, named tuples and pydantic models objects; scalars of numpy, and arrays up to 10,000 values, plain numbers
  and lists; also within others, and as keys. Values without one obvious form (sets, bytes, `Decimal`, `timedelta`, NaN,
  tables, figures, iterators) are refused, and the message says what to return. `blobs.write_json` does the same.
- **Files** in `/workspace/out` come back as `files`. `notes` names links, FIFOs, devices, odd names and files
  above the limits ([limits.md](limits.md)), and also files elsewhere in `/workspace`.

| # | program | args | gives |
| --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Program:
    """``gives`` is the output as JSON with the files behind it, or the error's type and message."""

    code: str
    gives: str
    args: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    """Further parameters of ``run_code``."""


def gave(run: Any) -> str:
    """Returns the outcome of a run in the words of the table."""
    if run.ok:
        text = json.dumps(run.output, ensure_ascii=False)
        said = run.summary.partition("; ")[2]
        told = f" ({said})" if said else ""
    else:
        text, told = f"{run.error['type']}: {run.error['message']}", ""
    files = "".join(f" + {file.path} ({file.mime})" for file in run.files)
    return text + told + files


def programs_page(note: str) -> str:
    rows = [
        f"| {number} | {_code(p.code)} | {_code(_params(p))} | {_code(p.gives)} |"
        for number, p in enumerate(PROGRAMS, 1)
    ]
    return note + HEAD + "\n".join(rows) + "\n"


def _params(program: Program) -> str:
    shown = json.dumps(program.args, ensure_ascii=False) if program.args else ""
    return " ".join([shown, *(f"{name}={json.dumps(value)}" for name, value in program.more.items())]).strip()


def _code(text: str) -> str:
    """In a cell: lines apart, no mark of the table or of HTML in it."""
    marks = (
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ("|", "&#124;"),
        ("`", "&#96;"),
        ("*", "&#42;"),
        ("_", "&#95;"),
    )
    for mark, name in marks:
        text = text.replace(mark, name)
    lines = text.split("\n")
    return "<br>".join(f"<code>{line.replace('  ', '&nbsp; ')}</code>" for line in lines if line)


PROGRAMS = tuple(Program(**row) for row in tomllib.loads(TABLE.read_text(encoding="utf-8"))["program"])
