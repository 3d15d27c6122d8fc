"""``skillyard secret``: set, bind, list, rollback, rm, audit, rotate, key."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.calls import Call, Caller, Given, add_calls, params_of
from skillyard.faces.cli.failures import Failure
from skillyard.faces.cli.inputs import decoded
from skillyard.faces.cli.options import data_dir_option, limit_option
from skillyard.faces.cli.render import moment
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.engine.secrets.service import SecretBook

_MOST, _MOST_KEY = 1024 * 1024, 4097
"""Bytes that are read of a value, and of a key."""
_ALL = "*"


@click.group()
def secret() -> None:
    """Store sealed values for the skills that declare them.

    Commands work on the files of the data directory, beside a server that may run on it, or through the server that
    --url or SKILLYARD_URL names, with a token of the scope admin. No command and no server ever shows a value.
    """


@dataclass(frozen=True, slots=True)
class _Place:
    """The server that the options name, else the files of the data directory."""

    url: str | None
    token: str | None
    data_dir: Path | None

    @contextmanager
    def open(self, **_: bool) -> Iterator[Caller]:
        """Yields the methods for secrets. Raises InvalidInput, StoreFault and what the client raises."""
        if self.url:
            from skillyard.client.sync import SyncClient

            with SyncClient(self.url, self.token, data_dir=self.data_dir) as client:
                yield client
        else:
            with _local_secrets(self.data_dir) as local:
                yield local


def _place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``where``: a place that opens the methods."""

    @click.option(
        "--url", envvar="SKILLYARD_URL", help="A server to do it; else it is done here.  [env: SKILLYARD_URL]"
    )
    @click.option("--token", envvar="SKILLYARD_TOKEN", help="Its bearer token.  [env: SKILLYARD_TOKEN]")
    @data_dir_option
    @wraps(command)
    def placed(*args: Any, url: str | None, token: str | None, data_dir: Path | None, **kwargs: Any) -> Any:
        return command(*args, where=_Place(url, token, data_dir), **kwargs)

    return placed


