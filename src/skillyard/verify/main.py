"""The command ``skillyard verify``: options in, table or report out."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from skillyard._version import __version__
from skillyard.config.settings import load_settings
from skillyard.domain.errors import InvalidInput
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.render import emit_json, emit_table
from skillyard.testing.attacks.attack import FAILURES, Attack, Verdict
from skillyard.testing.attacks.canaries import planted, planted_file
from skillyard.verify.battery import Finding, chosen, fight
from skillyard.verify.families import everything
from skillyard.verify.home import own_runtime, workplace
from skillyard.verify.site import HEARTBEAT, Site, at_home

VERSION = 1
COLOURS = {
    Verdict.CONTAINED: "green", Verdict.WORKS: "green", Verdict.ESCAPED: "red", Verdict.BROKEN: "red",
    Verdict.TOO_TIGHT: "red", Verdict.NOT_APPLICABLE: "yellow",
}  # fmt: skip


def rows(findings: Sequence[Finding]) -> list[tuple[str, str, str, str]]:
    """Returns the rows of a table: name, verdict, walls, why."""
    return [
        (f.attack.name, f.judgement.verdict.value, " ".join(f.attack.walls), f.judgement.why[:200]) for f in findings
    ]


def described(attacks: Sequence[Attack]) -> list[tuple[str, str, str, str]]:
    """Returns the rows of a table: name, the sentence of the attempt, invariants, walls."""
    return [
        (a.name, a.tries, " ".join(map(str, a.invariants)), " ".join(a.walls) or ("-" if not a.benign else ""))
        for a in attacks
    ]


def counts(findings: Sequence[Finding]) -> dict[str, int]:
    found = Counter(f.judgement.verdict.value for f in findings)
    return {verdict.value: found[verdict.value] for verdict in Verdict if found[verdict.value]}


def summary(findings: Sequence[Finding], seconds: float) -> str:
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts(findings).items())
    return f"{len(findings)} programs in {seconds:.0f} s: {told or 'nothing to do'}"


def failed(findings: Sequence[Finding]) -> bool:
    return any(f.judgement.verdict in FAILURES for f in findings)


def as_dict(findings: Sequence[Finding], enforced: dict[str, str], isolation: str, seconds: float) -> dict[str, Any]:
    """Returns the report; ``enforced`` and ``isolation`` are as the server's records name them."""
    return {
        "version": VERSION,
        "passed": not failed(findings),
        "isolation": isolation,
        "enforced": enforced,
        "seconds": round(seconds, 3),
        "counts": counts(findings),
        "programs": [
            {
                "name": f.attack.name,
                "family": f.attack.family,
                "tries": f.attack.tries,
                "benign": f.attack.benign,
                "invariants": list(f.attack.invariants),
                "walls": list(f.attack.walls),
                "verdict": f.judgement.verdict.value,
                "why": f.judgement.why,
                "seconds": round(f.seconds, 3),
            }
            for f in findings
        ],
    }


_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Asked:
    """The options. ``output`` is a file for the JSON report, ``-`` for standard output, or None."""

    url: str | None = None
    token: str | None = None
    data_dir: Path | None = None
    isolation: str | None = None
    families: Collection[str] = ()
    names: Collection[str] = ()
    canary: bool = False
    at_once: int | None = None
    output: str | None = None


def list_programs(asked: Asked) -> None:
    """Raises Failure."""
    attacks = _chosen(asked)
    if asked.output == "-":
        emit_json(
            [
                {"name": a.name, "family": a.family, "tries": a.tries, "invariants": a.invariants, "walls": a.walls}
                for a in attacks
            ]
        )
        return
    emit_table(("program", "what it tries", "invariants", "walls"), described(attacks))


