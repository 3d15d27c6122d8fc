"""``skillyard skill new``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from skillyard.faces.cli.options import json_option
from skillyard.faces.cli.render import emit_json


@click.command()
@click.argument("name")
@click.option("--dir", "parent", type=click.Path(path_type=Path, file_okay=False), default=".", help="Where to put it.")
@click.option("--kind", type=click.Choice(["action", "instruction"]), default="action", show_default=True)
@json_option
def new(name: str, parent: Path, kind: Literal["action", "instruction"], as_json: bool) -> None:
    """Make a skill that works, to start from: DIR/NAME with manifest, documentation and code."""
    from skillyard.stores.skills import new_skill

    directory = parent / name
    files = new_skill(directory, name, kind)
    if as_json:
        emit_json({"name": name, "path": str(directory), "files": [str(file) for file in files]})
        return
    click.echo(str(directory))
    click.echo(f"next: skillyard skill validate {directory}", err=True)
    if kind == "action":
        click.echo(f'      skillyard run {name} --skills-dir {parent} --args \'{{"text": "hello"}}\'', err=True)
