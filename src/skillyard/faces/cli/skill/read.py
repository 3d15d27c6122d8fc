"""``skillyard skill review``, ``diff`` and ``problems``: reading before trust."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.calls import Call, Given
from skillyard.faces.cli.failures import Exit
from skillyard.faces.cli.options import json_option, maybe, server_options
from skillyard.faces.cli.render import calm, emit_fields, emit_json, size

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Where


_MOST_PROBLEMS = 5000
_LEVELS = ("error", "danger", "warning", "note")
_COLOURS = {"error": "red", "danger": "red", "warning": "yellow"}


@click.command()
@click.argument("skill", metavar="PATH|NAME[@VERSION]")
@click.option("--level", type=click.Choice(_LEVELS[1:]), default="note", show_default=True, help="Show nothing less.")
@json_option
@server_options
def review(skill: str, level: str, as_json: bool, where: Where) -> None:
    """Show the facts that matter before you trust a skill. Nothing of it is executed.

    A PATH is a directory, a zip or a tar on this machine. Exits with 1 when the review finds something for which an
    honest skill has no reason, and with 2 when it is not a valid skill. A review without findings promises nothing.
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
    """Returns whether the text is a path. A file here goes before a served skill."""
    return "/" in text or text in (".", "..") or Path(text).exists()


def _of_path(path: Path) -> dict[str, Any]:
    from skillyard.wiring import review_skill

    return review_skill(path)


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


_REASONS = {
    "binary": "(no text)",
    "too large": "(too large to be shown line by line)",
    "too many": "(not shown: the whole is too long)",
}
_DIFF_COLOURS = {"-": "red", "+": "green", "@": "cyan"}


def _show_diff(found: Mapping[str, Any], given: Given) -> None:
    click.echo(calm(f"{given['name']} {found['from']['version']} -> {found['to']['version']}"))
    if found["same"]:
        click.echo("the same content")
    _show_needs(found["needs"])
    _show_facts(found["facts"])
    for change in found["files"]:
        _show_change(change, stat=given["stat"])


diff = Call(
    method="catalogue.diff",
    help="Show what changed from version A of a skill to version B, its needs first. B is the latest when left out.",
    options=(
        click.argument("name"),
        click.argument("old", metavar="A"),
        click.argument("new", metavar="[B]", required=False),
        click.option("--stat", is_flag=True, help="Only which files changed, not how."),
    ),
    ask=lambda given: {"name": given["name"], "from": given["old"]} | ({"to": given["new"]} if given["new"] else {}),
    show=_show_diff,
).command("diff")


def _show_needs(needs: list[Mapping[str, Any]]) -> None:
    """Prints changed needs. New ones stand out: no approval of an earlier version covers them."""
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
                click.echo(click.style(f"{mark} {change['field']}: {_one_line(text)}", fg=_DIFF_COLOURS[mark]))


def _show_change(change: Mapping[str, Any], *, stat: bool) -> None:
    sizes = [size(change[key]) for key in ("old_size", "new_size") if change[key] is not None]
    head = f"{change['change']} {change['path']} ({' -> '.join(dict.fromkeys(sizes))}){_mode(change)}"
    click.echo(("" if stat else "\n") + click.style(_one_line(head), bold=True))
    if stat:
        return
    if change["reason"]:
        click.echo(_REASONS.get(change["reason"], calm(str(change["reason"]))))
    for line in change["diff"].split("\n")[:-1]:
        click.echo(click.style(calm(line), fg=_DIFF_COLOURS.get(line[:1])))
    if change["cut"]:
        click.echo("(cut: there is more)")


def _mode(change: Mapping[str, Any]) -> str:
    was, now = change["old_executable"], change["new_executable"]
    if now and not was:
        return ", executable"
    return ", no longer executable" if was and now is False else ""


def _one_line(text: str) -> str:
    return calm(" ".join(str(text).split()))


@click.command()
@json_option
@server_options
def problems(as_json: bool, where: Where) -> None:
    """List the skills in served directories that cannot be used, each with the reason."""
    from skillyard.domain.skill.skill import Finding

    with where.open() as target:
        found = target.call("catalogue.problems", {"limit": _MOST_PROBLEMS})
    if as_json:
        emit_json(found["problems"])
        return
    for problem in found["problems"]:
        click.echo(calm(str(Finding(**problem))))
    left = found["total"] - len(found["problems"])
    if left:
        click.echo(f"and {left} more", err=True)
