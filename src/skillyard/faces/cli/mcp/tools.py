"""``skillyard tools`` shows, approves and calls tools of MCP servers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from skillyard.faces.cli.calls import Call, Given, add_calls, params_of
from skillyard.faces.cli.render import calm, moment


@click.group()
def tools() -> None:
    """Show, approve and call the tools of MCP servers (`[mcp.servers.NAME]` of the settings).

    A tool is offered once an operator has approved its definition. One whose server describes it in other words later
    is held back until it is approved again.
    """


_SERVER = click.argument("server", metavar="SERVER")
_TOOL = click.argument("tool", metavar="TOOL")


def _state(row: Mapping[str, Any]) -> str:
    if row["hidden"]:
        return f"{row['state']}, holds {row['hidden']}"
    return str(row["state"] if row["offered"] or row["state"] != "approved" else "approved, not offered")


def _show_changes(rows: Any, _: Given) -> None:
    """Prints both definitions of each tool that changed."""
    for row in rows:
        if "approved_definition" in row:
            click.echo(f"\n{calm(row['server'])} {calm(row['tool'])} has changed. Approved:")
            click.echo(calm(json.dumps(row["approved_definition"], indent=2)))
            click.echo("now:")
            click.echo(calm(json.dumps(row["definition"], indent=2)))


_COLUMNS: Mapping[str, Any] = {
    "server": "server",
    "tool": "tool",
    "state": _state,
    "approved": lambda row: f"{moment(row['approved_at'])} by {row['approved_by']}" if row["approved_by"] else "",
    "digest": lambda row: row["digest"][:12],
    "description": "description",
}


def _asked(given: Given) -> dict[str, Any]:
    try:
        arguments = json.loads(given["arguments"])
    except ValueError as error:
        raise click.BadParameter(f"must be JSON: {error}", param_hint="ARGUMENTS") from None
    return params_of({**given, "arguments": None}) | {"arguments": arguments}


def _answer(told: Any, _: Given) -> None:
    for part in told.get("content", ()):
        click.echo(calm(part["text"]) if part["type"] == "text" else f"({part['type']} {part['mimeType']})")
    if "error" in told:
        click.echo(calm(f"{told['error']['type']}: {told['error']['message']}"), err=True)


_CALLS = {
    "servers": Call(
        method="tools.servers",
        help="List the MCP servers of the settings, and their processes.",
        key="servers",
        columns={
            "server": "server",
            "kind": "kind",
            "owner": lambda row: "shared" if row["shared"] else row["owner"],
            "state": "state",
            "calls": "calls",
            "starts": "starts",
            "why it ended": "why",
        },
        cut=True,
    ),
    "list": Call(
        method="tools.rows",
        help="List the tools of all MCP servers or of one: approved, or held back and why.",
        options=(click.argument("server", metavar="[SERVER]", required=False),),
        key="tools",
        columns=_COLUMNS,
        cut=True,
        show=_show_changes,
    ),
    "refresh": Call(
        method="tools.refresh",
        help="Start an MCP server anew and list its tools.",
        options=(_SERVER,),
        key="tools",
        columns=_COLUMNS,
        cut=True,
        show=_show_changes,
        changes=True,
    ),
    "approve": Call(
        method="tools.approve",
        help="Approve tools of an MCP server as it describes them now; all that are held back without a name.",
        options=(_SERVER, click.argument("tools", metavar="[TOOL]...", nargs=-1)),
        key="tools",
        columns=_COLUMNS,
        cut=True,
        changes=True,
    ),
    "revoke": Call(
        method="tools.revoke",
        help="Take the approval of a tool back.",
        options=(_SERVER, _TOOL),
        said=lambda told, given: (
            f"{given['server']} {given['tool']} is held back"
            if told["revoked"]
            else f"{given['server']} {given['tool']} was not approved"
        ),
        changes=True,
    ),
    "stop": Call(
        method="tools.stop",
        help="End the processes of an MCP server. The next call starts it again.",
        options=(_SERVER,),
        said=lambda told, _: f"{told['stopped']} processes have ended; nothing of them is left",
        changes=True,
    ),
    "call": Call(
        method="tools.call",
        help="Call a tool with ARGUMENTS, which are a JSON object.",
        options=(
            _SERVER,
            _TOOL,
            click.argument("arguments", metavar="[ARGUMENTS]", default="{}"),
            click.option("--timeout-ms", type=int, help="Wall clock, milliseconds."),
        ),
        ask=_asked,
        show=_answer,
        ends=lambda told: 0 if told["status"] == "completed" else 1,
        changes=True,
    ),
}

add_calls(tools, _CALLS)
