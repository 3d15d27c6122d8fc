"""Text for people and JSON for machines. Text of a sandbox or a server may steer a terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from shutil import get_terminal_size
from typing import Any

import click

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_STEERING = re.compile(r"[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_LEAST_ROOM = 20
"""Characters of a terminal's line below which nothing is cut to fit it."""
LEVEL_COLOURS = {"kernel": "green", "supervised": "yellow", "provider": "yellow", "missing": "red"}
_BREAKS = re.compile(r"[\n\t]+")


def emit_json(value: Any) -> None:
    """Prints one JSON value; characters that could steer a terminal are escaped as JSON has it."""
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower()
    text = json.dumps(value, indent=2, ensure_ascii=not encoding.startswith("utf"))
    click.echo(_STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def calm(text: str) -> str:
    """Returns text without control characters but newline and tab: it cannot steer a terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def calm_line(text: str) -> str:
    """Returns text as :func:`calm` does, on one line: it cannot look like a line of ours either."""
    return calm(text).replace("\n", "\\x0a").replace("\t", " ")


def emit_foreign(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Prints text made by foreign code: as it is into a file or a pipe, calm on a terminal. With ``nl``, a line
    that it leaves open is ended."""
    stream = sys.stderr if err else sys.stdout
    ended = not nl or not text or text.endswith("\n")
    click.echo(calm(text) if stream.isatty() else text, err=err, nl=not ended)


def emit_table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    colours: Mapping[str, str] | None = None,
    cut: bool = False,
) -> None:
    """Prints columns of aligned text; the last one is not padded. ``colours`` by a cell's text, on a terminal; with
    ``cut`` the last column ends there where the line does."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in (list(header), *cells)) for i in range(len(header))]
    if cut and sys.stdout.isatty():
        _cut_last(cells, get_terminal_size().columns - sum(width + 2 for width in widths[:-1]))
    for row in ([name.upper() for name in header], *cells):
        padded = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        painted = [_painted(text, (colours or {}).get(text.strip())) for text in padded]
        click.echo("  ".join(painted).rstrip())


def _cut_last(cells: list[list[str]], room: int) -> None:
    """Cuts the last cells to fit; where there is hardly any room they wrap."""
    for row in cells:
        if _LEAST_ROOM <= room < len(row[-1]):
            row[-1] = row[-1][: room - 1] + "…"


def emit_fields(fields: Mapping[str, object]) -> None:
    """Prints ``name  value`` lines; empty values are left out."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        if value not in (None, "", (), [], {}):
            click.echo(f"{name.ljust(width)}  {_cell(value)}")


def size(count: int | None) -> str:
    """Returns a count of bytes for people: ``1.5 MiB``."""
    if count is None:
        return ""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def moment(seconds: float | None) -> str:
    """Returns UTC seconds since the epoch as ISO 8601."""
    if seconds is None:
        return ""
    from time import gmtime, strftime

    return strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(seconds))


def _painted(text: str, colour: str | None) -> str:
    return click.style(text, fg=colour) if colour else text


def _cell(value: object) -> str:
    if isinstance(value, (dict, list, tuple)):
        value = json.dumps(value, ensure_ascii=False)
    return calm(_BREAKS.sub(" ", "" if value is None else str(value)))
