"""``skillyard skill problems``: why a skill on disk is not served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from skillyard.faces.cli.options import json_option, server_options
from skillyard.faces.cli.render import calm, emit_json

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Where

MOST = 5000


@click.command()
@json_option
@server_options
def problems(as_json: bool, where: Where) -> None:
    """Why a skill in a served directory cannot be used: what is wrong with it, or what comes before it."""
    from skillyard.domain.skill.skill import Finding

    with where.open() as target:
        found = target.call("catalogue.problems", {"limit": MOST})
    if as_json:
        emit_json(found["problems"])
        return
    for problem in found["problems"]:
        click.echo(calm(str(Finding(**problem))))
    left = found["total"] - len(found["problems"])
    if left:
        click.echo(f"and {left} more", err=True)
