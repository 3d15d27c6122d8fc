"""Shows the network of a run (rules, connections, refusals) and the needs of skills (asked, granted, why not more)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from skillyard.faces.cli.render import calm, emit_table, moment, size

_COLOURS = {"allowed": "green", "refused": "red", "denies": "red", "has no rule": "yellow", "allows": "green"}
_SHOWN_RULES = 12


def show_network(network: Mapping[str, Any]) -> None:
    """Prints the network of a run's record."""
    changes = network["changes"]
    click.echo("")
    show_layers(network.get("in_force") or network["layers"])
    for change in changes:
        said = f"changed {moment(change['at'])} by {change['by']}: {change['layer']} {_rules(change['rules'])}"
        click.echo(calm(said))
    connections = network["connections"]
    if connections:
        click.echo("")
        header = ("decision", "host", "via", "times", "sent", "received", "layer", "rule", "reason")
        emit_table(header, map(_row, connections), colours=_COLOURS)
    else:
        click.echo("no connections")
    if network["dropped"]:
        click.echo(f"{network['dropped']} more connections of further kinds")
    if not network["complete"]:
        click.echo("connections after the last look are not known yet" if not connections else "more may follow")


def show_layers(layers: Sequence[Mapping[str, Any]]) -> None:
    """Prints layers as ``operator  *``: each of them must allow a connection."""
    emit_table(("layer", "rules"), [(layer["name"], _rules(layer["rules"])) for layer in layers])


def show_explained(explained: Mapping[str, Any]) -> None:
    """Prints one target of ``policy.explain``."""
    click.echo("")
    click.echo(calm(f"{explained['target']}: {_why(explained)}"))
    rows = [(layer["name"], layer["says"], layer["rule"], layer["reason"]) for layer in explained["layers"]]
    rows += [
        (a["address"], "allows" if a["allowed"] else "denies", a["rule"], a["reason"]) for a in explained["addresses"]
    ]
    emit_table(("layer or address", "says", "rule", "reason"), rows, colours=_COLOURS)


def decision(allowed: bool) -> str:
    return "allowed" if allowed else "refused"


def _why(explained: Mapping[str, Any]) -> str:
    if explained["allowed"]:
        return f"allowed by {explained['layer']} rule '{explained['rule']}'"
    return f"refused: {explained['reason']}"


def _row(connection: Mapping[str, Any]) -> tuple[object, ...]:
    from skillyard.domain.network.session import host_and_port

    return (
        decision(connection["allowed"]),
        host_and_port(connection["host"], connection["port"]),
        connection["via"],
        connection["count"],
        size(connection["sent_bytes"]),
        size(connection["received_bytes"]),
        connection["layer"],
        connection["rule"],
        connection["reason"],
    )


def _rules(rules: Sequence[str]) -> str:
    more = f" and {len(rules) - _SHOWN_RULES} more" if len(rules) > _SHOWN_RULES else ""
    return " ".join(rules[:_SHOWN_RULES]) + more or "nothing"


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
