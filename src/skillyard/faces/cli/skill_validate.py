"""``skillyard skill validate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.failures import Exit
from skillyard.faces.cli.options import json_option
from skillyard.faces.cli.render import calm, emit_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skillyard.domain.skill.skill import Finding

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
    """The path itself, or the directories of skills in it when it is none; versions lie one directory deeper."""
    root = Path(path)
    if any((root / name).is_file() for name in _MARKS):
        return [path]
    below = {found.parent for depth in ("*", "*/*") for name in _MARKS for found in root.glob(f"{depth}/{name}")}
    outermost = [found for found in below if found.parent not in below]
    return sorted(str(found) for found in outermost) or [path]


def is_valid(findings: Sequence[Finding]) -> bool:
    return not any(finding.level == "error" for finding in findings)


def print_findings(path: str, findings: Sequence[Finding]) -> None:
    """Each with its mend below it, and the verdict on standard error."""
    for finding in findings:
        click.echo(calm(str(finding) if finding.file == path else f"{path}/{finding}"))
    click.echo(calm(f"{path}: {'valid' if is_valid(findings) else 'invalid'}"), err=True)


def _verdict(path: str, findings: Sequence[Finding]) -> dict[str, Any]:
    from dataclasses import asdict

    return {"path": path, "valid": is_valid(findings), "findings": [asdict(finding) for finding in findings]}
