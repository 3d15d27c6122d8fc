"""``skillyard token``: create, list, revoke."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.failures import Failure
from skillyard.faces.cli.inputs import read_stdin
from skillyard.faces.cli.options import data_dir_option, json_option
from skillyard.faces.cli.render import emit_json, emit_table, moment

if TYPE_CHECKING:
    from skillyard.domain.principal import Principal, Scope
    from skillyard.ports.tokens import TokenInfo, TokenStore

_PROJECT = "Whose secrets its runs get, and whose names of skills it publishes."
_AGENT = "The agent that it acts for: whose commands, tasks and artifacts it has. NAME when left out."
_USUAL = "discover,execute,run_code,blobs"


@click.group()
def token() -> None:
    """Create, list and revoke bearer tokens. Each is a principal of its own, with its own runs and blobs."""


@token.command()
@click.argument("name")
@click.option(
    "--scopes",
    metavar="A,B",
    default=_USUAL,
    show_default=True,
    help="Of discover, execute, run_code, blobs, publish, admin.",
)
@click.option(
    "--skills",
    metavar="PATTERN",
    multiple=True,
    help="Names of skills it may use, such as sales.*; all when left out. May repeat.",
)
@click.option("--project", metavar="NAME", default="default", show_default=True, help=_PROJECT)
@click.option("--agent", metavar="NAME", default="", help=_AGENT)
@click.option(
    "--agents",
    metavar="PATTERN",
    multiple=True,
    help="Further agents of the project that a call may name, such as crawler-*. May repeat.",
)
@click.option("--profile", metavar="NAME", help="The profile of the settings that bounds it: [profiles.NAME].")
@click.option(
    "--value", metavar="TOKEN", help="The token itself, instead of a random one; - reads it from standard input."
)
@json_option
@data_dir_option
def create(
    name: str,
    scopes: str,
    skills: tuple[str, ...],
    project: str,
    agent: str,
    agents: tuple[str, ...],
    profile: str | None,
    value: str | None,
    as_json: bool,
    data_dir: Path | None,
) -> None:
    """Make a token for NAME and print it, this once, alone on standard output."""
    from skillyard.domain.principal import Principal

    principal = Principal(name, _scopes(scopes), skills or ("*",), project, agent, agents, profile)
    _check_profile(profile, data_dir)
    if value == "-":
        value = read_stdin("value").strip()
    with _tokens(data_dir) as (store, wait):
        text = wait(store.create(principal, value))
    granted = sorted(principal.scopes)
    if as_json:
        emit_json({"name": name, "token": text, **_allowed(principal)})
    else:
        click.echo(text)
        click.echo(f"token of {name}: {', '.join(granted)}; kept as a hash and never shown again", err=True)


def _check_profile(profile: str | None, data_dir: Path | None) -> None:
    """Raises Failure for a profile that the settings lack, whose token could call nothing."""
    if profile is None:
        return
    from skillyard.config.settings import load_settings
    from skillyard.domain.principal import check_profile_name

    check_profile_name("profile", profile)
    known = load_settings(data_dir=data_dir).profiles
    if profile not in known:
        there = f"; there are {', '.join(sorted(known))}" if known else ""
        remedy = "add it, or name the server's file with SKILLYARD_CONFIG"
        raise Failure(f"profile: the settings lack [profiles.{profile}]{there}", remedy)


@token.command("list")
@json_option
@data_dir_option
def list_(as_json: bool, data_dir: Path | None) -> None:
    """List tokens, and what each allows."""
    with _tokens(data_dir) as (store, wait):
        found = list(wait(store.list()))
    if as_json:
        emit_json([_view(info) for info in found])
    else:
        emit_table(
            ("name", "scopes", "skills", "project", "agents", "profile", "created", "last used", "state"),
            map(_row, found),
        )


@token.command()
@click.argument("name")
@data_dir_option
def revoke(name: str, data_dir: Path | None) -> None:
    """End a token; a running server refuses it from then on."""
    with _tokens(data_dir) as (store, wait):
        if not wait(store.revoke(name)):
            raise Failure(f"no token {name!r}", "`skillyard token list` shows the names")
    click.echo(f"revoked {name}", err=True)


@contextmanager
def _tokens(data_dir: Path | None) -> Iterator[tuple[TokenStore, Callable[[Coroutine[Any, Any, Any]], Any]]]:
    """Yields the store and a function that runs its coroutines; a server may run meanwhile."""
    import asyncio

    from skillyard.client.discovery import default_data_dir
    from skillyard.data_dir import DataDir
    from skillyard.wiring import local_tokens

    with asyncio.Runner() as runner:
        yield local_tokens(DataDir(data_dir or default_data_dir())), runner.run


def _scopes(text: str) -> frozenset[Scope]:
    from skillyard.domain.principal import Scope

    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in set(Scope)]
    if unknown or not names:
        known = ", ".join(Scope)
        raise Failure(f"scopes: must be some of {known}" + (f" (got {', '.join(unknown)})" if unknown else ""))
    return frozenset(Scope(name) for name in names)


def _allowed(principal: Principal) -> dict[str, Any]:
    return {
        "scopes": sorted(principal.scopes),
        "skills": list(principal.skills),
        "project": principal.project,
        "agent": principal.agent,
        "agents": list(principal.agents),
        "profile": principal.profile,
    }


def _view(info: TokenInfo) -> dict[str, Any]:
    return {
        "name": info.principal.name,
        **_allowed(info.principal),
        "created_at": info.created_at,
        "last_used_at": info.last_used_at,
        "revoked": info.revoked,
    }


def _row(info: TokenInfo) -> tuple[object, ...]:
    principal = info.principal
    scopes, skills = ",".join(sorted(principal.scopes)), " ".join(principal.skills)
    used, state = moment(info.last_used_at) or "never", "revoked" if info.revoked else "valid"
    agents = " ".join((principal.agent, *principal.agents))
    return (
        principal.name,
        scopes,
        skills,
        principal.project,
        agents,
        principal.profile or "",
        moment(info.created_at),
        used,
        state,
    )
