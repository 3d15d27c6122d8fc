"""``skillyard service`` lists, shows, opens and ends services."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.calls import Call, Given, add_calls, params_of
from skillyard.faces.cli.commands.task import agent_option, canceled, logs, show, task_argument
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.options import json_option, limit_option, server_options
from skillyard.faces.cli.render import calm, emit_json, emit_table, moment

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Where


@click.group()
def service() -> None:
    """Look at services, open their ports, and end them. `skillyard sh --expose` starts one."""


service.add_command(logs)


def _ready(row: Mapping[str, Any]) -> str:
    return "yes" if row["startup_ready"] else "no"


def _listed(given: Given) -> dict[str, Any]:
    return {**params_of(given), "mode": "service"}


def _show(told: dict[str, Any], given: Given) -> None:
    ports, health = told.pop("exposed_endpoints"), told.pop("service", {})
    told |= {"restarts": health.get("restarts"), "last_exit_code": health.get("exit_code")}
    show(told, given)
    if ports:
        click.echo("")
        emit_table(("port", "path", "url"), [[one["port"], one["path"], one["url"]] for one in ports])


@service.command("open")
@task_argument
@click.argument("port", type=click.IntRange(1, 65535))
@click.option("--path", help="The page that is opened.  [default: /]")
@click.option("--loopback", is_flag=True, help="Listen on 127.0.0.1 instead, for this user's programs, until Ctrl-C.")
@click.option(
    "--listen",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="With --loopback: the port here.  [default: that of the service, or any]",
)
@click.option("--any-user", is_flag=True, help="With --loopback: every user of this machine may connect.")
@json_option
@server_options
def open_(
    task_id: str,
    port: int,
    path: str | None,
    loopback: bool,
    listen: int | None,
    any_user: bool,
    as_json: bool,
    where: Where,
) -> None:
    """Print a URL that opens a port in a browser, once and within a minute.

    With --loopback listen on 127.0.0.1 for it, until the service has ended. When the server restarts, connections end,
    and the port stays.
    """
    if not loopback and (listen is not None or any_user):
        raise click.UsageError("--listen and --any-user go with --loopback.")
    if loopback:
        if path is not None:
            raise click.UsageError("--path does not go with --loopback.")
        _listen(where, task_id, port, listen or 0, anybody=any_user, as_json=as_json)
        return
    with where.open() as target:
        asked = {"task_id": task_id, "port": port} | ({} if path is None else {"path": path})
        told = target.call("skills.open_service", asked)
    if as_json:
        emit_json(told)
        return
    click.echo(told["url"])
    click.echo(f"it opens once, until {moment(told['expires_at'])}", err=True)


def _listen(where: Where, task_id: str, port: int, wanted: int, *, anybody: bool, as_json: bool) -> None:
    with where.server() as target:
        told = target.call("skills.task_status", {"task_id": task_id, "tail_bytes": 0})
    if told["finished_at"] is not None:
        raise Failure(f"the service has ended ({told['status']})", "start another", Exit.FAILED)
    ports = [one["port"] for one in told["exposed_endpoints"]]
    if port not in ports:
        raise Failure(f"the service does not expose port {port}, but {ports}")
    import asyncio

    from skillyard.faces.cli.loopback import HOST, Loopback

    def listening(number: int) -> None:
        if as_json:
            emit_json({"task_id": task_id, "port": port, "host": HOST, "listens_on": number})
        else:
            click.echo(f"{HOST}:{number}")
            whose = "every user of this machine" if anybody else "programs of this user"
            click.echo(f"for {whose}, until the service ends or Ctrl-C", err=True)
        sys.stdout.flush()

    try:
        door = Loopback(where, task_id, port, anybody=anybody, say=lambda text: click.echo(calm(text), err=True))
        status = asyncio.run(door.serve(wanted, listening))
    except KeyboardInterrupt:
        raise Failure("interrupted; the service goes on, its port here is closed", code=Exit.INTERRUPTED) from None
    click.echo(calm(f"{task_id} {status}: its port here is closed"), err=True)


add_calls(
    service,
    {
        "list": Call(
            method="skills.tasks",
            help="List the services of an agent, newest first.",
            options=(limit_option, agent_option),
            ask=_listed,
            key="tasks",
            paged=True,
            columns={
                "id": "task_id",
                "status": "status",
                "ready": _ready,
                "skill": "skill_name",
                "created": lambda row: moment(row.get("created_at")),
                "ended": lambda row: moment(row.get("finished_at")),
                "reason": "reason",
            },
        ),
        "show": Call(
            method="skills.task_status",
            help="Show how a service goes and where its ports are reached, with the end of its output.",
            options=(
                task_argument,
                click.option("--tail", "tail_bytes", type=int, help="Bytes of it."),
                agent_option,
            ),
            show=_show,
        ),
        "stop": Call(
            method="skills.task_cancel",
            help="End a service and everything it started.",
            options=(task_argument, click.option("--reason", help="Kept in the record."), agent_option),
            said=canceled,
        ),
    },
)
