"""Commands about this installation: ``skillyard serve``, ``drain``, ``verify``, ``bench`` and ``version``."""

from __future__ import annotations

import gc
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard._version import __version__
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.options import (
    bench_options,
    config_option,
    data_dir_option,
    isolation_option,
    json_option,
    server_options,
)

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Where

_COLLECT_EVERY = 10_000
"""Objects that a server makes and keeps until garbage is looked for."""


@click.command()
@click.option("--host", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="0 takes any that is free.  [default: 8765]")
@click.option(
    "--skills-dir",
    "skills_dirs",
    type=click.Path(path_type=Path, file_okay=False),
    multiple=True,
    help="A directory of skills. May repeat.",
)
@click.option("--e2b", is_flag=True, help="Answer programs that were written for E2B as well.")
@click.option("--no-auth", is_flag=True, help="Serve every caller without a token; loopback only.")
@isolation_option("What runs get.  [default: native]")
@config_option
@data_dir_option
def serve(
    host: str | None,
    port: int | None,
    skills_dirs: tuple[Path, ...],
    e2b: bool,
    no_auth: bool,
    isolation: str | None,
    data_dir: Path | None,
) -> None:
    """Serve skills, runs and blobs over HTTP until SIGTERM or Ctrl-C.

    Prints its URL in one line when it is ready. At the first start a token is made and kept in the data
    directory, where the other commands and the client find it by themselves.
    """
    import asyncio

    from skillyard.watches import new_event_loop, raise_descriptors

    raise_descriptors()  # before what counts on them is imported
    from skillyard.config.settings import load_settings
    from skillyard.faces.serve import serve as run_server

    settings = load_settings(
        data_dir=data_dir,
        skills_dirs=skills_dirs or None,
        server=_given(host=host, port=port) or None,
        e2b_server={"enabled": True} if e2b else None,
        policy=_given(isolation=isolation) or None,
    )
    # Of every source: a server that serves nothing of it would look as if the skills had gone.
    if absent := [path for path in settings.skills_dirs if not path.is_dir()]:
        raise Failure(f"skills_dirs: {absent[0]} is not a directory", "make it, or name another with --skills-dir")
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run_server(settings, no_auth=no_auth, announce=_announce))


def _announce(url: str) -> None:
    gc.freeze()  # what a server is made of stays, and is not looked through again
    gc.set_threshold(_COLLECT_EVERY)
    # The log has it, too: a server whose starter reads no more, or closed standard output, is none the worse.
    with suppress(OSError, Failure):
        click.echo(f"skillyard is ready at {url}")


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@click.command()
@bench_options
def bench(
    quick: bool, ready: int | None, output: Path | None, profile: bool, against: Path | None, as_json: bool
) -> None:
    """Measure what a run costs here, beside a plain python3 that does the same job.

    run_code in process and over HTTP, with sandboxes ready and on demand, with numpy and pandas preloaded, beside
    python3 -I without any walls; then processor time beside a rough prototype of the same idea. All take turns, so that
    ratios hold on a noisy machine. Works in a directory of its own.
    """
    from skillyard.bench.main import bench

    if str(output) == "-":
        output, as_json = None, True
    bench(quick, ready, output, profile, against, as_json)


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Print the version of this program, of its Python and of the kernel."""
    python, kernel = sys.version.split()[0], os.uname()
    if as_json:
        from skillyard.faces.cli.render import emit_json

        emit_json({"version": __version__, "python": python, "kernel": kernel.release, "machine": kernel.machine})
    else:
        click.echo(f"skillyard {__version__} (Python {python}, {kernel.sysname} {kernel.release} {kernel.machine})")


@click.command()
@click.option(
    "--url",
    envvar="SKILLYARD_URL",
    help="The server to attack.  [env: SKILLYARD_URL; default: none, a runtime of its own]",
)
@click.option("--token", envvar="SKILLYARD_TOKEN", help="Its bearer token; run_code is enough.  [env: SKILLYARD_TOKEN]")
@data_dir_option
@isolation_option("The boundary to attack.  [default: what the settings, or the server, name]")
@click.option("--family", "families", multiple=True, metavar="NAME", help="Only this family. May repeat.")
@click.option("--only", "names", multiple=True, metavar="NAME", help="Only this program. May repeat.")
@click.option("--canary", is_flag=True, help="Plant real targets on this machine, and hunt and watch them.")
@click.option(
    "--at-once", type=click.IntRange(1, 64), metavar="N", help="Programs at a time.  [default: processors, at most 4]"
)
@click.option("--json", "output", metavar="FILE", help="Write the report there, too; - for JSON alone on stdout.")
@click.option("--list", "listing", is_flag=True, help="Say what each program tries and tests, and run none.")
def verify(
    url: str | None,
    token: str | None,
    data_dir: Path | None,
    isolation: str | None,
    families: tuple[str, ...],
    names: tuple[str, ...],
    canary: bool,
    at_once: int | None,
    output: str | None,
    listing: bool,
) -> None:
    """Attack this installation, or a server, and see whether its walls hold.

    Hostile programs are sent through the public API; each is contained, or ESCAPED, or broken (it did not run as it
    should and shows nothing), or does not apply, with the reason. Ordinary programs must work. Without --url a
    runtime of its own does the work, under the settings of this machine and in a directory that is thrown away.
    Exits with 1 when a program escaped, is broken, or does not work.
    """
    from skillyard.verify.main import Asked, list_programs
    from skillyard.verify.main import verify as attack

    asked = Asked(url, token, data_dir, isolation, families, names, canary, at_once, output)
    if listing:
        list_programs(asked)
    else:
        attack(asked)


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
    _show_drain(told, as_json)
    if not undo and told["attached"]:
        raise SystemExit(Exit.BUSY)


def _show_drain(told: dict[str, Any], as_json: bool) -> None:
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
