"""``skillyard skill needs``, ``approve``, ``revoke`` and ``approvals``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.named_version import maybe
from skillyard.faces.cli.needs import show_declared, standing
from skillyard.faces.cli.options import json_option, server_options
from skillyard.faces.cli.paging import collect
from skillyard.faces.cli.render import calm, emit_json, emit_table, moment

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Target, Where


@click.command()
@click.argument("skill", metavar="NAME[@VERSION]")
@json_option
@server_options
def needs(skill: str, as_json: bool, where: Where) -> None:
    """What a skill declares that it needs, what policy leaves of it, and whether it is approved."""
    with where.open() as target:
        view = target.call("catalogue.needs", _named(skill))
    if as_json:
        emit_json(view)
    else:
        show_declared(view)


@click.command()
@click.argument("skill", metavar="NAME[@VERSION]")
@click.option("--note", default="", help="Kept with the approval.")
@json_option
@server_options
def approve(skill: str, note: str, as_json: bool, where: Where) -> None:
    """Consent to what a version declares, which is shown first: its runs get it from now on, within your policy.

    The approval is of exactly these bytes. Without one, or a rule of trust.approve, a published skill runs without
    network and secrets.
    """
    with where.open(changes=True) as target:
        done = approve_seen(target, _named(skill), note, quiet=as_json)
    if as_json:
        emit_json(done)


def approve_seen(target: Target, named: dict[str, Any], note: str, *, quiet: bool) -> dict[str, Any]:
    """Approve what is shown, and no other bytes: before it is printed, since who reads it may go away after the first
    line. Raises what the methods raise."""
    view = target.call("catalogue.needs", named)
    seen = {"name": view["name"], "version": view["version"], "digest": view["digest"], "note": note}
    try:
        done = target.call("catalogue.approve", seen)
    finally:
        if not quiet:
            show_declared(view)
    if not quiet:
        click.echo(calm(f"{done['name']}@{done['version']} is {standing(done)}"), err=True)
    return done


@click.command()
@click.argument("skill", metavar="NAME[@VERSION]")
@json_option
@server_options
def revoke(skill: str, as_json: bool, where: Where) -> None:
    """Take approvals back, of every version when none is named. Runs at work go on as they are."""
    with where.open(changes=True) as target:
        done = target.call("catalogue.revoke", _named(skill))
    if as_json:
        emit_json(done)
        return
    count = done["revoked"]
    click.echo(calm(f"{skill}: {count} approval{'' if count == 1 else 's'} taken back"), err=True)
    if done["still"]:
        still = {"approved": True, **done["still"]}
        click.echo(calm(f"{done['name']}@{still['version']} is still {standing(still)}"), err=True)


@click.command()
@click.argument("name", required=False)
@json_option
@server_options
def approvals(name: str | None, as_json: bool, where: Where) -> None:
    """What operators approved one by one; rules stand in the settings (trust.approve)."""
    with where.open() as target:
        found = collect(target, "catalogue.approvals", "approvals", None, {"name": name} if name else {})
    if as_json:
        emit_json(found)
    else:
        emit_table(("name", "version", "sha256", "approved", "by", "served", "note"), map(_row, found))


def _row(approval: dict[str, Any]) -> tuple[object, ...]:
    served = "yes" if approval["served"] else "no"
    at, digest = moment(approval["approved_at"]), str(approval["digest"])[:16]
    return approval["name"], approval["version"], digest, at, approval["approved_by"], served, approval["note"]


def _named(skill: str) -> dict[str, Any]:
    name, version = maybe(skill)
    return {"name": name} | ({"version": version} if version else {})
