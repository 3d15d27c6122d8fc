"""``skillyard runs``: list, show, wait, logs, events, cancel, network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.client.errors import BadReply
from skillyard.faces.cli.calls import Call, Given, add_calls
from skillyard.faces.cli.commands.policy import show_network
from skillyard.faces.cli.inputs import parse_network
from skillyard.faces.cli.options import (
    detail_option,
    everyone_option,
    json_option,
    label_option,
    limit_option,
    server_options,
)
from skillyard.faces.cli.render import LEVEL_COLOURS, calm, emit_fields, emit_foreign, emit_json, emit_table, moment
from skillyard.faces.cli.skill.versions import show_run_needs

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Target, Where

_WAIT_MS = 20_000


@click.group()
def runs() -> None:
    """Look at runs, and cancel them."""


@runs.command()
@click.argument("run_id")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@json_option
@server_options
def logs(run_id: str, follow: bool, as_json: bool, where: Where) -> None:
    """Print all that a run wrote to stdout and stderr; also while it works."""
    with where.open() as target:
        pieces = _log_pieces(target, run_id, follow=follow)
        if as_json:
            emit_json({"run_id": run_id, "content": "".join(pieces)})
            return
        for piece in pieces:
            emit_foreign(piece, nl=False)


@runs.command()
@click.argument("run_id")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer.")
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the files and the blobs that the run made into DIR.",
)
@json_option
@server_options
def wait(run_id: str, timeout: float | None, save: Path | None, as_json: bool, where: Where) -> None:
    """Wait for the end of a run and print its result as `skillyard run` does.

    The run goes on when this command is interrupted. Exit code 5 says that the time was over before the run.
    """
    from skillyard.faces.cli.commands import run

    run.wait(run_id, where=where, timeout=timeout, save=save, as_json=as_json)


@runs.command()
@click.argument("run_id")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@json_option
@server_options
def events(run_id: str, follow: bool, as_json: bool, where: Where) -> None:
    """Print what happened to a run: each state that it got, with its time."""
    with where.open() as target:
        told = _events(target, run_id, follow=follow)
        if as_json:
            emit_json(list(told))
            return
        for event in told:
            data = " ".join(f"{name}={value}" for name, value in event["data"].items() if value)
            click.echo(calm(f"{event['seq']} {moment(event['at'])} {event['kind']} {data}".rstrip()))


def _rules(given: Given) -> dict[str, Any]:
    rules, nothing = given["rules"], given["nothing"]
    if nothing and rules:
        raise click.UsageError("--none goes with no rule.")
    if not nothing and not rules:
        raise click.UsageError("Give the rules, or --none for nothing; `skillyard runs show` shows what is in force.")
    return {"run_id": given["run_id"], "network": parse_network(rules)}


def _show(record: dict[str, Any], _: Given) -> None:
    times = {name: moment(record.get(name)) for name in ("created_at", "started_at", "ended_at")}
    network, needs = record.pop("network", None), record.pop("needs", None)
    enforced, stand = record.pop("enforced", None) or {}, record.pop("guarantees", None) or {}
    emit_fields({**record, **times})
    _show_guarantees(stand, enforced)
    if needs is not None:
        show_run_needs(needs)
    if network is not None:
        show_network(network)


def _show_guarantees(stand: Mapping[str, Any], enforced: Mapping[str, str]) -> None:
    """Prints the guarantees of a run's record as a table. An older record, which has none, shows its walls."""
    if stand:
        click.echo("")
        rows = [(name, each["attestor"], ", ".join(each["evidence"])) for name, each in stand.items()]
        emit_table(("guarantee", "attested by", "evidence"), rows, colours=LEVEL_COLOURS)
        if missing := [name for name, level in enforced.items() if level == "missing" and name not in stand]:
            click.echo(calm(f"missing walls: {', '.join(missing)}"))
    elif enforced:
        click.echo("")
        emit_table(("wall", "level"), enforced.items(), colours=LEVEL_COLOURS)


