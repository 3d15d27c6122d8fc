"""``skillyard drain``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.failures import Exit
from skillyard.faces.cli.options import json_option, server_options

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Where

_TURN_MS = 10_000


@click.command()
@click.option("--undo", is_flag=True, help="Take new work again.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for runs that end with the server.",
)
@json_option
@server_options
def drain(undo: bool, wait: float, as_json: bool, where: Where) -> None:
    """Have a server refuse new work, and wait until it can be stopped.

    New runs and builds are refused with Busy, and /readyz says draining. Runs whose callers wait come to their end;
    detached runs go on, and outlive the server. Exits with 5 when some that end with the server are at work after
    --wait. SIGUSR1 has a server drain, too.

    \b
      skillyard drain && systemctl restart skillyard
    """
    deadline = time.monotonic() + wait
    with where.server() as target:
        while True:
            left_ms = max(0, int((deadline - time.monotonic()) * 1000))
            told = target.call("server.drain", {"undo": undo, "wait_ms": 0 if undo else min(_TURN_MS, left_ms)})
            if undo or not told["attached"] or not left_ms:
                break
    _show(told, as_json)
    if not undo and told["attached"]:
        raise SystemExit(Exit.BUSY)


def _show(told: dict[str, Any], as_json: bool) -> None:
    from skillyard.faces.cli.render import calm, emit_json

    if as_json:
        emit_json(told)
        return
    if not told["draining"]:
        click.echo("the server takes new work again")
        return
    left, stays = told["attached"], told["detached"]
    click.echo(f"draining: {left} calls and runs that end with the server are at work" if left else "drained")
    if stays:
        click.echo(calm(f"detached runs that outlive it: {', '.join(stays)}"))
