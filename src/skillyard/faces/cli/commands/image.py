"""``skillyard image``: what sandboxes of other makers are made of."""

from __future__ import annotations

from pathlib import Path

import click

from skillyard.faces.cli.options import data_dir_option, json_option
from skillyard.faces.cli.render import emit_json


@click.group()
def image() -> None:
    """Images, templates and disks for sandboxes of other makers."""


@image.command("e2b-template")
@click.argument("directory", metavar="DIRECTORY", type=click.Path(path_type=Path, file_okay=False))
@click.option("--base", metavar="IMAGE", help="Image to start from, with Python 3.11 or newer and apt.")
@click.option(
    "--packages",
    multiple=True,
    metavar="DIGEST",
    help="A built environment (`skillyard environment list`), so that runs do not upload it. May repeat.",
)
@json_option
@data_dir_option
def e2b_template(
    directory: Path, base: str | None, packages: tuple[str, ...], as_json: bool, data_dir: Path | None
) -> None:
    """Write the Dockerfile and the start command of a template for the isolation e2b.

    Build it with E2B's own command, and set e2b.template to its name (docs/remote-e2b.md).

    \b
      skillyard image e2b-template ./template
      cd template && e2b template create skillyard -d e2b.Dockerfile -c /opt/skillyard/start.sh
    """
    import asyncio

    from skillyard.config.settings import load_settings
    from skillyard.data_dir import DataDir
    from skillyard.images import write_e2b_template

    settings = load_settings(data_dir=data_dir) if packages else None
    places = None if settings is None else DataDir(settings.data_dir)
    files = asyncio.run(write_e2b_template(directory, base, packages, places))
    if as_json:
        emit_json({"directory": str(directory), "files": [str(path) for path in files]})
    else:
        for path in files:
            click.echo(path)