def _cancelled(answer: Mapping[str, Any], given: Given) -> str:
    said = "cancelled" if answer["cancelled"] else f"had ended before ({answer['run'].get('status')})"
    return f"{given['run_id']} {said}"


def _took(record: Mapping[str, Any]) -> str:
    began, ended = record.get("started_at"), record.get("ended_at")
    return f"{(ended - began) * 1000:.0f} ms" if began and ended else ""


def _ended(record: Mapping[str, Any]) -> str | None:
    """Returns how a run ended; of a command that came to its end, its exit code."""
    output, error = record.get("output"), record.get("error") or {}
    if record.get("kind") == "run_cmd" and record.get("outcome") == "exit" and isinstance(output, Mapping):
        return f"exit {output.get('exit_code')}"
    return error.get("type") or record.get("outcome")


_run_id = click.argument("run_id")
add_calls(
    runs,
    {
        "list": Call(
            method="runs.list",
            help="List your runs, newest first.",
            options=(
                click.option("--status", type=click.Choice(["queued", "starting", "running", "completed", "failed"])),
                label_option("Those that have this label. May repeat: all of them."),
                limit_option,
                everyone_option,
            ),
            key="runs",
            paged=True,
            columns={
                "id": "run_id",
                "status": "status",
                "what": lambda record: record.get("skill") or record.get("kind"),
                "started": lambda record: moment(record.get("created_at")),
                "took": _took,
                "outcome": _ended,
            },
        ),
        "show": Call(
            method="runs.show",
            help="Show the record of one run: how it ended, what was enforced and granted, what it used.",
            options=(_run_id, detail_option),
            key="run",
            show=_show,
        ),
        "cancel": Call(
            method="runs.cancel",
            help="End a run and everything it started.",
            options=(_run_id, click.option("--reason", help="Kept in the record.")),
            said=_cancelled,
        ),
        "network": Call(
            method="runs.set_network",
            help="""Change what a run at work may reach, and show what is then in force.

            Your rules narrow what the run was granted; with the scope admin they take its place, below the operator's
            rules. Connections that are no longer allowed are ended.

            \b
              skillyard runs network RUN_ID api.x.com:443 '!old.x.com'
              skillyard runs show RUN_ID       what is in force, without a change
            """,
            options=(
                _run_id,
                click.argument("rules", nargs=-1, metavar="[RULE]..."),
                click.option("--none", "nothing", is_flag=True, help="Nothing at all from here on."),
            ),
            ask=_rules,
            key="run",
            show=lambda record, _: show_network(record["network"]),
        ),
    },
)


def _log_pieces(target: Target, run_id: str, *, follow: bool) -> Iterator[str]:
    """Yields the log to its present end, or with ``follow`` until the run has ended."""
    offset = 0
    while True:
        asked = {"run_id": run_id, "offset": offset} | ({"wait_ms": _WAIT_MS} if follow else {})
        page = target.call("runs.logs", asked)
        dropped = page.get("dropped", 0)
        if bool(page["content"]) != (page["next_offset"] > offset + dropped) or dropped < 0:
            raise BadReply("the server's pages of the log do not follow each other")
        if dropped:
            click.echo(f"{dropped} bytes of the log are not kept any more", err=True)
        if page["content"]:
            yield page["content"]
        if page["complete"] or (page["next_offset"] == offset and not follow):
            return
        offset = page["next_offset"]


def _events(target: Target, run_id: str, *, follow: bool) -> Iterator[dict[str, Any]]:
    """Yields the events up to now, or with ``follow`` until the run has ended."""
    after = 0
    while True:
        asked = {"run_id": run_id, "after": after} | ({"wait_ms": _WAIT_MS} if follow else {})
        page = target.call("runs.events", asked)
        if bool(page["events"]) != (page["next_after"] > after):
            raise BadReply("the server's pages of events do not follow each other")
        yield from page["events"]
        if page["complete"] or not (page["events"] or follow):
            return
        after = page["next_after"]
