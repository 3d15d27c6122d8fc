"""``skillyard skill review``: what to know of a bundle, on disk or served, before trusting it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.failures import Exit
from skillyard.faces.cli.named_version import maybe
from skillyard.faces.cli.options import json_option, server_options
from skillyard.faces.cli.render import calm, emit_fields, emit_json

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Where

_LEVELS = ("error", "danger", "warning", "note")
_COLOURS = {"error": "red", "danger": "red", "warning": "yellow"}


@click.command()
@click.argument("skill", metavar="PATH|NAME[@VERSION]")
@click.option("--level", type=click.Choice(_LEVELS[1:]), default="note", show_default=True, help="Show nothing less.")
@json_option
@server_options
def review(skill: str, level: str, as_json: bool, where: Where) -> None:
    """What a reader should know before trusting a skill, from its files alone: nothing of it is executed.

    A PATH is a directory, a zip or a tar on this machine. Exits with 1 when something is found that an honest skill has
    no reason for, with 2 when it is not a valid skill. That nothing is found is no promise.
    """
    found = _of_path(Path(skill)) if _is_path(skill) else _of_name(skill, where)
    if as_json:
        emit_json(found)
    else:
        _show(found, level)
    if found["counts"]["danger"]:
        click.get_current_context().exit(Exit.FAILED)
    if any(finding["level"] == "error" for finding in found["validation"]):
        click.get_current_context().exit(Exit.BAD_INPUT)


def _is_path(text: str) -> bool:
    """Names have no slash; what lies here goes before what is served."""
    return "/" in text or text in (".", "..") or Path(text).exists()


def _of_path(path: Path) -> dict[str, Any]:
    from skillyard.stores.skills.review import review_source

    return review_source(path)


def _of_name(text: str, where: Where) -> dict[str, Any]:
    name, version = maybe(text)
    with where.open() as target:
        return target.call("catalogue.review", {"name": name} | ({"version": version} if version else {}))


def _show(found: Mapping[str, Any], least: str) -> None:
    emit_fields({key: found.get(key) for key in ("name", "version", "digest", "source")})
    for title, values in (("needs", found["needs"]), ("imports", found["imports"]), ("hosts", {"": found["hosts"]})):
        _show_section(title, values)
    shown = _LEVELS[: _LEVELS.index(least) + 1]
    for finding in (*found["validation"], *found["findings"]):
        if finding["level"] in shown:
            _show_finding(finding)
    counts = ", ".join(f"{count} {level}" for level, count in found["counts"].items())
    click.echo(calm(counts), err=True)


def _show_section(title: str, values: Mapping[str, Any]) -> None:
    rows = {f"{title} {key}".strip(): _line(value) for key, value in values.items() if value not in (None, [], {}, "")}
    emit_fields(rows)


def _line(value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(_line(item) for item in value)
    if isinstance(value, dict):
        return " ".join(f"{key}={_line(item)}" for key, item in value.items() if item not in (None, [], False, ""))
    return str(value)


def _show_finding(finding: Mapping[str, Any]) -> None:
    place = f"{finding['file']}:{finding['line']}" if finding["line"] else finding["file"]
    level = click.style(finding["level"], fg=_COLOURS.get(finding["level"]), bold=finding["level"] == "danger")
    click.echo(f"{calm(str(place))}: {level}: {calm(str(finding['message']))} [{calm(str(finding['rule']))}]")
    if finding.get("mend"):
        click.echo(f"    mend: {calm(str(finding['mend']))}")
