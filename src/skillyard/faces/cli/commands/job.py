"""``skillyard job`` lists, shows, follows and ends jobs."""

from __future__ import annotations

from collections.abc import Mapping
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.calls import Call, Given, add_calls
from skillyard.faces.cli.commands.task import output
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.options import json_option, limit_option, server_options
from skillyard.faces.cli.render import calm, emit_fields, emit_foreign, emit_json, emit_table, moment

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Target, Where

_FINAL = ("succeeded", "failed", "canceled")
_SOON_S = 1
"""How long a watch waits for the next step at a time."""
_agent = click.option("--agent", metavar="NAME", help="The agent that it belongs to, where the token allows it.")
_job_id = click.argument("job_id")


@click.group()
def job() -> None:
    """Look at jobs, follow them, and end them."""


@job.command()
@_job_id
@_agent
@json_option
@server_options
def watch(job_id: str, agent: str | None, as_json: bool, where: Where) -> None:
    """Follow the output of a job, step by step, until it has ended, and tell how.

    Ctrl-C ends this command alone: the job goes on.
    """
    with where.open() as target:
        try:
            ended = _followed(target, job_id, agent, quiet=as_json)
        except KeyboardInterrupt:
            said, remedy = "interrupted; the job goes on", f"come back with `skillyard job watch {job_id}`"
            raise Failure(said, remedy, Exit.INTERRUPTED) from None
    if as_json:
        emit_json(ended)
    else:
        why = f": {ended['error_message']}" if ended["error_message"] else ""
        click.echo(calm(f"{job_id} {ended['status']}{why}"), err=True)
    if ended["status"] != "succeeded":
        click.get_current_context().exit(Exit.FAILED)


def _followed(target: Target, job_id: str, agent: str | None, *, quiet: bool) -> dict[str, Any]:
    """Prints the output of each step that has a task; returns the job when it has ended."""
    named = {"job_id": job_id} if agent is None else {"job_id": job_id, "agent": agent}
    told, followed = target.call("skills.job_status", {**named, "tail_bytes": 0}), 0
    key = f"cli-{token_hex(8)}"  # another watch of the agent does not stop this one
    while True:
        steps = told["steps"]
        while not quiet and followed < len(steps) and steps[followed]["task_id"] is not None:
            step, followed = steps[followed], followed + 1
            click.echo(calm(f"step {step['name']} ({step['task_id']})"), err=True)
            for stream, text in output(target, step["task_id"], agent, follow=True):
                emit_foreign(text, err=stream == "stderr", nl=False)
        if told["status"] in _FINAL:
            return target.call("skills.job_status", named) if quiet else told
        asked = {**named, "tail_bytes": 0, "timeout_sec": 20 if quiet else _SOON_S, "dedupe_key": key}
        told = target.call("skills.job_watch", asked)


def _show(told: dict[str, Any], _: Given) -> None:
    steps = told.pop("steps")
    emit_fields({**told, **{name: moment(told[name]) for name in ("created_at", "started_at", "finished_at")}})
    rows = [[step["name"], step["status"], step["exit_code"], step["task_id"], step["error_message"]] for step in steps]
    emit_table(("step", "status", "exit code", "task", "why"), rows)
    for step in steps:
        for name in ("stdout", "stderr"):
            if text := step[f"{name}_tail"]:
                click.echo(calm(f"\n{step['name']}: {name}{', its end' if step[f'{name}_truncated'] else ''}:"))
                emit_foreign(text)


def _canceled(answer: Mapping[str, Any], _: Given) -> str:
    said = "canceled" if answer["canceled"] else f"had ended before ({answer['status']})"
    return f"{answer['job_id']} {said}"


add_calls(
    job,
    {
        "list": Call(
            method="skills.jobs",
            help="List the jobs of an agent, newest first.",
            options=(limit_option, _agent),
            key="jobs",
            paged=True,
            columns={
                "id": "job_id",
                "status": "status",
                "skill": "skill_name",
                "session": "session_id",
                "created": lambda row: moment(row.get("created_at")),
                "ended": lambda row: moment(row.get("finished_at")),
                "reason": "reason",
            },
        ),
        "show": Call(
            method="skills.job_status",
            help="Show how far a job is, with the end of the output of each step.",
            options=(_job_id, click.option("--tail", "tail_bytes", type=int, help="Bytes of it."), _agent),
            show=_show,
        ),
        "cancel": Call(
            method="skills.job_cancel",
            help="End a job and its step at work.",
            options=(_job_id, click.option("--reason", help="Kept in the record."), _agent),
            said=_canceled,
        ),
    },
)