def _scope_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``project`` and ``skills``: whom a secret is for."""
    for decorate in (
        click.option(
            "--skills",
            metavar="PATTERN",
            help="For this skill, or those that begin so: sales.*; for all when left out.",
        ),
        click.option("--project", metavar="NAME", help="For this project alone; for every one when left out."),
    ):
        command = decorate(command)
    return command


def _hosts_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--host", "hosts", metavar="HOST", multiple=True, help="A host it is bound to. May repeat.")(
        command
    )


@secret.command("set")
@click.argument("name")
@click.option("--from-file", type=click.Path(path_type=Path, dir_okay=False), help="Read the value from this file.")
@click.option("--delivery", type=click.Choice(["env", "gate"]), help="As before when left out; env at first.")
@_hosts_option
@_scope_options
@_place_options
def set_(name: str, from_file: Path | None, where: _Place, **given: Any) -> None:
    """Store a value under NAME, as a new version that is current at once.

    The value is read from standard input, asked for when somebody types, or read from a file; never from an argument,
    which others on the host can see. One line break at the end of the input is left out.

    With --delivery gate skills never get the value: the gate puts it into requests to the hosts that it is bound to.

    \b
      printf %s "$VALUE" | skillyard secret set CRM_TOKEN
    """
    value = _read_value(name, from_file)
    with where.open() as secrets:
        stored = secrets.call("secrets.set", {"name": name, "value": value, **params_of(given)})["secret"]
    click.echo(f"stored {_title(stored)}, version {stored['version']}", err=True)
    _warn_unbound(stored)
    _warn_short(stored, value)


@secret.command()
@data_dir_option
def rotate(data_dir: Path | None) -> None:
    """Seal every value anew, under a new key, and forget the old one.

    A key that you give yourself (variable, file, keyring) is yours to change: put the new one in front of the old
    one, rotate, then take the old one away.
    """
    with _local_secrets(data_dir) as local:
        count = local.rotate()
    click.echo(f"sealed {count} value{'' if count == 1 else 's'} anew, under the current key", err=True)


@secret.group()
def key() -> None:
    """Make and load the key that seals the store, where you give it yourself."""


@key.command("new")
def new_() -> None:
    """Print a new random key, for SKILLYARD_SECRETS_KEY, a key file or the keyring."""
    from skillyard.wiring import new_secrets_key

    click.echo(new_secrets_key())


@key.command()
@click.argument("name")
def load(name: str) -> None:
    """Put the key on standard input into this user's keyring in the kernel, under NAME.

    It stays there until the host stops.

    \b
      skillyard secret key load skillyard < /root/skillyard.key      and secrets.keyring = "skillyard"
    """
    from skillyard.domain.errors import StoreFault
    from skillyard.wiring import keyring_text, load_keyring

    text = decoded("key", sys.stdin.buffer.read(_MOST_KEY))
    try:
        keys = keyring_text(text)
    except StoreFault as fault:
        raise Failure(fault.message, "`skillyard secret key new` prints one") from None
    load_keyring(name, keys)
    click.echo(f"loaded {name}", err=True)


def _read_value(name: str, file: Path | None) -> str:
    """Returns the whole input without the line break at its end; asks for it on a terminal."""
    if file is None and sys.stdin.isatty():
        value: str = click.prompt(f"value of {name}", hide_input=True, err=True)
        return value
    if file is None or str(file) == "-":
        data = sys.stdin.buffer.read(_MOST)
    else:
        with file.open("rb") as source:
            data = source.read(_MOST)
    try:
        text = data.decode()
    except UnicodeDecodeError:  # no byte of it is repeated
        raise Failure("value: must be UTF-8 text") from None
    return text.removesuffix("\n").removesuffix("\r")


def _warn_unbound(shown: Mapping[str, Any]) -> None:
    if shown["delivery"] == "gate" and not shown["hosts"]:
        said = "no host is bound to it: each skill's manifest says where it goes; --host HOST binds it"
        click.echo(f"{_title(shown)}: {said}", err=True)


def _warn_short(shown: Mapping[str, Any], value: str) -> None:
    from skillyard.engine.secrets.service import LEAST_AT_GATE

    if shown["delivery"] == "gate" and len(value) < LEAST_AT_GATE:
        said = f"shorter than {LEAST_AT_GATE} characters: runs that need it at the gate are refused"
        click.echo(f"{_title(shown)}: {said}", err=True)


def _title(shown: Mapping[str, Any]) -> str:
    if not shown["project"] and not shown["skills"]:
        return str(shown["name"])
    return f"{shown['name']} for {shown['project'] or _ALL}/{shown['skills'] or _ALL}"


class _LocalSecrets:
    """Does the methods for secrets on the files of a data directory; a server may run on it."""

    def __init__(self, book: SecretBook, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._book = book
        self._wait = wait

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        from skillyard.domain.principal import LOCAL
        from skillyard.engine.secrets.methods import call

        found: dict[str, Any] = self._wait(call(self._book, LOCAL, method, params or {}))
        return found

    def rotate(self) -> int:
        """Seals every value anew and returns how many there are."""
        from skillyard.domain.principal import LOCAL
        from skillyard.engine.secrets.methods import rotate

        count: int = self._wait(rotate(self._book, LOCAL))
        return count


@contextmanager
def _local_secrets(data_dir: Path | None) -> Iterator[_LocalSecrets]:
    """Opens the secrets of the data directory as its settings say. Raises InvalidInput, StoreFault."""
    import asyncio

    from skillyard.client.discovery import default_data_dir
    from skillyard.config.settings import load_settings
    from skillyard.data_dir import DataDir
    from skillyard.wiring import local_secrets

    places = DataDir(data_dir or default_data_dir())
    settings = load_settings(data_dir=places.home)
    opened = local_secrets(settings, places)
    with asyncio.Runner() as runner:
        book = runner.run(opened.__aenter__())
        try:
            yield _LocalSecrets(book, runner.run)
        finally:
            runner.run(opened.__aexit__(None, None, None))


def _secret_of(event: Mapping[str, Any]) -> str:
    scope = event["scope"]
    return str(event["name"]) + (f" ({scope})" if scope not in ("", "*/*") else "")


def _bound(secret: Mapping[str, Any], _: Given) -> str:
    where = ", ".join(secret["hosts"])
    return f"{_title(secret)} is delivered by {secret['delivery']}" + (f", to {where}" if where else "")


def _removed(deleted: bool, given: Given) -> str:
    if not deleted:
        scope = {name: given[name] for name in ("project", "skills") if given[name]}
        whom = f" for {scope.get('project', _ALL)}/{scope.get('skills', _ALL)}" if scope else ""
        raise Failure(f"no secret {given['name']!r}{whom}", "`skillyard secret list` shows the names")
    return f"removed {given['name']}"


_name = click.argument("name")
add_calls(
    secret,
    {
        "bind": Call(
            method="secrets.bind",
            help="Change how a secret is delivered and which hosts it is bound to; its value stays.",
            options=(
                _name,
                click.option("--delivery", type=click.Choice(["env", "gate"]), required=True),
                _hosts_option,
                _scope_options,
            ),
            ask=lambda given: {"hosts": [], **params_of(given)},
            key="secret",
            said=_bound,
            show=lambda secret, _: _warn_unbound(secret),
            json=False,
            place=_place_options,
        ),
        "list": Call(
            method="secrets.list",
            help="List secrets, whom they are for and when they were last used; values are never shown.",
            key="secrets",
            paged=True,
            columns={
                "name": "name",
                "project": lambda secret: secret["project"] or _ALL,
                "skills": lambda secret: secret["skills"] or _ALL,
                "version": "version",
                "kept": lambda secret: " ".join(str(version["version"]) for version in secret["versions"]),
                "delivery": "delivery",
                "hosts": lambda secret: " ".join(secret["hosts"]),
                "set": lambda secret: moment(secret["created_at"]),
                "last used": lambda secret: moment(secret["used_at"]),
            },
            place=_place_options,
        ),
        "rollback": Call(
            method="secrets.rollback",
            help="Make a VERSION that is still kept the current one.",
            options=(_name, click.argument("version", type=click.IntRange(min=1)), _scope_options),
            key="secret",
            said=lambda secret, _: f"{_title(secret)} is at version {secret['version']}",
            json=False,
            place=_place_options,
        ),
        "rm": Call(
            method="secrets.delete",
            help="Remove a secret with all its versions.",
            options=(_name, _scope_options),
            key="deleted",
            said=_removed,
            json=False,
            place=_place_options,
        ),
        "audit": Call(
            method="secrets.audit",
            help="List uses, refusals and changes of secrets, newest first; of NAME alone when it is given.",
            options=(click.argument("name", required=False), limit_option),
            key="events",
            paged=True,
            columns={
                "when": lambda event: moment(event["at"]),
                "what": lambda event: event["act"].replace("_", " "),
                "secret": _secret_of,
                "version": lambda event: event["version"] + (f" {event['delivery']}" if event["delivery"] else ""),
                "by": "principal",
                "project": "project",
                "skill": "skill",
                "run": "run_id",
                "note": "reason",
            },
            place=_place_options,
        ),
    },
)
