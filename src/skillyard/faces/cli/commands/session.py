"""``skillyard session`` lists and ends sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from skillyard.faces.cli.calls import Call, Given, add_calls
from skillyard.faces.cli.render import moment

_AGENT = click.option("--agent", metavar="NAME", help="The agent that they belong to, where the token allows it.")


@click.group()
def session() -> None:
    """Show and end sessions: sandboxes that are kept for several commands of an agent."""


def _end(row: Mapping[str, Any]) -> str:
    """Returns when a session ends or ended, and for an ended one who did it."""
    if row["state"] == "ended":
        return f"{moment(row['ended_at'])} by {row['ended_by']}"
    ends = [at for at in (row["idle_at"], row["expires_at"]) if at is not None]
    return moment(min(ends)) if ends else ""


def _ended(told: Any, _: Given) -> str:
    return f"the session {told['session_id']} of {told['project']}/{told['agent']} is ended; nothing of it is left"


_CALLS = {
    "list": Call(
        method="skills.sessions",
        help="List the sessions of an agent, newest first.",
        options=(
            click.option("--ended", is_flag=True, help="With those that ended in the last days, and why."),
            click.option("--all", "all", is_flag=True, help="Of every project and agent; needs the scope admin."),
            _AGENT,
        ),
        key="sessions",
        columns={
            "session": "session_id",
            "agent": lambda row: f"{row['project']}/{row['agent']}",
            "state": "state",
            "runs": "runs",
            "at work": lambda row: row["run_id"] or "",
            "ends": _end,
            "why": "reason",
        },
        cut=True,
    ),
    "end": Call(
        method="skills.end_session",
        help="End a session and its command at work. Its files are gone then.",
        options=(
            click.argument("session_id", metavar="NAME"),
            click.option("--reason", default="", help="Told by `skillyard session list --ended`."),
            _AGENT,
        ),
        said=_ended,
        changes=True,
    ),
}

add_calls(session, _CALLS)
