"""``skillyard secret``: set, list, rm."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from skillyard.faces.cli.failures import Failure
from skillyard.faces.cli.options import data_dir_option, json_option
from skillyard.faces.cli.render import emit_json


@click.group()
def secret() -> None:
    """Values that skills which declare them get as environment variables. They are kept sealed."""


@secret.command("set")
@click.argument("name")
@data_dir_option
def set_(name: str, data_dir: Path | None) -> None:
    """Store a secret under NAME; its value is read from standard input.

    One line break at the end of the input is left out.

    \b
      printf %s "$VALUE" | skillyard secret set CRM_TOKEN
    """
    from skillyard.faces.cli.keeping import secrets

    value = _read_value(name)
    with secrets(data_dir) as (store, wait):
        wait(store.set(name, value))
    click.echo(f"stored {name}", err=True)


@secret.command("list")
@json_option
@data_dir_option
def list_(as_json: bool, data_dir: Path | None) -> None:
    """The names of the stored secrets; values are never shown."""
    from skillyard.faces.cli.keeping import secrets

    with secrets(data_dir) as (store, wait):
        names = list(wait(store.names()))
    if as_json:
        emit_json(names)
    else:
        for name in names:
            click.echo(name)


@secret.command()
@click.argument("name")
@data_dir_option
def rm(name: str, data_dir: Path | None) -> None:
    """Remove a secret."""
    from skillyard.faces.cli.keeping import secrets

    with secrets(data_dir) as (store, wait):
        if not wait(store.delete(name)):
            raise Failure(f"no secret {name!r}", "`skillyard secret list` shows the names")
    click.echo(f"removed {name}", err=True)


@secret.command()
@data_dir_option
def rotate(data_dir: Path | None) -> None:
    """Seal everything under a new key and forget the old one."""
    from skillyard.faces.cli.keeping import secrets

    with secrets(data_dir) as (store, wait):
        wait(store.rotate())
    click.echo("sealed under a new key", err=True)


def _read_value(name: str) -> str:
    """All of standard input without the line break at its end; asked for when somebody types."""
    if sys.stdin.isatty():
        value: str = click.prompt(f"value of {name}", hide_input=True, err=True)
        return value
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise Failure("value: must be UTF-8 text") from None
    return text.removesuffix("\n").removesuffix("\r")
