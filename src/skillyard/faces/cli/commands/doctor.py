"""``skillyard doctor``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from secrets import token_hex
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skillyard.domain.errors import GateFault, InvalidInput, SkillyardError
from skillyard.domain.sandbox.guarantees import (
    ABILITIES,
    AUTO,
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
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.config.settings import Settings
    from skillyard.engine.backends import Offer
    from skillyard.ports.sandbox import Backend

T = TypeVar("T")
_STARTS = 3


@click.command()
@isolation_option("What to look at.  [default: what the settings name]")
@click.option("--all", "every", is_flag=True, help="Try every isolation, and compare them in one table.")
@json_option
@config_option
@data_dir_option
def doctor(isolation: str | None, every: bool, as_json: bool, data_dir: Path | None) -> None:
    """Try every guarantee on this host, and say what upholds it or how to get it.

    A throw-away sandbox is made and looked at from inside. A guarantee is attested by the kernel (it enforces it),
    as supervised (skillyard watches and kills), by the provider of the sandbox, or it is missing; below it stand the
    walls that it rests on. Exits with 1 when the settings' policy demands more than this host
    can enforce: runs are refused then. Also exits with 1 when network.rules let runs reach hosts and no way out
    stands here; not where the chosen isolation has none by its nature and network.run_code is none. With auto, it
    shows the strongest isolation that stands here. Settings that have no effect are told of, each with the reason.
    With --all, it makes sandboxes of every isolation and says which are ready, who attests their guarantees, and how
    long a sandbox takes here now (one made ahead where there are such). Of engines, providers and machines it tells how
    many sandboxes of any server of skillyard were there before. It exits with 1 when no isolation is ready.
    """
    from skillyard.config.settings import load_settings

    if every:
        if isolation:
            raise InvalidInput("--isolation", "must not be given beside --all")
        _compare(load_settings(data_dir=data_dir), as_json=as_json)
        return
    settings = load_settings(data_dir=data_dir, policy={"isolation": isolation} if isolation else None)
    offer, passed_over = _probe(settings)
    keepers = _keepers(settings)
    found, nature, short = offer.probe, offer.backend.nature, offer.demand.shortfall(offer.probe.protections)
    refused, demanded = network_refused(found, nature, settings)
    if as_json:
        told = {"passed_over": passed_over, "network_refused": refused, "network_demanded": demanded}
        told |= {"keepers_of_other_versions": keepers, "settings": list(settings.notes), "jails": _jails(settings)}
        emit_json(report(found, nature, offer.demand) | told)
    else:
        _print(found, nature, short, refused, demanded=demanded)
        click.echo(f"\nJails of this user {_jails(settings)}.")
        for stronger, why in passed_over.items():
            click.secho(f"\nThe stronger isolation '{stronger}' was passed over: {why}", fg="yellow", err=True)
        for home, text in keepers.items():
            click.secho(f"\nThe keeper of {home}: {text}.", fg="yellow", err=True)
        for note in settings.notes:
            click.secho(f"\nSettings: {note}.", fg="yellow", err=True)
    if offer.refusal is not None or (refused and demanded):
        click.get_current_context().exit(Exit.FAILED)


@dataclass(frozen=True, slots=True)
class Compared:
    """An isolation as it stands here. ``start_ms`` is None where no sandbox can be made, and ``why`` says so.

    ``standing`` counts the sandboxes of all servers of skillyard; None where nobody but a server can count its own.
    """

    isolation: str
    ready: bool
    attestors: Mapping[str, str]
    start_ms: float | None
    why: str
    standing: int | None = None


def _compare(settings: Settings, *, as_json: bool) -> None:
    found = _in_a_directory_of_its_own(lambda directory: _compared(settings, directory))
    if as_json:
        emit_json({"isolations": [asdict(each) for each in found]})
    else:
        rows = [
            (
                each.isolation,
                "ready" if each.ready else "not ready",
                _by_attestor(each.attestors),
                _ms(each.start_ms),
                "" if each.standing is None else str(each.standing),
            )
            for each in found
        ]
        emit_table(("isolation", "here", "guarantees", "start", "sandboxes"), rows)
        for each in found:
            if each.why:
                click.secho(f"\n{each.isolation}: {each.why}", fg="yellow", err=True)
    if not any(each.ready for each in found):
        click.get_current_context().exit(Exit.FAILED)


def _by_attestor(attestors: Mapping[str, str]) -> str:
    """Returns how many guarantees each attestor has, and which nobody attests."""
    told = []
    for level in Level:
        names = [name for name, by in attestors.items() if by == level]
        more = f" ({', '.join(names)})" if level is Level.MISSING and len(names) < len(attestors) else ""
        told += [f"{len(names)} {level}{more}"] if names else []
    return ", ".join(told)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} ms"


async def _compared(settings: Settings, directory: Path) -> list[Compared]:
    from skillyard.ports.sandbox import Standing
    from skillyard.wiring import isolations, make_backend

    found = []
    for name in isolations():
        if name == AUTO:
            continue
        (run_dir := directory / name).mkdir(mode=0o700)
        backend = make_backend(name, settings, run_dir)
        standing = None
        try:
            if isinstance(backend, Standing):
                with suppress(SkillyardError):
                    standing = await backend.standing()
            found.append(replace(await _stands(backend, settings), standing=standing))
        except SkillyardError as error:
            found.append(Compared(name, False, {}, None, error.message, standing))
        finally:
            await backend.close()
    return found


async def _stands(backend: Backend, settings: Settings) -> Compared:
    """Returns how it stands here, found by making sandboxes. Raises SkillyardError."""
    from skillyard.engine.backends import Backends

    policy = settings.policy.changed(isolation=backend.name, isolations=frozenset(), rules=())
    backends = Backends({backend.name: backend}, policy)
    await backends.start()
    offer = backends.default
    assert offer is not None
    stand = guarantees(offer.probe.protections, backend.nature)
    attestors = {name: each.attestor.value for name, each in stand.items()}
    if offer.refusal is not None:
        return Compared(backend.name, False, attestors, None, offer.refusal.message)
    took = [await _started(backend, offer) for _ in range(_STARTS)]
    return Compared(backend.name, True, attestors, round(median(took), 1), "")


async def _started(backend: Backend, offer: Offer) -> float:
    """Makes a sandbox and returns how long that took, in ms. Raises SkillyardError."""
    from skillyard.domain.sandbox.spec import SandboxSpec
    from skillyard.domain.work.limits import Limits

    demand = offer.demand
    spec = SandboxSpec(Limits(disk_mb=16), kernel_only=demand.kernel_only, allow_degraded=demand.allow_degraded)
    began = perf_counter()
    sandbox = await backend.create(spec, f"doctor-{token_hex(8)}")
    took = (perf_counter() - began) * 1000
    await backend.destroy(sandbox.handle)
    return took


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


def _jails(settings: Settings) -> str:
    """Returns where jails would run now."""
    import asyncio

    from skillyard.faces.cli.jail.sharing import NotShared, greeted

    async def look() -> str:
        async with greeted(settings) as (_, held):
            return f"run on the server of this data directory, which runs {held} now"

    if not settings.jail.places:
        return "run alone: jail.places is 0"
    try:
        return asyncio.run(look())
    except NotShared as why:
        return f"run alone: {str(why) or 'no server runs on this data directory'}"


def _probe(settings: Settings) -> tuple[Offer, dict[str, str]]:
    """Probes in a directory of its own, beside a server that may be running."""
    return _in_a_directory_of_its_own(lambda directory: _probe_in(settings, directory))


def _in_a_directory_of_its_own(look: Callable[[Path], Coroutine[Any, Any, T]]) -> T:
    import asyncio
    import tempfile

    with tempfile.TemporaryDirectory(prefix="skillyard-doctor-") as directory:
        return asyncio.run(look(Path(directory)))


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
    facts = dict(found.facts)
    if not found.ready:  # there is one thing to say: the reason
        why = "; mend: ".join(filter(None, (facts.pop("why", ""), facts.pop("mend", ""))))
        _print_facts(found.backend, facts)
        click.secho(f"\nNo sandbox can be made here: {why}\nRuns are refused.", fg="red", err=True)
        return
    stand = guarantees(found.protections, nature)
    rows = [(name, each.attestor.value, _grounds(name, each, found)) for name, each in stand.items()]
    emit_table(("guarantee", "attested by", "evidence, or why not"), rows, colours=LEVEL_COLOURS)
    walls = [(name, p.level.value, _detail(p)) for name, p in found.protections.items()]
    if walls := [row for row in walls if row[0] not in stand]:
        click.echo()
        emit_table(("wall", "level", "by, or why not"), walls, colours=LEVEL_COLOURS)
    able = {
        name: ability.level.value + (f" ({detail})" if (detail := _detail(ability)) else "")
        for name, ability in abilities(found).items()
    }
    click.echo()
    _print_facts(found.backend, able | facts)
    if short:
        click.secho(f"\nDemanded and missing: {', '.join(short)}. Runs are refused here.", fg="red", err=True)
    else:
        network = f" Runs that need a network are refused: {refused}." if refused else ""
        colour = "green" if not refused else "red" if demanded else "yellow"
        click.secho(f"\nEvery protection that is demanded is in force.{network}", fg=colour, err=True)


def _print_facts(isolation: str, facts: Mapping[str, str]) -> None:
    for name, value in {"isolation": isolation, **facts}.items():
        click.echo(f"{name}: {value}")


def _grounds(name: str, guarantee: Guarantee, found: Probe) -> str:
    """Returns its grounds: the backend's words about it, else its walls."""
    if name in found.protections:
        return _detail(found.protections[name])
    lacking = f"without {', '.join(guarantee.lacking)}" if guarantee.lacking else ""
    return "; ".join(filter(None, (", ".join(guarantee.evidence), lacking)))


def _detail(protection: Protection) -> str:
    parts = [protection.by, protection.why]
    if protection.mend:
        parts.append(f"mend: {protection.mend}")
    return "; ".join(part for part in parts if part)
