"""``skillyard service`` lists, shows, opens and ends services."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from skillyard.faces.cli.calls import Call, Given, add_calls, params_of
from skillyard.faces.cli.commands.task import agent_option, canceled, logs, show, task_argument
from skillyard.faces.cli.options import limit_option
from skillyard.faces.cli.render import emit_table, moment


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


def _opened(told: dict[str, Any], _: Given) -> None:
    click.echo(told["url"])


def _how_long(told: Mapping[str, Any], _: Given) -> str:
    return f"it opens once, until {moment(told['expires_at'])}"


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
        "open": Call(
            method="skills.open_service",
            help="Print a URL that opens a port in a browser, once and within a minute.",
            options=(
                task_argument,
                click.argument("port", type=click.IntRange(1, 65535)),
                click.option("--path", help="The page that is opened.  [default: /]"),
            ),
            show=_opened,
            said=_how_long,
        ),
        "stop": Call(
            method="skills.task_cancel",
            help="End a service and everything it started.",
            options=(task_argument, click.option("--reason", help="Kept in the record."), agent_option),
            said=canceled,
        ),
    },
)
