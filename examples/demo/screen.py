"""How the demo prints: numbered parts, aligned lines, and on their right how long each took."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import wrap
from time import perf_counter

import click

from skillyard.faces.cli.render import calm

WIDTH = 104
_LABEL = 20
_TIME = 9


@dataclass(slots=True)
class Line:
    """What a step says when it has ended."""

    text: str = ""


class Screen:
    """Plain text for a pipe, a little colour on a terminal."""

    def __init__(self) -> None:
        self._part = 0

    def part(self, title: str) -> None:
        self._part += 1
        click.echo()
        click.secho(f"{self._part}  {title}", bold=True)

    @contextmanager
    def step(self, label: str) -> Iterator[Line]:
        """Times its body, and prints one line when that ended well."""
        line, began = Line(), perf_counter()
        yield line
        self._print(label, line.text, duration(perf_counter() - began))

    def fact(self, label: str, text: str) -> None:
        """A line without a time."""
        self._print(label, text, "")

    def quote(self, text: str, lines: int = 20) -> None:
        """The beginning of a longer text, without its blank lines."""
        every = [line for line in calm(text).splitlines() if line.strip()]
        for line in every[:lines]:
            click.secho(f"   │ {_cut(line, WIDTH - 5)}", dim=True)
        if len(every) > lines:
            click.secho(f"   │ … {len(every) - lines} more lines", dim=True)

    def paragraph(self, label: str, text: str) -> None:
        """Words that may need several lines."""
        room = WIDTH - 3 - _LABEL
        for number, line in enumerate(wrap(calm(text), room, break_on_hyphens=False)):
            click.echo(f"   {label if number == 0 else '':<{_LABEL}}{line}")

    def row(self, label: str, text: str, *, good: bool) -> None:
        """A wall's or an attack's line, with a mark that needs no colour."""
        mark = click.style("held  ", fg="green") if good else click.style("BROKEN", fg="red", bold=True)
        click.echo(f"   {mark} {label:<30}{_cut(calm(text), WIDTH - 40)}")

    def _print(self, label: str, text: str, took: str) -> None:
        room = WIDTH - 3 - _LABEL - _TIME
        click.echo(f"   {label:<{_LABEL}}{_cut(calm(text), room):<{room}}{took:>{_TIME}}".rstrip())


def duration(seconds: float) -> str:
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _cut(text: str, room: int) -> str:
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= room else text[: room - 1] + "…"
