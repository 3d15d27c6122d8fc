"""``skillyard demo``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--rows",
    type=click.IntRange(1000, 5_000_000),
    default=300_000,
    show_default=True,
    help="Of the table that it makes.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where to work, and to leave the report.  [default: a temporary directory]",
)
@click.option("--keep", is_flag=True, help="Leave the data directory, to look at it and to serve it.")
def demo(rows: int, directory: Path | None, keep: bool) -> None:
    """Do the main job of a Skills Runtime on this machine, and show it.

    A server is started with the example skills; a table of several hundred thousand rows becomes a blob, is
    summarised by a skill, and questioned by code that imports the skill; hostile code is contained. Shows what
    ran, what it gave, how long it took and which walls stood. Nothing is left running.
    """
    from skillyard.demo.main import demo

    demo(rows, directory, keep)
