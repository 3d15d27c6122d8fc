"""``skillyard policy``, and the network of a run: rules, connections and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from skillyard.faces.cli.calls import Call, Given, add_calls, params_of
from skillyard.faces.cli.failures import Exit
from skillyard.faces.cli.inputs import parse_network
from skillyard.faces.cli.options import network_option
from skillyard.faces.cli.render import calm, emit_fields, emit_table, moment, size

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


@click.group()
def policy() -> None:
    """Show what runs may reach over the network, and explain which rule decides."""


def _ask(given: Given) -> dict[str, Any]:
    if given["version"] and not given["skill"]:
        raise click.UsageError("--version goes with --skill.")
    params = params_of(given)
    if given["mount_skills"]:
        params["code"] = True
    if given["network"]:
        params["network"] = parse_network(given["network"])
    return params


def _show_answer(answer: Mapping[str, Any], _: Given) -> None:
    show_layers(answer["layers"])
    if answer.get("least"):
        click.echo(calm(f"such a run gets the least policy: {answer['least']}"))
    if answer.get("refused"):
        click.echo(calm(f"such a run is refused: {answer['refused']}"))
    for explained in answer["targets"]:
        show_explained(explained)


def _exit_code(answer: Mapping[str, Any]) -> Exit:
    refused = answer.get("refused") or not all(explained["allowed"] for explained in answer["targets"])
    return Exit.FAILED if refused else Exit.OK


def _show_policy(answer: Mapping[str, Any], _: Given) -> None:
    code = answer["run_code"]
    emit_fields(
        {
            "rules": " ".join(answer["rules"]) or "nothing",
            "open": "consented" if answer["open"] else "not consented",
            "run_code": code if isinstance(code, str) else " ".join(code) or "nothing",
            **{f"host {name}": " ".join(found) for name, found in answer["hosts"].items()},
            **{f"limit {name}": value for name, value in answer["limits"].items()},
            **_trust(answer.get("trust")),
        }
    )
    click.echo("")
    rows = [
        (a["isolation"], a["egress"], "; ".join(filter(None, (a["by"], a["why"], a["mend"]))))
        for a in answer["isolations"]
    ]
    emit_table(("isolation", "network", "by, or why not"), rows)


def _trust(trust: Mapping[str, Any] | None) -> dict[str, str]:
    if trust is None:
        return {}
    here = "skills in directories of the operator's, " if trust["directories"] else ""
    return {"approved": f"{here}{', '.join(trust['approve'])}".rstrip(", ") or "no skill by rule"}


add_calls(
    policy,
    {
        "explain": Call(
            method="policy.explain",
            help="""Say for each TARGET, host:port, which layers and rules decide; 443 when the port is left out.

            Without --skill and --code it is the operator's rules alone. Exits with 1 when a target is refused.

            \b
              skillyard policy explain api.x.com:443 10.0.0.5:5432 --skill salesforce.leads
            """,
            options=(
                click.argument("targets", nargs=-1, required=True, metavar="TARGET..."),
                click.option("--skill", metavar="NAME", help="As this skill gets it."),
                click.option("--version", help="A version of the skill; the latest when left out."),
                click.option("--code", is_flag=True, help="As run_code gets it."),
                click.option(
                    "--mount-skill", "mount_skills", metavar="NAME", multiple=True, help="With --code. May repeat."
                ),
                network_option("With a request that narrows to this. May repeat."),
                click.option(
                    "--resolve", is_flag=True, help="Look allowed names up, and judge each address (for admins)."
                ),
            ),
            ask=_ask,
            show=_show_answer,
            ends=_exit_code,
        ),
        "show": Call(
            method="policy.show",
            help="""Show what the operator lets runs reach, which skills rules approve, and which isolations can give a
            network.""",
            show=_show_policy,
        ),
    },
)
