"""``skillyard doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.domain.errors import GateFault, ProtectionMissing
from skillyard.domain.sandbox.guarantees import ABILITIES, Demand, Level, Nature, Probe, Protection
from skillyard.faces.cli.failures import Exit
from skillyard.faces.cli.options import data_dir_option, isolation_option, json_option
from skillyard.faces.cli.render import emit_json, emit_table

if TYPE_CHECKING:
    from skillyard.config.settings import Settings
    from skillyard.engine.backends import Offer
    from skillyard.gate.client import ProcessGate

_COLOURS = {"kernel": "green", "supervised": "yellow", "missing": "red"}


@click.command()
@isolation_option("What to look at.  [default: what the settings name]")
@json_option
@data_dir_option
def doctor(isolation: str | None, as_json: bool, data_dir: Path | None) -> None:
    """Try every protection on this host, and say what enforces it or how to get it.

    A throw-away sandbox is made and looked at from inside. Levels: kernel (the kernel enforces it), supervised
    (skillyard watches and kills), missing. Exits with 1 when the settings' policy demands more than this host
    can enforce: runs are refused then. Also exits with 1 when network.rules let runs reach hosts and no way out
    stands here; not where the chosen isolation has none by its nature and network.run_code is none. With auto, it
    shows the strongest isolation that stands here.
    """
    from skillyard.config.settings import load_settings

    settings = load_settings(data_dir=data_dir, policy={"isolation": isolation} if isolation else None)
    offer, passed_over = _probe(settings)
    found, short = offer.probe, shortfall(offer.probe, offer.demand)
    refused, demanded = network_refused(found, offer.backend.nature, settings)
    if as_json:
        told = {"passed_over": passed_over, "network_refused": refused, "network_demanded": demanded}
        emit_json(report(found, offer.demand, short) | told)
    else:
        _print(found, short, refused, demanded=demanded)
        for stronger, why in passed_over.items():
            click.secho(f"\nThe stronger isolation '{stronger}' was passed over: {why}", fg="yellow", err=True)
    if offer.refusal is not None or (refused and demanded):
        click.get_current_context().exit(Exit.FAILED)


def shortfall(found: Probe, demand: Demand) -> list[str]:
    """Names of the protections that policy demands and this host lacks."""
    try:
        demand.check(found.protections)
    except ProtectionMissing as error:
        return list(error.details["protections"])
    return []


def network_refused(found: Probe, nature: Nature, settings: Settings) -> tuple[str, bool]:
    """Returns why runs with a network are refused here, or nothing; and if settings ask for one."""
    config = settings.network
    if not config.rules:
        return "network.rules allow none", False
    demanded = bool(config.run_code) or nature.network
    egress = abilities(found)["egress"]
    return (_detail(egress) or "there is no way out") if egress.level is Level.MISSING else "", demanded


def abilities(found: Probe) -> dict[str, Protection]:
    """Each that there is, also those that this backend does not speak of."""
    silent = Protection(Level.MISSING, why="the backend does not offer it")
    return {name: found.abilities.get(name, silent) for name in ABILITIES}


def report(found: Probe, demand: Demand, short: Sequence[str]) -> dict[str, Any]:
    """The JSON form: ``protections`` by name with level, by, why, mend, mandatory; ``abilities`` alike."""
    return {
        "isolation": found.backend,
        "ready": found.ready,
        "mandatory_missing": list(short),
        "protections": {
            name: {**asdict(protection), "mandatory": demand.demands(name)}
            for name, protection in found.protections.items()
        },
        "abilities": {name: asdict(ability) for name, ability in abilities(found).items()},
        "facts": dict(found.facts),
    }


def _probe(settings: Settings) -> tuple[Offer, dict[str, str]]:
    """Beside a server that may be running: in a directory of its own."""
    import asyncio
    import tempfile

    with tempfile.TemporaryDirectory(prefix="skillyard-doctor-") as directory:
        return asyncio.run(_probe_in(settings, Path(directory)))


async def _probe_in(settings: Settings, directory: Path) -> tuple[Offer, dict[str, str]]:
    """What runs would get, and the stronger isolations that they would not, each with why."""
    from skillyard.engine.backends import Backends
    from skillyard.wiring import make_backends, make_gate

    gate = make_gate(settings, directory)
    backends = Backends(make_backends(settings, directory, gate), settings.policy)
    try:
        await backends.start()
        assert backends.default is not None
        backends.default.probe = await _with_gate(backends.default.probe, gate)
    finally:
        for backend in backends:
            await backend.close()
        await gate.close()
    return backends.default, {offer.name: str(offer.refusal) for offer in backends.passed_over}


async def _with_gate(found: Probe, gate: ProcessGate) -> Probe:
    """Where a sandbox can be plugged in, the gate is started: without it there is no network, either."""
    if abilities(found)["egress"].level is Level.MISSING:
        return found
    try:
        facts = await gate.start()
    except GateFault as error:
        return replace(found, abilities={"egress": Protection(Level.MISSING, why=error.message)})
    walls = [f"user {facts['uid']}", f"landlock {facts['landlock']}" if facts["landlock"] else "", *facts["missing"]]
    return replace(found, facts={**found.facts, "gate": ", ".join(filter(None, walls))})


def _print(found: Probe, short: Sequence[str], refused: str, *, demanded: bool) -> None:
    rows = [(name, p.level.value, _detail(p) if found.ready else "") for name, p in found.protections.items()]
    emit_table(("protection", "level", "by, or why not"), rows, colours=_COLOURS)
    click.echo(f"\nisolation: {found.backend}")
    for name, ability in abilities(found).items():
        click.echo(f"{name}: {ability.level.value}" + (f" ({detail})" if (detail := _detail(ability)) else ""))
    for name, value in found.facts.items():
        click.echo(f"{name}: {value}")
    if not found.ready:
        click.secho("\nNo sandbox can be made here. Runs are refused.", fg="red", err=True)
    elif short:
        click.secho(f"\nDemanded and missing: {', '.join(short)}. Runs are refused here.", fg="red", err=True)
    else:
        network = f" Runs that need a network are refused: {refused}." if refused else ""
        colour = "green" if not refused else "red" if demanded else "yellow"
        click.secho(f"\nEvery protection that is demanded is in force.{network}", fg=colour, err=True)


def _detail(protection: Protection) -> str:
    parts = [protection.by, protection.why]
    if protection.mend:
        parts.append(f"mend: {protection.mend}")
    return "; ".join(part for part in parts if part)
