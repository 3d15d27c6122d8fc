"""Tries a backend: the conformance suite, the attacks of ``skillyard verify``, and ordinary programs."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.backends.components import Component
from bench.backends.journal import BEYOND, Journal, of_battery, of_suite
from skillyard.domain.errors import SkillyardError
from skillyard.runtime import Runtime
from skillyard.sandbox.registry import nature
from skillyard.testing.attacks.attack import FAILURES, Verdict
from skillyard.testing.sandbox_suite import CHECKS, Ground, Status, examine
from skillyard.testing.twin_gate import TwinGate
from skillyard.verify.battery import Finding, chosen, fight
from skillyard.verify.families import everything
from skillyard.verify.home import own_runtime, workplace
from skillyard.verify.site import Site, at_home

Say = Callable[[str], None]
_PROGRAMS = Path(__file__).parents[2] / "docs" / "programs.py"
_SIGN_OF_LIFE = ("lifecycle", "endings")
"""The sections of the suite, and the families of attacks by their first words, of a quick run."""
_AT_ONCE = 2
_AGAIN = frozenset({Verdict.BROKEN, Verdict.TOO_TIGHT})
"""Verdicts that a busy host gives: such attacks are made once more. An escape stands, whatever comes after it."""


async def conformance(
    name: str, component: Component, home: Path, journal: Path, say: Say, *, quick: bool
) -> dict[str, Any]:
    """Returns counts, and the reasons of all that was not passed.

    ``refused`` are promises that the backend does not make, by the reason of its probe; ``beyond`` are attacks of
    other walls that its nature does not stop, where they get through. Each verdict is noted in ``journal`` as a line
    of JSON, and what has one there is not tried again: the whole suite takes hours where machines are emulated.
    """
    gate, again = TwinGate(), home / "again"
    scratch = home / "scratch"
    scratch.mkdir(parents=True)
    backend = component.backend(name, home / "run", gate)

    async def reopen() -> Any:
        return component.backend(name, again, gate)

    networked = gate if nature(name).network else None
    options = {"reopen": reopen, "patience": component.patience, "gate": networked, **component.ground}
    ground = Ground(backend, scratch, (home / "run",), **options)
    checks = [check for check in CHECKS if not quick or check.section in _SIGN_OF_LIFE]
    done = Journal(journal)
    try:
        for number, check in enumerate(checks, 1):
            if check.id in done:
                continue
            verdict = await examine(check, ground)
            if verdict.status is Status.FAILED and check.id in component.beyond:
                done.note(check.id, BEYOND, component.beyond[check.id])
                continue
            if verdict.status is Status.FAILED and Verdict.ESCAPED not in verdict.reason:  # as attacks that were broken
                verdict = await examine(check, replace(ground, patience=3 * component.patience))
            kind = {Status.PASSED: "passed", Status.SKIPPED: "refused", Status.FAILED: "failed"}[verdict.status]
            done.note(check.id, kind, verdict.reason)
            if kind == "failed" or number % 50 == 0:
                say(f"{name}: {number} of {len(checks)} checks; {check.id} {kind} {verdict.reason[:300]}")
    finally:
        await backend.close()
        await gate.close()
    return of_suite(done.lines(check.id for check in checks))


async def battery(name: str, component: Component, journal: Path, say: Say, *, quick: bool) -> dict[str, Any]:
    """Returns counts by verdict, and the attacks that were not contained.

    Those that say nothing of the backend, by its own list, are ``beyond`` where they are not contained. The
    ``journal`` is as that of :func:`conformance`; an attack that was broken is made once more, alone.
    """
    attacks = chosen(everything(), ("files",) if quick else ())
    done, again = Journal(journal), set[str]()
    beyond = {**component.beyond, **component.beyond_in_verify}
    with workplace() as place:
        await component.prepare(place / "data")
        async with own_runtime(component.load(name, place / "data"), place) as runtime:
            site = Site(runtime, None, runtime)
            await at_home(site)

            def said(finding: Finding) -> None:
                attack, verdict, why = finding.attack.name, finding.judgement.verdict, finding.judgement.why
                if verdict in FAILURES and attack in beyond:
                    done.note(attack, BEYOND, why)
                    return
                if verdict in _AGAIN and attack not in again:
                    again.add(attack)
                    return
                done.note(attack, verdict, why)
                if verdict in FAILURES or len(done) % 50 == 0:
                    say(f"{name}: {len(done)} of {len(attacks)} attacks; {attack} {verdict} {why[:300]}")

            await fight(site, [one for one in attacks if one.name not in done], at_once=_AT_ONCE, said=said)
            await fight(site, [one for one in attacks if one.name in again], at_once=1, said=said)
    return of_battery(done.lines(attack.name for attack in attacks))


async def programs(name: str, component: Component, home: Path, say: Say, *, quick: bool) -> dict[str, Any]:
    """Runs the programs of docs/programs.md; returns the number of those that gave what that page says, and others."""
    table: Mapping[str, Any] = runpy.run_path(str(_PROGRAMS), run_name="programs")
    wanted: Sequence[Any] = table["PROGRAMS"][: 3 if quick else None]
    await component.prepare(home)
    others = []
    async with Runtime(settings=component.load(name, home)) as runtime:
        for program in wanted:
            try:
                gave = table["gave"](await runtime.run_code(program.code, program.args, **program.more))
            except SkillyardError as error:
                gave = error.message
            if gave != program.gives:
                first = program.code.strip().splitlines()[0][:80]
                others.append([first, program.gives[:200], gave[:300]])
                say(f"{name}: {others[-1]}")
    return {"programs": len(wanted), "as_told": len(wanted) - len(others), "others": others}
