"""``skillyard skill diff``: one version beside another, what it asks for before all else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.options import json_option, server_options
from skillyard.faces.cli.render import calm, emit_json, size

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Where

_REASONS = {
    "binary": "(no text)",
    "too large": "(too large to be shown line by line)",
    "too many": "(not shown: the whole is too long)",
}
_COLOURS = {"-": "red", "+": "green", "@": "cyan"}


@click.command()
@click.argument("name")
@click.argument("old", metavar="A")
@click.argument("new", metavar="[B]", required=False)
@click.option("--stat", is_flag=True, help="Only which files changed, not how.")
@json_option
@server_options
def diff(name: str, old: str, new: str | None, stat: bool, as_json: bool, where: Where) -> None:
    """What version B of a skill asks for, is and holds that version A did not. B is the latest when left out."""
    with where.open() as target:
        found = target.call("catalogue.diff", {"name": name, "from": old} | ({"to": new} if new else {}))
    if as_json:
        emit_json(found)
        return
    click.echo(calm(f"{name} {found['from']['version']} -> {found['to']['version']}"))
    if found["same"]:
        click.echo("the same content")
    _show_needs(found["needs"])
    _show_facts(found["facts"])
    for change in found["files"]:
        _show_file(change, stat=stat)


def _show_needs(needs: list[Mapping[str, Any]]) -> None:
    """What it asks for anew stands out; approvals of the version before say nothing of it."""
    if needs:
        click.echo(click.style("\nneeds", bold=True))
    for change in needs:
        was, now = change["before"], change["after"]
        told = f"{was} -> {now}" if was and now else now or f"no longer {was}"
        told = told if change["name"] in told else f"{change['name']}: {told}"
        mark, colour = ("!", "yellow") if change["widens"] else (" ", None)
        click.echo(click.style(f"{mark} {change['need']}: {_one_line(told)}", fg=colour))


def _show_facts(facts: list[Mapping[str, Any]]) -> None:
    if facts:
        click.echo(click.style("\nmanifest", bold=True))
    for change in facts:
        for mark, text in (("-", change["before"]), ("+", change["after"])):
            if text:
                click.echo(click.style(f"{mark} {change['field']}: {_one_line(text)}", fg=_COLOURS[mark]))


def _show_file(change: Mapping[str, Any], *, stat: bool) -> None:
    sizes = [size(change[key]) for key in ("old_size", "new_size") if change[key] is not None]
    head = f"{change['change']} {change['path']} ({' -> '.join(dict.fromkeys(sizes))}){_mode(change)}"
    click.echo(("" if stat else "\n") + click.style(_one_line(head), bold=True))
    if stat:
        return
    if change["reason"]:
        click.echo(_REASONS.get(change["reason"], calm(str(change["reason"]))))
    for line in change["diff"].split("\n")[:-1]:
        click.echo(click.style(calm(line), fg=_COLOURS.get(line[:1])))
    if change["cut"]:
        click.echo("(cut: there is more)")


def _mode(change: Mapping[str, Any]) -> str:
    was, now = change["old_executable"], change["new_executable"]
    if now and not was:
        return ", executable"
    return ", no longer executable" if was and now is False else ""


def _one_line(text: str) -> str:
    return calm(" ".join(str(text).split()))
