"""``skillyard backup`` and ``skillyard restore``."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from skillyard.faces.cli.options import data_dir_option, json_option

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("destination", metavar="DEST", type=_FILE)
@click.option(
    "--keys",
    type=_FILE,
    help="Write the key of the secrets and the owner's token to this new file (0600). Keep it apart from DEST.",
)
@json_option
@data_dir_option
def backup(destination: Path, keys: Path | None, as_json: bool, data_dir: Path | None) -> None:
    """Back up a data directory to the new file DEST, also while a server runs on it.

    Run records, blobs, published skills, versions, approvals, sealed secrets, tokens, locks of packages, settings and
    the skills below the data directory. Never the key of the secrets: --keys writes that to a file of its own.
    DEST shows records and blobs to its reader: keep it as you keep those.

    \b
      skillyard backup /backups/yard-monday.tar --keys /safe/yard-monday.keys
    """
    import asyncio

    from skillyard.config.settings import load_settings
    from skillyard.data_dir import DataDir
    from skillyard.wiring import back_up

    settings = load_settings(data_dir=data_dir)
    told = asyncio.run(back_up(settings, DataDir(settings.data_dir), destination, keys))
    lost = f"; runs at work, which are lost in it: {told['runs_lost']}" if told["runs_lost"] else ""
    _show(told, f"{told['backup']}: {told['files']} files{lost}", as_json)


@click.command()
@click.argument("source", metavar="SOURCE", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--keys", type=_FILE, help="The file that `skillyard backup --keys` wrote.")
@json_option
@data_dir_option
def restore(source: Path, keys: Path | None, as_json: bool, data_dir: Path | None) -> None:
    """Make a data directory, new or empty, of the backup SOURCE.

    Everything is checked against the digests in the backup first. A restore that is cut off leaves nothing that a
    server would take for a data directory.

    \b
      skillyard restore /backups/yard-monday.tar --keys /safe/yard-monday.keys --data-dir /var/lib/skillyard
    """
    import asyncio

    from skillyard.client.discovery import default_data_dir
    from skillyard.data_dir import DataDir
    from skillyard.wiring import restore as restore_backup

    told = asyncio.run(restore_backup(DataDir((data_dir or default_data_dir()).absolute()), source, keys))
    if told["owner_token"] == "new":  # noqa: S105 - not a token
        told["lacks"].append(f"the owner's token: it ended, and a new one is in {told['data_dir']}/token")
    made = f"{datetime.fromtimestamp(told['created_at'], UTC):%Y-%m-%dT%H:%M:%SZ}"
    _show(
        told, f"{told['data_dir']}: {told['files']} files, as skillyard {told['skillyard']} had them at {made}", as_json
    )


def _show(told: dict[str, Any], line: str, as_json: bool) -> None:
    from skillyard.faces.cli.render import calm, emit_json

    if as_json:
        emit_json(told)
        return
    click.echo(calm(line))
    for word, items in (("lacks", told["lacks"]), ("not in it", told["left_out"])):
        for item in items:
            click.echo(calm(f"{word}: {item}"), err=True)
