"""How what skills declare that they need is shown: asked, granted, and why not more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from skillyard.faces.cli.render import calm, emit_table

_COLOURS = {"nothing": "yellow", "in part": "yellow"}
_BY = {
    "operator": "approved by",
    "rule": "approved by the rule",
    "directory": "approved: it lies in a directory of the operator's",
    "built-in": "approved: it is built in",
}


def show_declared(view: Mapping[str, Any]) -> None:
    """Of ``catalogue.needs``."""
    click.echo(calm(f"{view['name']}@{view['version']}, sha256 {view['digest']}: {standing(view)}"))
    rows = [_row(row) for row in view["needs"]]
    if rows:
        emit_table(("need", "asked", "granted once approved", "why not more"), rows, colours=_COLOURS)
    else:
        click.echo("it asks for nothing")


def show_run_needs(needs: Mapping[str, Any]) -> None:
    """Of a run's record."""
    click.echo("")
    for skill in needs["skills"]:
        click.echo(calm(f"{skill['skill']}@{skill['version']}: {standing(skill)}"))
    if needs["least"]:
        click.echo(calm(f"the run got the least policy: {needs['least']}"))
    rows = [(skill["skill"], *_row(row)) for skill in needs["skills"] for row in skill["needs"]]
    if rows:
        emit_table(("skill", "need", "asked", "granted", "why not more"), rows, colours=_COLOURS)
    if needs["dropped"]:
        click.echo(f"{needs['dropped']} more rows had no room in the record")


def standing(of: Mapping[str, Any]) -> str:
    """``approved by ann``."""
    if not of["approved"]:
        return "not approved"
    return f"{_BY.get(of['by'], 'approved')} {of['because']}".rstrip()


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["need"], row["asked"], row.get("granted") or "nothing", row.get("why", "")
