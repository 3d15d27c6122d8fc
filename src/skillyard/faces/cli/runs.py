"""``skillyard runs``: list, show, logs, cancel."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from skillyard.client.errors import BadReply
from skillyard.faces.cli.inputs import parse_network
from skillyard.faces.cli.needs import show_run_needs
from skillyard.faces.cli.network import show_network
from skillyard.faces.cli.options import json_option, server_options
from skillyard.faces.cli.paging import collect
from skillyard.faces.cli.render import emit_fields, emit_foreign, emit_json, emit_table, moment

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Target, Where

_POLL_S = 0.3


@click.group()
def runs() -> None:
    """Look at runs, and cancel them."""


@runs.command("list")
@click.option("--status", type=click.Choice(["running", "completed", "failed"]))
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--all", "everyone", is_flag=True, help="Everybody's; needs the scope admin.")
@json_option
@server_options
def list_(status: str | None, limit: int, everyone: bool, as_json: bool, where: Where) -> None:
    """Your runs, newest first."""
    params: dict[str, Any] = ({"status": status} if status else {}) | ({"all": True} if everyone else {})
    with where.open() as target:
        found = collect(target, "runs.list", "runs", limit, params)
    if as_json:
        emit_json(found)
    else:
        emit_table(("id", "status", "what", "started", "took", "outcome"), map(_row, found))


@runs.command()
@click.argument("run_id")
@json_option
@server_options
def show(run_id: str, as_json: bool, where: Where) -> None:
    """The record of one run: how it ended, what was enforced and granted, what it used."""
    with where.open() as target:
        record = target.call("runs.show", {"run_id": run_id})["run"]
    if as_json:
        emit_json(record)
    else:
        times = {name: moment(record.get(name)) for name in ("created_at", "started_at", "ended_at")}
        network, needs = record.pop("network", None), record.pop("needs", None)
        emit_fields({**record, **times})
        if needs is not None:
            show_run_needs(needs)
        if network is not None:
            show_network(network)


@runs.command()
@click.argument("run_id")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@json_option
@server_options
def logs(run_id: str, follow: bool, as_json: bool, where: Where) -> None:
    """What a run wrote to stdout and stderr, whole; also while it works."""
    with where.open() as target:
        pieces = _log_pieces(target, run_id, follow=follow)
        if as_json:
            emit_json({"run_id": run_id, "content": "".join(pieces)})
            return
        for piece in pieces:
            emit_foreign(piece, nl=False)


@runs.command()
@click.argument("run_id")
@click.option("--reason", help="Kept in the record.")
@json_option
@server_options
def cancel(run_id: str, reason: str | None, as_json: bool, where: Where) -> None:
    """End a run and everything it started."""
    params = {"run_id": run_id} | ({"reason": reason} if reason else {})
    with where.open() as target:
        answer = target.call("runs.cancel", params)
    if as_json:
        emit_json(answer)
    else:
        said = "cancelled" if answer["cancelled"] else f"had ended before ({answer['run'].get('status')})"
        click.echo(f"{run_id} {said}", err=True)


@runs.command()
@click.argument("run_id")
@click.argument("rules", nargs=-1, metavar="[RULE]...")
@click.option("--none", "nothing", is_flag=True, help="Nothing at all from here on.")
@json_option
@server_options
def network(run_id: str, rules: tuple[str, ...], nothing: bool, as_json: bool, where: Where) -> None:
    """Change what a run at work may reach, and show what is then in force.

    Your rules narrow what the run was granted; with the scope admin they take its place, below the operator's
    rules. Connections that are no longer allowed are ended.

    \b
      skillyard runs network RUN_ID api.x.com:443 '!old.x.com'
      skillyard runs show RUN_ID       what is in force, without a change
    """
    if nothing and rules:
        raise click.UsageError("--none goes with no rule.")
    if not nothing and not rules:
        raise click.UsageError("Give the rules, or --none for nothing; `skillyard runs show` shows what is in force.")
    network = parse_network(rules)
    with where.open() as target:
        record = target.call("runs.set_network", {"run_id": run_id, "network": network})["run"]
    if as_json:
        emit_json(record)
    else:
        show_network(record["network"])


def _log_pieces(target: Target, run_id: str, *, follow: bool) -> Iterator[str]:
    """The log from its start: to its present end, or with ``follow`` until the run has ended."""
    offset = 0
    while True:
        page = target.call("runs.logs", {"run_id": run_id, "offset": offset})
        if bool(page["content"]) != (page["next_offset"] > offset):
            raise BadReply("the server's pages of the log do not follow each other")
        if page["content"]:
            yield page["content"]
        if page["complete"]:
            return
        if page["next_offset"] == offset:
            if not follow:
                return
            time.sleep(_POLL_S)
        offset = page["next_offset"]


def _row(record: dict[str, Any]) -> tuple[object, ...]:
    began, ended = record.get("started_at"), record.get("ended_at")
    took = f"{(ended - began) * 1000:.0f} ms" if began and ended else ""
    error = record.get("error") or {}
    outcome = error.get("type") or record.get("outcome")
    what = record.get("skill") or record.get("kind")
    return record["run_id"], record.get("status"), what, moment(record.get("created_at")), took, outcome
