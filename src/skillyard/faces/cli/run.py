"""``skillyard run``."""

from __future__ import annotations

from typing import Any

import click

from skillyard.faces.cli.execution import perform, run_options
from skillyard.faces.cli.named_version import chosen


@click.command()
@click.argument("skill", metavar="NAME[@VERSION]")
@click.option("--version", help="A version of the skill; the latest when left out.")
@run_options
def run(skill: str, version: str | None, **options: Any) -> None:
    """Run an action skill in a fresh sandbox and print what it returned.

    Standard output is the returned value as JSON; logs and the summary go to standard error. Ctrl-C cancels
    the run.

    \b
      skillyard run examples.csv.summarize --blob blob=sales.csv --args '{"top": 3}' --save reports
      skillyard run examples.csv.summarize --blob sales.csv --args '{"blob": "{blob:sales.csv}"}'
    """
    name, wanted = chosen(skill, version)
    params = {"name": name} | ({"version": wanted} if wanted else {})
    perform("execute_skill", params, **options)
