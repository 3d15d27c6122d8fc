"""``skillyard doctor``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.domain.errors import GateFault
from skillyard.domain.sandbox.guarantees import (
    ABILITIES,
    Demand,
    Guarantee,
    Level,
    Nature,
    Probe,
    Protection,
    guarantees,
)
from skillyard.faces.cli.failures import Exit
from skillyard.faces.cli.options import config_option, data_dir_option, isolation_option, json_option
from skillyard.faces.cli.render import LEVEL_COLOURS, emit_json, emit_table

if TYPE_CHECKING:
    from skillyard.config.settings import Settings
    from skillyard.engine.backends import Offer


@click.command()
@isolation_option("What to look at.  [default: what the settings name]")
@json_option
@config_option
@data_dir_option
def doctor(isolation: str | None, as_json: bool, data_dir: Path | None) -> None:
    """Try every guarantee on this host, and say what upholds it or how to get it.

    A throw-away sandbox is made and looked at from inside. A guarantee is attested by the kernel (it enforces it),
    as supervised (skillyard watches and kills), by the provider of the sandbox, or it is missing; below it stand the
    walls that it rests on. Exits with 1 when the settings' policy demands more than this host
    can enforce: runs are refused then. Also exits with 1 when network.rules let runs reach hosts and no way out
    stands here; not where the chosen isolation has none by its nature and network.run_code is none. With auto, it
    shows the strongest isolation that stands here. Settings that have no effect are told of, each with the reason.
    """
    from skillyard.config.settings import load_settings

    settings = load_settings(data_dir=data_dir, policy={"isolation": isolation} if isolation else None)
    offer, passed_over = _probe(settings)
    keepers = _keepers(settings)
    found, nature, short = offer.probe, offer.backend.nature, offer.demand.shortfall(offer.probe.protections)
    refused, demanded = network_refused(found, nature, settings)
    if as_json:
        told = {"passed_over": passed_over, "network_refused": refused, "network_demanded": demanded}
        told |= {"keepers_of_other_versions": keepers, "settings": list(settings.notes)}
        emit_json(report(found, nature, offer.demand) | told)
    else:
        _print(found, nature, short, refused, demanded=demanded)
        for stronger, why in passed_over.items():
            click.secho(f"\nThe stronger isolation '{stronger}' was passed over: {why}", fg="yellow", err=True)
        for home, text in keepers.items():
            click.secho(f"\nThe keeper of {home}: {text}.", fg="yellow", err=True)
        for note in settings.notes:
            click.secho(f"\nSettings: {note}.", fg="yellow", err=True)
    if offer.refusal is not None or (refused and demanded):
        click.get_current_context().exit(Exit.FAILED)


def network_refused(found: Probe, nature: Nature, settings: Settings) -> tuple[str, bool]:
    """Returns why runs with a network are refused here, or nothing; and if settings ask for one."""
    config = settings.network
    if not config.rules:
        return "network.rules allow none", False
    demanded = bool(config.run_code) or nature.network
    egress = abilities(found)["egress"]
    return (_detail(egress) or "there is no way out") if egress.level is Level.MISSING else "", demanded


def abilities(found: Probe) -> dict[str, Protection]:
    """Returns every ability, also those that this backend does not speak of."""
    silent = Protection(Level.MISSING, why="the backend does not offer it")
    return {name: found.abilities.get(name, silent) for name in ABILITIES}


def report(found: Probe, nature: Nature, demand: Demand) -> dict[str, Any]:
    """Returns the JSON form: guarantees, protections and abilities, each by name."""
    return {
        "isolation": found.backend,
        "ready": found.ready,
        "mandatory_missing": demand.shortfall(found.protections),
        "guarantees": {name: asdict(each) for name, each in guarantees(found.protections, nature).items()},
        "protections": {
            name: {**asdict(protection), "mandatory": demand.demands(name)}
            for name, protection in found.protections.items()
        },
        "abilities": {name: asdict(ability) for name, ability in abilities(found).items()},
        "facts": dict(found.facts),
    }


def _keepers(settings: Settings) -> dict[str, str]:
    """Returns the data directory's keepers of another version, each with a sentence about it."""
    from skillyard.data_dir import DataDir
    from skillyard.wiring import keepers_of_other_versions

    try:
        return keepers_of_other_versions(settings, DataDir(settings.data_dir).run)
    except OSError:  # it is another user's
        return {}


def _probe(settings: Settings) -> tuple[Offer, dict[str, str]]:
    """Probes in a directory of its own, beside a server that may be running."""
    import asyncio
    import tempfile

    with tempfile.TemporaryDirectory(prefix="skillyard-doctor-") as directory:
        return asyncio.run(_probe_in(settings, Path(directory)))


async def _probe_in(settings: Settings, directory: Path) -> tuple[Offer, dict[str, str]]:
    """Returns the isolation of runs, and the reason against each stronger one."""
    from skillyard.engine.backends import Backends
    from skillyard.wiring import make_backends, make_gate

    gate = make_gate(settings, directory)
    backends = Backends(make_backends(settings, directory, gate), settings.policy)
    try:
        await backends.start()
        assert backends.default is not None
        backends.default.probe = await _with_gate(backends.default.probe, gate.start)
    finally:
        for backend in backends:
            await backend.close()
        await gate.close()
    return backends.default, {offer.name: str(offer.refusal) for offer in backends.passed_over}


async def _with_gate(found: Probe, start: Callable[[], Awaitable[Mapping[str, Any]]]) -> Probe:
    """Returns the probe after the gate was tried too: without it there is no network, either."""
    if abilities(found)["egress"].level is Level.MISSING:
        return found
    try:
        facts = await start()
    except GateFault as error:
        return replace(found, abilities={"egress": Protection(Level.MISSING, why=error.message)})
    walls = [f"user {facts['uid']}", f"landlock {facts['landlock']}" if facts["landlock"] else "", *facts["missing"]]
    return replace(found, facts={**found.facts, "gate": ", ".join(filter(None, walls))})


def _print(found: Probe, nature: Nature, short: Sequence[str], refused: str, *, demanded: bool) -> None:
    stand = guarantees(found.protections, nature)
    rows = [(name, each.attestor.value, _grounds(name, each, found)) for name, each in stand.items()]
    emit_table(("guarantee", "attested by", "evidence, or why not"), rows, colours=LEVEL_COLOURS)
    walls = [(name, p.level.value, _detail(p) if found.ready else "") for name, p in found.protections.items()]
    if walls := [row for row in walls if row[0] not in stand]:
        click.echo()
        emit_table(("wall", "level", "by, or why not"), walls, colours=LEVEL_COLOURS)
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


def _grounds(name: str, guarantee: Guarantee, found: Probe) -> str:
    """Returns its grounds: the backend's words about it, else its walls."""
    if name in found.protections:
        return _detail(found.protections[name]) if found.ready else ""
    lacking = f"without {', '.join(guarantee.lacking)}" if guarantee.lacking else ""
    return "; ".join(filter(None, (", ".join(guarantee.evidence), lacking)))


def _detail(protection: Protection) -> str:
    parts = [protection.by, protection.why]
    if protection.mend:
        parts.append(f"mend: {protection.mend}")
    return "; ".join(part for part in parts if part)
