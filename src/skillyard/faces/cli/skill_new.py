"""``skillyard skill new``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Literal

import click

from skillyard.faces.cli.options import json_option
from skillyard.faces.cli.render import emit_json


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
