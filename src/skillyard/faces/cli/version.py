"""``skillyard version``."""

from __future__ import annotations

import os
import sys

import click

from skillyard._version import __version__
from skillyard.faces.cli.options import json_option


@click.command()
@json_option
def version(as_json: bool) -> None:
    """The version of this program, of its Python and of the kernel."""
    python, kernel = sys.version.split()[0], os.uname()
    if as_json:
        from skillyard.faces.cli.render import emit_json

        emit_json({"version": __version__, "python": python, "kernel": kernel.release, "machine": kernel.machine})
    else:
        click.echo(f"skillyard {__version__} (Python {python}, {kernel.sysname} {kernel.release} {kernel.machine})")