def verify(asked: Asked) -> None:
    """Prints the verdict on each program; the exit status is 1 when any failed.

    Raises Failure, and what the server or the runtime raises.
    """
    attacks = _chosen(asked)
    quiet = asked.output == "-"
    began = time.monotonic()
    with _ending_well():
        findings, record = asyncio.run(_verify(asked, attacks, quiet))
    seconds = time.monotonic() - began
    made = as_dict(findings, record.get("enforced") or {}, str(record.get("isolation") or ""), seconds)
    made["skillyard"], made["kernel"], made["uid"] = __version__, platform.release(), os.geteuid()
    if quiet:
        emit_json(made)
    else:
        _show(findings, made, seconds)
        if asked.output is not None:
            Path(asked.output).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    if failed(findings):
        click.get_current_context().exit(Exit.FAILED)


@contextmanager
def _ending_well() -> Iterator[None]:
    """Lets SIGTERM unwind as Ctrl-C does, so that targets are removed and the runtime is closed."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _chosen(asked: Asked) -> list[Attack]:
    try:
        return chosen(everything(), asked.families, asked.names)
    except InvalidInput as error:
        raise Failure(error.message, "`skillyard verify --list` shows all programs") from error


async def _verify(asked: Asked, attacks: Sequence[Attack], quiet: bool) -> tuple[list[Finding], dict[str, Any]]:
    async with _site(asked) as site:
        first = await site.run(HEARTBEAT, {"word": "first"})
        await at_home(site)
        if not first.ok:
            raise Failure(f"a benign run does not work here: {first.why}", "`skillyard doctor` says why", Exit.FAILED)
        at_once = asked.at_once or min(4, os.cpu_count() or 1)
        bar = _Progress(len(attacks), quiet)
        return await fight(site, attacks, at_once=at_once, said=bar), dict(first.raw)


@asynccontextmanager
async def _site(asked: Asked) -> AsyncIterator[Site]:
    """Gives the named server, or a runtime of the battery's own under the user's settings."""
    async with AsyncExitStack() as stack:
        if asked.url is not None:
            from skillyard.client.client import Client

            client = await stack.enter_async_context(Client(asked.url, asked.token))
            if asked.canary and client.server.url.host not in _LOOPBACK:
                raise Failure("--canary plants targets on this machine, and the server is on another one")
            canaries = stack.enter_context(planted()) if asked.canary else None
            yield Site(client, asked.isolation, canaries=canaries)
            return
        policy = {"isolation": asked.isolation} if asked.isolation else None
        settings = load_settings(data_dir=asked.data_dir, policy=policy)
        place = stack.enter_context(workplace())
        canaries = stack.enter_context(planted()) if asked.canary else None  # variables first: what starts inherits
        runtime = await stack.enter_async_context(own_runtime(settings, place))
        if canaries is not None:
            stack.enter_context(planted_file(canaries, runtime.data_dir.home))
        yield Site(runtime, None, runtime, canaries)


class _Progress:
    """Counts programs in one line of a terminal; elsewhere it prints nothing."""

    def __init__(self, total: int, quiet: bool) -> None:
        self._total = total
        self._done = 0
        self._shown = not quiet and sys.stderr.isatty()

    def __call__(self, finding: Finding) -> None:
        self._done += 1
        if self._shown:
            text = f"{self._done} of {self._total}: {finding.attack.name}"
            click.echo(f"\r\x1b[K{text if self._done < self._total else ''}", nl=False, err=True)


def _show(findings: Sequence[Finding], made: dict[str, Any], seconds: float) -> None:
    colours = {verdict.value: colour for verdict, colour in COLOURS.items()}
    emit_table(("program", "verdict", "walls", "why"), rows(findings), colours=colours)
    missing = [name for name, level in made["enforced"].items() if level == "missing"]
    click.echo(
        f"\nisolation: {made['isolation'] or 'not said'}" + (f"; not claimed: {', '.join(missing)}" if missing else "")
    )
    colour = "red" if failed(findings) else "green"
    click.secho(summary(findings, seconds), fg=colour, bold=True)
    for finding in findings:
        if finding.judgement.verdict in FAILURES:
            click.secho(
                f"{finding.judgement.verdict}: {finding.attack.name}: {finding.judgement.why}", fg="red", err=True
            )
    if Verdict.NOT_APPLICABLE in {f.judgement.verdict for f in findings}:
        click.echo("What does not apply was not shown to be contained; the table says why.")
