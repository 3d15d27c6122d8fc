"""``skillyard secret``: set, bind, list, rollback, rm, audit, rotate, key."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.failures import Failure
from skillyard.faces.cli.options import data_dir_option, json_option
from skillyard.faces.cli.paging import Caller, collect
from skillyard.faces.cli.render import emit_json, emit_table, moment
from skillyard.faces.cli.streams import decoded

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST = 1024 * 1024
_ALL = "*"


@click.group()
def secret() -> None:
    """Values that skills which declare them get, kept sealed.

    Commands work on the files of the data directory, beside a server that may run on it, or through the server that
    --url or SKILLYARD_URL names, with a token of the scope admin. No command and no server ever shows a value.
    """


def _place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``at``: a context manager that gives the methods."""

    @click.option(
        "--url", envvar="SKILLYARD_URL", help="A server to do it; else it is done here.  [env: SKILLYARD_URL]"
    )
    @click.option("--token", envvar="SKILLYARD_TOKEN", help="Its bearer token.  [env: SKILLYARD_TOKEN]")
    @data_dir_option
    @wraps(command)
    def placed(*args: Any, url: str | None, token: str | None, data_dir: Path | None, **kwargs: Any) -> Any:
        return command(*args, at=lambda: _open(url, token, data_dir), **kwargs)

    return placed


