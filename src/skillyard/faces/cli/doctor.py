"""``skillyard doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.failures import Exit
from skillyard.faces.cli.options import json_option
from skillyard.faces.cli.render import emit_json, emit_table

if TYPE_CHECKING:
    from skillyard.domain.protection import Probe, Protection

_COLOURS = {"kernel": "green", "supervised": "yellow", "missing": "red"}


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Try every protection on this host, and say what enforces it or how to get it.

    A throw-away sandbox is made and looked at from inside. Levels: kernel (the kernel enforces it), supervised
    (skillyard watches and kills), missing. Exits with 1 when a mandatory protection is missing; a run is
    refused then, unless the settings allow it to go without.
    """
    found = _probe()
    missing = mandatory_missing(found)
    if as_json:
        emit_json(report(found, missing))
    else:
        _print(found, missing)
    if missing or not found.ready:
        click.get_current_context().exit(Exit.FAILED)


def mandatory_missing(found: Probe) -> list[str]:
    """Names of the protections that a run needs by default and that this host lacks."""
    from skillyard.domain.protection import ADVISORY, Level

    return [
        name
        for name, protection in found.protections.items()
        if protection.level is Level.MISSING and name not in ADVISORY
    ]


def report(found: Probe, missing: Sequence[str]) -> dict[str, Any]:
    """The JSON form: ``protections`` by name with level, by, why, mend, mandatory."""
    from dataclasses import asdict

    from skillyard.domain.protection import ADVISORY

    return {
        "backend": found.backend,
        "ready": found.ready,
        "mandatory_missing": list(missing),
        "protections": {
            name: {**asdict(protection), "mandatory": name not in ADVISORY}
            for name, protection in found.protections.items()
        },
        "facts": dict(found.facts),
    }


def _probe() -> Probe:
    import asyncio
    import tempfile

    with tempfile.TemporaryDirectory(prefix="skillyard-doctor-") as directory:
        return asyncio.run(_probe_in(Path(directory)))


async def _probe_in(directory: Path) -> Probe:
    from skillyard.sandbox.native.backend import NativeBackend

    backend = NativeBackend(directory / "run")
    try:
        return await backend.probe()
    finally:
        await backend.close()


def _print(found: Probe, missing: Sequence[str]) -> None:
    rows = [(name, p.level.value, _detail(p)) for name, p in found.protections.items()]
    emit_table(("protection", "level", "by, or why not"), rows, colours=_COLOURS)
    click.echo()
    for name, value in found.facts.items():
        click.echo(f"{name}: {value}")
    if missing:
        click.secho(f"\nMandatory and missing: {', '.join(missing)}. Runs are refused here.", fg="red", err=True)
    elif found.ready:
        click.secho("\nEvery mandatory protection is in force.", fg="green", err=True)


def _detail(protection: Protection) -> str:
    parts = [protection.by, protection.why]
    if protection.mend:
        parts.append(f"mend: {protection.mend}")
    return "; ".join(part for part in parts if part)
