"""``skillyard skill new`` and ``validate``: make a skill, and check it."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

import click

from skillyard.faces.cli.failures import Exit
from skillyard.faces.cli.options import json_option
from skillyard.faces.cli.render import calm, emit_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skillyard.domain.skill.skill import Finding


@click.command()
@click.argument("name")
@click.option("--dir", "parent", type=click.Path(path_type=Path, file_okay=False), default=".", help="Where to put it.")
@click.option(
    "--kind",
    type=click.Choice(["action", "instruction"]),
    help="action runs, instruction is text.  [default: action; instruction for an Agent Skill]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["skills-protocol", "agent-skills"]),
    default="skills-protocol",
    show_default=True,
    help="With skill.toml, or with SKILL.md alone.",
)
@json_option
def new(
    name: str,
    parent: Path,
    kind: Literal["action", "instruction"] | None,
    form: Literal["skills-protocol", "agent-skills"],
    as_json: bool,
) -> None:
    """Make a skill that works, to start from: DIR/NAME with documentation, code and examples that test it."""
    from skillyard.stores.skills.scaffold import new_skill

    directory = parent / name
    files = new_skill(directory, name, kind, form)
    if as_json:
        emit_json({"name": name, "path": str(directory), "files": [str(file) for file in files]})
        return
    click.echo(str(directory))
    click.echo(f"next: skillyard skill validate {quote(str(directory))}", err=True)
    if directory / "tests" / "examples.toml" in files:
        click.echo(f"      skillyard skill test {quote(str(directory))}", err=True)
    if directory / "code" / "main.py" in files:
        where, args = quote(str(parent)), quote('{"text": "hello"}')
        click.echo(f"      skillyard run {quote(name)} --skills-dir {where} --args {args}", err=True)


_MARKS = ("skill.toml", "SKILL.md")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--lenient", is_flag=True, help="Only what would keep the server from using it, not the whole specification."
)
@json_option
def validate(paths: tuple[str, ...], lenient: bool, as_json: bool) -> None:
    """Check the skills in directories, without running anything of them. Exits with 2 when one is invalid.

    A PATH is a skill, or a directory of skills.
    """
    from skillyard.stores.skills.validation.validate import validate as check

    each = (skill for path in paths for skill in _skills(path))
    found = {path: check(path, "lenient" if lenient else "strict") for path in each}
    if as_json:
        emit_json([_verdict(path, findings) for path, findings in found.items()])
    else:
        for path, findings in found.items():
            print_findings(path, findings)
    if not all(is_valid(findings) for findings in found.values()):
        click.get_current_context().exit(Exit.BAD_INPUT)


def _skills(path: str) -> list[str]:
    """Returns the path itself, or the directories of skills in it when it is not a skill; versions lie one directory
    deeper."""
    root = Path(path)
    if any((root / name).is_file() for name in _MARKS):
        return [path]
    below = {found.parent for depth in ("*", "*/*") for name in _MARKS for found in root.glob(f"{depth}/{name}")}
    outermost = [found for found in below if found.parent not in below]
    return sorted(str(found) for found in outermost) or [path]


def is_valid(findings: Sequence[Finding]) -> bool:
    return not any(finding.level == "error" for finding in findings)


def print_findings(path: str, findings: Sequence[Finding]) -> None:
    """Prints each finding with its mend below it, and the verdict on standard error."""
    for finding in findings:
        click.echo(calm(str(finding) if finding.file == path else f"{path}/{finding}"))
    click.echo(calm(f"{path}: {'valid' if is_valid(findings) else 'invalid'}"), err=True)


def _verdict(path: str, findings: Sequence[Finding]) -> dict[str, Any]:
    from dataclasses import asdict

    return {"path": path, "valid": is_valid(findings), "findings": [asdict(finding) for finding in findings]}
