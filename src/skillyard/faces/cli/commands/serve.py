"""``skillyard serve``."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from skillyard.faces.cli.failures import Failure
from skillyard.faces.cli.options import data_dir_option, isolation_option


@click.command()
@click.option("--host", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="0 takes any that is free.  [default: 8765]")
@click.option(
    "--skills-dir",
    "skills_dirs",
    type=click.Path(path_type=Path, file_okay=False),
    multiple=True,
    help="A directory of skills. May repeat.",
)
@click.option("--no-auth", is_flag=True, help="Serve whoever reaches the port, without a token; loopback only.")
@isolation_option("What runs get.  [default: native]")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="SKILLYARD_CONFIG",
    help="The settings.  [default: config.toml in the data directory; env: SKILLYARD_CONFIG]",
)
@data_dir_option
def serve(
    host: str | None,
    port: int | None,
    skills_dirs: tuple[Path, ...],
    no_auth: bool,
    isolation: str | None,
    config: Path | None,
    data_dir: Path | None,
) -> None:
    """Serve skills, runs and blobs over HTTP until SIGTERM or Ctrl-C.

    Prints its URL in one line when it is ready. At the first start a token is made and kept in the data
    directory, where the other commands and the client find it by themselves.
    """
    import asyncio

    from skillyard.watches import new_event_loop, raise_descriptors

    raise_descriptors()  # before what counts on them is imported
    from skillyard.config.settings import load_settings
    from skillyard.faces.serve import serve as run_server

    if config is not None:
        os.environ["SKILLYARD_CONFIG"] = str(config)
    settings = load_settings(
        data_dir=data_dir,
        skills_dirs=skills_dirs or None,
        server=_given(host=host, port=port) or None,
        policy=_given(isolation=isolation) or None,
    )
    # Of every source: a server that serves nothing of it would look as if the skills had gone.
    if absent := [path for path in settings.skills_dirs if not path.is_dir()]:
        raise Failure(f"skills_dirs: {absent[0]} is not a directory", "make it, or name another with --skills-dir")
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run_server(settings, no_auth=no_auth, announce=_announce))


def _announce(url: str) -> None:
    # The log has it, too: a server whose starter reads no more, or closed standard output, is none the worse.
    with suppress(OSError, Failure):
        click.echo(f"skillyard is ready at {url}")


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
