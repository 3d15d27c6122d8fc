"""``skillyard doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.domain.errors import ProtectionMissing
from skillyard.domain.protection import ADVISORY, Demand, Probe, Protection
from skillyard.faces.cli.failures import Exit
from skillyard.faces.cli.options import data_dir_option, json_option
from skillyard.faces.cli.render import emit_json, emit_table

if TYPE_CHECKING:
    from skillyard.settings import Settings

_COLOURS = {"kernel": "green", "supervised": "yellow", "missing": "red"}


@click.command()
@json_option
@data_dir_option
def doctor(as_json: bool, data_dir: Path | None) -> None:
    """Try every protection on this host, and say what enforces it or how to get it.

    A throw-away sandbox is made and looked at from inside. Levels: kernel (the kernel enforces it), supervised
    (skillyard watches and kills), missing. Exits with 1 when the settings' policy demands more than this host
    can enforce: runs are refused then.
    """
    from skillyard.settings import load_settings

    settings = load_settings(data_dir=data_dir)
    found = _probe(settings)
    config = settings.engine_config()
    short = shortfall(found, Demand(config.kernel_only, config.allow_degraded))
    if as_json:
        emit_json(report(found, short, config.allow_degraded))
    else:
        _print(found, short)
    if short or not found.ready:
        click.get_current_context().exit(Exit.FAILED)


def shortfall(found: Probe, demand: Demand) -> list[str]:
    """Names of the protections that policy demands and this host lacks."""
    try:
        demand.check(found.protections)
    except ProtectionMissing as error:
        return list(error.details["protections"])
    return []


def report(found: Probe, short: Sequence[str], allow_degraded: frozenset[str]) -> dict[str, Any]:
    """The JSON form: ``protections`` by name with level, by, why, mend, mandatory."""
    optional = ADVISORY | allow_degraded
    return {
        "backend": found.backend,
        "ready": found.ready,
        "mandatory_missing": list(short),
        "protections": {
            name: {**asdict(protection), "mandatory": name not in optional}
            for name, protection in found.protections.items()
        },
        "facts": dict(found.facts),
    }


def _probe(settings: Settings) -> Probe:
    """Beside a server that may be running: in a directory of its own."""
    import asyncio
    import tempfile

    with tempfile.TemporaryDirectory(prefix="skillyard-doctor-") as directory:
        return asyncio.run(_probe_in(settings, Path(directory)))


async def _probe_in(settings: Settings, directory: Path) -> Probe:
    from skillyard.assembly import native_backend
    from skillyard.data_dir import DataDir

    backend = native_backend(settings, DataDir(directory))
    try:
        return await backend.probe()
    finally:
        await backend.close()


def _print(found: Probe, short: Sequence[str]) -> None:
    rows = [(name, p.level.value, _detail(p)) for name, p in found.protections.items()]
    emit_table(("protection", "level", "by, or why not"), rows, colours=_COLOURS)
    click.echo()
    for name, value in found.facts.items():
        click.echo(f"{name}: {value}")
    if short:
        click.secho(f"\nDemanded and missing: {', '.join(short)}. Runs are refused here.", fg="red", err=True)
    elif found.ready:
        click.secho("\nEvery protection that is demanded is in force.", fg="green", err=True)


def _detail(protection: Protection) -> str:
    parts = [protection.by, protection.why]
    if protection.mend:
        parts.append(f"mend: {protection.mend}")
    return "; ".join(part for part in parts if part)
