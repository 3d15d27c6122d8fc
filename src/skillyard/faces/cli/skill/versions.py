"""The versions of a skill, their needs, and operators' decisions about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.calls import Call, Given
from skillyard.faces.cli.options import Named, json_option, server_options, skill_argument
from skillyard.faces.cli.render import calm, emit_json, emit_table, moment, size

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Target, Where

_HEADER = ("name", "version", "state", "", "published", "by", "size", "sha256")
_COLOURS = {"withdrawn": "red"}


@click.command()
@skill_argument()
@click.option("--note", default="", help="Kept with the approval.")
@json_option
@server_options
def approve(skill: Named, note: str, as_json: bool, where: Where) -> None:
    """Consent to the needs that a version declares, which are shown first.

    Its runs get them from now on, within your policy. The approval is of exactly these bytes. Without one, or a rule of
    trust.approve, a published skill runs without network and secrets.
    """
    with where.open(changes=True) as target:
        done = approve_seen(target, skill, note, quiet=as_json)
    if as_json:
        emit_json(done)


def approve_seen(target: Target, named: dict[str, Any], note: str, *, quiet: bool) -> dict[str, Any]:
    """Approves the bytes that are shown, and no others. Raises SkillyardError, ClientError.

    It prints them afterwards: a reader of the output may leave after one line.
    """
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


def show_versions(target: Target, names: list[str], *, as_json: bool) -> None:
    """Shows every version of each name."""
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


def _withdrawn(done: Mapping[str, Any], given: Given) -> str:
    """Words a withdrawal. The first reason stays: a second withdrawal changes nothing."""
    said = "withdrawn"
    if not done["changed"]:
        said = f"was withdrawn on {moment(done['withdrawn_at'])}: {done.get('reason') or 'no reason was given'}"
    return f"{_served(done, given)} {said}" + ("; it is no longer pinned" if done["unpinned"] else "")


def _unpinned(done: Mapping[str, Any], given: Given) -> str:
    before = "was not pinned" if done["unpinned"] is None else f"is no longer pinned to {done['unpinned']}"
    return f"{given['name']} {before}; it means {done['latest']}"


def _revoked(done: Mapping[str, Any], given: Given) -> str:
    count = done["revoked"]
    said = f"{given['skill']}: {count} approval{'' if count == 1 else 's'} taken back"
    if not done["still"]:
        return said
    still = {"approved": True, **done["still"]}
    return f"{said}\n{done['name']}@{still['version']} is still {standing(still)}"


def _served(done: Mapping[str, Any], given: Given) -> str:
    return f"{given['skill']['name']}@{done['version']}"


_NEED_COLOURS = {"nothing": "yellow", "in part": "yellow"}
_BY = {
    "operator": "approved by",
    "rule": "approved by the rule",
    "directory": "approved: it lies in a directory of the operator's",
    "built-in": "approved: it is built in",
}


def show_declared(view: Mapping[str, Any]) -> None:
    """Prints the answer of ``catalogue.needs``."""
    click.echo(calm(f"{view['name']}@{view['version']}, sha256 {view['digest']}: {standing(view)}"))
    rows = [_need(row) for row in view["needs"]]
    if rows:
        emit_table(("need", "asked", "granted once approved", "why not more"), rows, colours=_NEED_COLOURS)
    else:
        click.echo("it asks for nothing")


def show_run_needs(needs: Mapping[str, Any]) -> None:
    """Prints the needs of a run's record."""
    click.echo("")
    for skill in needs["skills"]:
        click.echo(calm(f"{skill['skill']}@{skill['version']}: {standing(skill)}"))
    if needs["least"]:
        click.echo(calm(f"the run got the least policy: {needs['least']}"))
    rows = [(skill["skill"], *_need(row)) for skill in needs["skills"] for row in skill["needs"]]
    if rows:
        emit_table(("skill", "need", "asked", "granted", "why not more"), rows, colours=_NEED_COLOURS)
    if needs["dropped"]:
        click.echo(f"{needs['dropped']} more rows had no room in the record")


def standing(of: Mapping[str, Any]) -> str:
    """Returns words such as ``approved by ann``."""
    if not of["approved"]:
        return "not approved"
    return f"{_BY.get(of['by'], 'approved')} {of['because']}".rstrip()


def _need(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["need"], row["asked"], row.get("granted") or "nothing", row.get("why", "")


CALLS = {
    "withdraw": Call(
        method="catalogue.withdraw",
        help="Serve a published version no longer. Runs at work go on; its name, version and content stay taken.",
        options=(
            skill_argument(exactly=True),
            click.option("--reason", default="", help="Told to callers that ask for the version."),
        ),
        said=_withdrawn,
        changes=True,
    ),
    "restore": Call(
        method="catalogue.restore",
        help="Serve a withdrawn version again.",
        options=(skill_argument(exactly=True),),
        said=lambda done, given: (
            f"{_served(done, given)} {'is served again' if done['changed'] else 'was not withdrawn'}"
        ),
        changes=True,
    ),
    "pin": Call(
        method="catalogue.pin",
        help="Choose which version the name alone means, until it is unpinned or withdrawn.",
        options=(skill_argument(exactly=True),),
        said=lambda done, given: f"{given['skill']['name']} means {done['version']}, sha256 {done['digest']}",
        changes=True,
    ),
    "unpin": Call(
        method="catalogue.unpin",
        help="Let the name mean its newest version again.",
        options=(click.argument("name"),),
        said=_unpinned,
        changes=True,
    ),
    "needs": Call(
        method="catalogue.needs",
        help="Show what a skill declares that it needs, what policy leaves of it, and whether it is approved.",
        options=(skill_argument(),),
        show=lambda view, _: show_declared(view),
    ),
    "revoke": Call(
        method="catalogue.revoke",
        help="Take approvals back, of every version when none is named. Runs at work go on as they are.",
        options=(skill_argument(),),
        said=_revoked,
        changes=True,
    ),
    "approvals": Call(
        method="catalogue.approvals",
        help="List what operators approved one by one; rules stand in the settings (trust.approve).",
        options=(click.argument("name", required=False),),
        key="approvals",
        paged=True,
        columns={
            "name": "name",
            "version": "version",
            "sha256": lambda approval: str(approval["digest"])[:16],
            "approved": lambda approval: moment(approval["approved_at"]),
            "by": "approved_by",
            "served": lambda approval: "yes" if approval["served"] else "no",
            "note": "note",
        },
    ),
}
