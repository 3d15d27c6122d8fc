"""``skillyard mcp install`` and ``uninstall``: skillyard in the configuration of a client."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import click

from skillyard.faces.cli.failures import Failure
from skillyard.faces.cli.mcp.clients import CLIENTS, ClientKind, Entry, Scope, Unfit, changed, found, is_ours
from skillyard.faces.cli.mcp.files import difference, read, write
from skillyard.faces.cli.render import calm

NAME = "skillyard"


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
        click.option("--name", default=NAME, show_default=True, help="The name of the entry."),
        click.option(
            "--scope",
            type=click.Choice(["user", "project", "local"]),
            help="Whose configuration: the user's, that of the working directory, or (Claude Code) the user's for this"
            " directory.  [default: local for claude-code, else user]",
        ),
        click.argument("client", type=click.Choice(list(CLIENTS))),
    ):
        command = decorate(command)
    return command


@click.command()
@_common
@click.option("--print", "only_print", is_flag=True, help="Print the new configuration, and write nothing.")
@click.option("--url", help="Pass messages to this server; the client must have SKILLYARD_TOKEN in its environment.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False), help="The data directory, where it is another one."
)
@click.option("--profile", metavar="NAME", help="The profile of the settings that bounds the client.")
def install(
    client: str,
    scope: str | None,
    name: str,
    yes: bool,
    only_print: bool,
    url: str | None,
    data_dir: Path | None,
    profile: str | None,
) -> None:
    """Put skillyard into the configuration of an MCP client.

    Shows the difference first, keeps a copy of the file, and leaves every other entry as it is.
    """
    kind = CLIENTS[client]
    args = ["mcp"]
    for option, value in (("--url", url), ("--data-dir", data_dir and data_dir.absolute()), ("--profile", profile)):
        args += [option, str(value)] if value is not None else []
    command, *first = program()
    entry = kind.entry(command, [*first, *args], {})
    _change(kind, scope, name, entry, yes=yes, only_print=only_print)


@click.command()
@_common
def uninstall(client: str, scope: str | None, name: str, yes: bool) -> None:
    """Take skillyard out of the configuration of an MCP client."""
    _change(CLIENTS[client], scope, name, None, yes=yes, only_print=False)


def program() -> list[str]:
    """Returns the absolute command: clients with windows have no shell's PATH."""
    own = Path(sys.argv[0])
    if own.name == NAME and own.is_file():
        return [str(own.absolute())]
    beside = Path(sys.executable).with_name(NAME)
    if beside.is_file():
        return [str(beside)]
    return [shutil.which(NAME)] if shutil.which(NAME) else [sys.executable, "-P", "-m", NAME]  # type: ignore[list-item]


def _change(
    kind: ClientKind, scope: str | None, name: str, entry: Entry | None, *, yes: bool, only_print: bool
) -> None:
    chosen = cast("Scope", scope or next(iter(kind.places)))
    if chosen not in kind.places:
        raise Failure(f"--scope: {kind.name} has no scope '{chosen}'", f"choose {' or '.join(kind.places)}")
    here = Path.cwd()
    file = kind.file(chosen, Path.home(), here).resolve()
    path, before = kind.path(chosen, here), read(file)
    try:
        present = found(kind, before, path, name)
        after = changed(kind, before, path, name, entry)
    except Unfit as error:
        raise Failure(
            f"{file} is left as it is: {error}", "change it by hand, as --print shows for an empty file"
        ) from None
    if only_print:
        click.echo(after, nl=False)
        return
    if present is not None and not is_ours(present):
        raise Failure(f"{file} has another server of the name '{name}'", "choose another --name")
    if entry is None and present is None:
        click.echo(f"there is no '{name}' in {file}")
        return
    if present == entry:
        click.echo(f"{file} has it already")
        return
    click.echo(calm("".join(difference(file, before, after))), nl=False)
    if not yes and not click.confirm(f"Write {file}?"):
        raise click.Abort
    kept = write(file, before, after)
    click.echo(f"wrote {file}" + (f"; the file before is {kept.name}" if kept else ""))