def _scope_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``scope``: the parameters ``project`` and ``skills``."""

    @click.option("--project", metavar="NAME", help="For this project alone; for every one when left out.")
    @click.option(
        "--skills", metavar="PATTERN", help="For this skill, or those that begin so: sales.*; for all when left out."
    )
    @wraps(command)
    def scoped(*args: Any, project: str | None, skills: str | None, **kwargs: Any) -> Any:
        given = {"project": project, "skills": skills}
        return command(*args, scope={name: value for name, value in given.items() if value}, **kwargs)

    return scoped


@contextmanager
def _open(url: str | None, token: str | None, data_dir: Path | None) -> Iterator[Caller]:
    if url:
        from skillyard.client.sync import SyncClient

        with SyncClient(url, token, data_dir=data_dir) as client:
            yield client
        return
    from skillyard.faces.cli.keeping import secrets

    with secrets(data_dir) as local:
        yield local


@secret.command("set")
@click.argument("name")
@click.option("--from-file", type=click.Path(path_type=Path, dir_okay=False), help="Read the value from this file.")
@click.option("--delivery", type=click.Choice(["env", "gate"]), help="As before when left out; env at first.")
@click.option("--host", "hosts", metavar="HOST", multiple=True, help="A host it is bound to. May repeat.")
@_scope_options
@_place_options
def set_(
    name: str, from_file: Path | None, delivery: str | None, hosts: tuple[str, ...], scope: dict[str, Any], at: Any
) -> None:
    """Store a value under NAME, as a new version that is current at once.

    The value is read from standard input, asked for when somebody types, or read from a file; never from an argument,
    which others on the host can see. One line break at the end of the input is left out.

    With --delivery gate skills never get the value: the gate puts it into requests to the hosts that it is bound to.

    \b
      printf %s "$VALUE" | skillyard secret set CRM_TOKEN
    """
    value = _read_value(name, from_file)
    params: dict[str, Any] = {"name": name, "value": value, **scope}
    params |= ({"delivery": delivery} if delivery else {}) | ({"hosts": list(hosts)} if hosts else {})
    with at() as secrets:
        stored = secrets.call("secrets.set", params)["secret"]
    click.echo(f"stored {_title(stored)}, version {stored['version']}", err=True)
    _warn_unbound(stored)
    _warn_short(stored, value)


@secret.command()
@click.argument("name")
@click.option("--delivery", type=click.Choice(["env", "gate"]), required=True)
@click.option("--host", "hosts", metavar="HOST", multiple=True, help="A host it is bound to. May repeat.")
@_scope_options
@_place_options
def bind(name: str, delivery: str, hosts: tuple[str, ...], scope: dict[str, Any], at: Any) -> None:
    """Change how a secret is delivered and which hosts it is bound to; its value stays."""
    with at() as secrets:
        changed = secrets.call("secrets.bind", {"name": name, "delivery": delivery, "hosts": list(hosts), **scope})
    where = ", ".join(changed["secret"]["hosts"])
    click.echo(f"{_title(changed['secret'])} is delivered by {delivery}" + (f", to {where}" if where else ""), err=True)
    _warn_unbound(changed["secret"])


@secret.command("list")
@json_option
@_place_options
def list_(as_json: bool, at: Any) -> None:
    """What secrets there are, for whom, and when they were last used; values are never shown."""
    with at() as secrets:
        found = collect(secrets, "secrets.list", "secrets", None, {})
    if as_json:
        emit_json(found)
    else:
        emit_table(
            ("name", "project", "skills", "version", "kept", "delivery", "hosts", "set", "last used"), map(_row, found)
        )


@secret.command()
@click.argument("name")
@click.argument("version", type=click.IntRange(min=1))
@_scope_options
@_place_options
def rollback(name: str, version: int, scope: dict[str, Any], at: Any) -> None:
    """Make a VERSION that is still kept the current one."""
    with at() as secrets:
        changed = secrets.call("secrets.rollback", {"name": name, "version": version, **scope})["secret"]
    click.echo(f"{_title(changed)} is at version {changed['version']}", err=True)


@secret.command()
@click.argument("name")
@_scope_options
@_place_options
def rm(name: str, scope: dict[str, Any], at: Any) -> None:
    """Remove a secret with all its versions."""
    with at() as secrets:
        if not secrets.call("secrets.delete", {"name": name, **scope})["deleted"]:
            whom = f" for {scope.get('project', _ALL)}/{scope.get('skills', _ALL)}" if scope else ""
            raise Failure(f"no secret {name!r}{whom}", "`skillyard secret list` shows the names")
    click.echo(f"removed {name}", err=True)


@secret.command()
@click.argument("name", required=False)
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@json_option
@_place_options
def audit(name: str | None, limit: int, as_json: bool, at: Any) -> None:
    """Who used, was denied or changed which secret, newest first; of NAME alone when it is given."""
    with at() as secrets:
        found = collect(secrets, "secrets.audit", "events", limit, {"name": name} if name else {})
    if as_json:
        emit_json(found)
    else:
        emit_table(("when", "what", "secret", "version", "by", "project", "skill", "run", "note"), map(_event, found))


@secret.command()
@data_dir_option
def rotate(data_dir: Path | None) -> None:
    """Seal every value anew, under a new key, and forget the old one.

    A key that you give yourself (variable, file, keyring) is yours to change: put the new one in front of the old
    one, rotate, then take the old one away.
    """
    from skillyard.faces.cli.keeping import secrets

    with secrets(data_dir) as local:
        count = local.rotate()
    click.echo(f"sealed {count} value{'' if count == 1 else 's'} anew, under the current key", err=True)


@secret.group()
def key() -> None:
    """The key that seals the store, where you give it yourself."""


@key.command("new")
def new_() -> None:
    """Print a new random key, for SKILLYARD_SECRETS_KEY, a key file or the keyring."""
    from skillyard.stores.seal.keys import new_key

    click.echo(new_key().text())


@key.command()
@click.argument("name")
def load(name: str) -> None:
    """Put the key on standard input into the kernel's keyring of this user, under NAME; it stays until the host stops.

    \b
      skillyard secret key load skillyard < /root/skillyard.key      and secrets.keyring = "skillyard"
    """
    from skillyard.domain.errors import StoreFault
    from skillyard.stores.seal.keyring import load_key
    from skillyard.stores.seal.keys import MOST_TEXT, parse_keys

    text = decoded("key", sys.stdin.buffer.read(MOST_TEXT + 1))
    try:
        keys = parse_keys(text, "standard input")
    except StoreFault as fault:
        raise Failure(fault.message, "`skillyard secret key new` prints one") from None
    load_key(name, ",".join(key.text() for key in keys).encode())
    click.echo(f"loaded {name}", err=True)


def _read_value(name: str, file: Path | None) -> str:
    """The whole input without the line break at its end; asked for when somebody types."""
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
    from skillyard.engine.secrets.for_run import LEAST_AT_GATE

    if shown["delivery"] == "gate" and len(value) < LEAST_AT_GATE:
        said = f"shorter than {LEAST_AT_GATE} characters: runs that need it at the gate are refused"
        click.echo(f"{_title(shown)}: {said}", err=True)


def _title(shown: Mapping[str, Any]) -> str:
    if not shown["project"] and not shown["skills"]:
        return str(shown["name"])
    return f"{shown['name']} for {shown['project'] or _ALL}/{shown['skills'] or _ALL}"


def _row(shown: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        shown["name"],
        shown["project"] or _ALL,
        shown["skills"] or _ALL,
        str(shown["version"]),
        " ".join(str(version["version"]) for version in shown["versions"]),
        shown["delivery"],
        " ".join(shown["hosts"]),
        moment(shown["created_at"]),
        moment(shown["used_at"]),
    )


def _event(event: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        moment(event["at"]),
        event["act"].replace("_", " "),
        event["name"] + (f" ({event['scope']})" if event["scope"] not in ("", "*/*") else ""),
        event["version"] + (f" {event['delivery']}" if event["delivery"] else ""),
        event["principal"],
        event["project"],
        event["skill"],
        event["run_id"],
        event["reason"],
    )
