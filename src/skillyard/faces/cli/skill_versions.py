"""``skillyard skill withdraw``, ``restore``, ``pin``, ``unpin``, and the versions of ``list --versions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.named_version import exact
from skillyard.faces.cli.options import json_option, server_options
from skillyard.faces.cli.render import calm, emit_json, emit_table, moment, size

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Target, Where

_HEADER = ("name", "version", "state", "", "published", "by", "size", "sha256")
_COLOURS = {"withdrawn": "red"}


@click.command()
@click.argument("skill", metavar="NAME@VERSION")
@click.option("--reason", default="", help="Told to whoever asks for it.")
@json_option
@server_options
def withdraw(skill: str, reason: str, as_json: bool, where: Where) -> None:
    """Serve a published version no longer. Runs at work go on; its name, version and content stay taken."""
    name, version = exact(skill)
    done = _called(where, "catalogue.withdraw", {"name": name, "version": version, "reason": reason}, as_json=as_json)
    if done is not None:
        said = "withdrawn" if done["changed"] else _before(done)
        _say(f"{name}@{done['version']} {said}" + ("; it is no longer pinned" if done["unpinned"] else ""))


def _before(done: Mapping[str, Any]) -> str:
    """The first reason stays: nothing changed."""
    return f"was withdrawn on {moment(done['withdrawn_at'])}: {done.get('reason') or 'no reason was given'}"


@click.command()
@click.argument("skill", metavar="NAME@VERSION")
@json_option
@server_options
def restore(skill: str, as_json: bool, where: Where) -> None:
    """Serve a withdrawn version again."""
    name, version = exact(skill)
    done = _called(where, "catalogue.restore", {"name": name, "version": version}, as_json=as_json)
    if done is not None:
        _say(f"{name}@{done['version']} {'is served again' if done['changed'] else 'was not withdrawn'}")


@click.command()
@click.argument("skill", metavar="NAME@VERSION")
@json_option
@server_options
def pin(skill: str, as_json: bool, where: Where) -> None:
    """Choose which version the name alone means, until it is unpinned or withdrawn."""
    name, version = exact(skill)
    done = _called(where, "catalogue.pin", {"name": name, "version": version}, as_json=as_json)
    if done is not None:
        _say(f"{name} means {done['version']}, sha256 {done['digest']}")


@click.command()
@click.argument("name")
@json_option
@server_options
def unpin(name: str, as_json: bool, where: Where) -> None:
    """Let the name mean its newest version again."""
    done = _called(where, "catalogue.unpin", {"name": name}, as_json=as_json)
    if done is not None:
        before = "was not pinned" if done["unpinned"] is None else f"is no longer pinned to {done['unpinned']}"
        _say(f"{name} {before}; it means {done['latest']}")


def show_versions(target: Target, names: list[str], *, as_json: bool) -> None:
    """Every version of each name."""
    found = [target.call("catalogue.versions", {"name": name}) for name in names]
    if as_json:
        emit_json(found)
    else:
        emit_table(_HEADER, [_row(of, version) for of in found for version in of["versions"]], colours=_COLOURS)


def _row(of: Mapping[str, Any], version: Mapping[str, Any]) -> tuple[object, ...]:
    pinned = (of.get("pin") or {}).get("version") == version["version"]
    mark = "latest, pinned" if pinned and version["latest"] else "latest" if version["latest"] else ""
    return (
        of["name"],
        version["version"],
        version["state"],
        mark,
        moment(version.get("published_at")),
        version.get("published_by", ""),
        size(version["size_bytes"]),
        str(version["digest"])[:16],
    )


def _called(where: Where, method: str, params: dict[str, Any], *, as_json: bool) -> dict[str, Any] | None:
    """The result; None when it was shown as JSON already."""
    with where.open(changes=True) as target:
        done = target.call(method, params)
    if as_json:
        emit_json(done)
        return None
    return done


def _say(text: str) -> None:
    click.echo(calm(text), err=True)
