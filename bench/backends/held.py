"""Tries a backend: the conformance suite, the attacks of ``skillyard verify``, and ordinary programs."""

from __future__ import annotations

import json
import runpy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.backends.components import Component
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
_WITH_AGENTS = frozenset({"oci", "srt", "e2b", "opensandbox", "microvm"})
_OF_AGENTS = {
    "import time": "an agent ends a run at its deadline without asking the interpreter for its place",
    "def main(args):": "memory and files have one bound there: this program has room, and its value is too large",
    "import urllib.request": "names are asked of DNS there as well, and nobody answers",
    "open('big', 'wb').write(b'x' * 9_000_000)": "the limit of one file is reached before that of all",
}
"""Programs that end otherwise where an agent supervises them, by their first lines; each with the reason."""
_OF_LANDLOCK = {
    "import csv": "its workspace has another path (docs/landlock.md)",
    "import os": "its workspace has another path (docs/landlock.md)",
    "import time": "the same, with the path that its workspace has",
    "open('big', 'wb').write(b'x' * 9_000_000)": "the watch ends the run before a write fails",
    "import urllib.request": "names are asked of DNS there as well, and nobody answers",
}


async def conformance(
    name: str, component: Component, home: Path, journal: Path, say: Say, *, quick: bool
) -> dict[str, Any]:
    """Returns counts, and the reasons of all that was not passed.

    ``refused`` are promises that the backend does not make, by the reason of its probe; ``beyond`` are attacks of
    other walls that its nature does not stop. Each verdict is noted in ``journal`` as a line of JSON, and what has one
    there is not tried again: the whole suite takes hours where machines are emulated.
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
    found: dict[str, list[list[str]]] = {"passed": [], "refused": [], "beyond": [], "failed": []}
    noted = {id: (kind, reason) for id, kind, reason in _lines(journal)}
    try:
        for number, check in enumerate(checks, 1):
            if check.id in component.beyond:
                found["beyond"].append([check.id, component.beyond[check.id]])
                continue
            if check.id in noted:
                kind, reason = noted[check.id]
                found[kind].append([check.id, reason])
                continue
            verdict = await examine(check, ground)
            if verdict.status is Status.FAILED:  # a busy host misses a bound of time now and then
                verdict = await examine(check, ground)
            kind = {Status.PASSED: "passed", Status.SKIPPED: "refused", Status.FAILED: "failed"}[verdict.status]
            found[kind].append([check.id, " ".join(verdict.reason.split())[:300]])
            with journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps([check.id, kind, found[kind][-1][1]]) + "\n")
            if kind == "failed" or number % 50 == 0:
                say(f"{name}: {number} of {len(checks)} checks; {check.id} {kind} {found[kind][-1][1]}")
    finally:
        await backend.close()
        await gate.close()
    counts = {kind: len(rows) for kind, rows in found.items()}
    return {"counts": counts, **{kind: rows for kind, rows in found.items() if kind != "passed"}}


def _lines(journal: Path) -> list[list[str]]:
    return [json.loads(line) for line in journal.read_text("utf-8").splitlines()] if journal.exists() else []


async def battery(name: str, component: Component, say: Say, *, quick: bool) -> dict[str, Any]:
    """Returns counts by verdict, and the attacks that were not contained.

    Those that say nothing of the backend, by its own list, are counted as ``beyond`` where they are not contained.
    """
    attacks = chosen(everything(), ("files",) if quick else ())
    with workplace() as place:
        await component.prepare(place / "data")
        async with own_runtime(component.load(name, place / "data"), place) as runtime:
            site = Site(runtime, None, runtime)
            await at_home(site)
            done: list[Finding] = []

            def said(finding: Finding) -> None:
                done.append(finding)
                if finding.judgement.verdict in FAILURES or len(done) % 50 == 0:
                    say(f"{name}: {len(done)} of {len(attacks)} attacks; {finding.attack.name} {finding.judgement}")

            findings = await fight(site, attacks, at_once=_AT_ONCE, said=said)
    counts: Counter[str] = Counter()
    failed = []
    for finding in findings:
        beyond = finding.judgement.verdict in FAILURES and finding.attack.name in component.beyond
        counts["beyond" if beyond else finding.judgement.verdict.value] += 1
        failed += [] if beyond else [finding]
    return {
        "counts": dict(counts),
        "failed": _told(failed, FAILURES),
        "not_applicable": _told(findings, {Verdict.NOT_APPLICABLE}),
    }


def _told(findings: Iterable[Finding], verdicts: Iterable[Verdict]) -> list[list[str]]:
    wanted = set(verdicts)
    return [
        [finding.attack.name, finding.judgement.verdict.value, " ".join(finding.judgement.why.split())[:300]]
        for finding in findings
        if finding.judgement.verdict in wanted
    ]


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
                reasons = _OF_AGENTS if name in _WITH_AGENTS else _OF_LANDLOCK if name == "landlock" else {}
                why = reasons.get(first, "")
                others.append([first, program.gives[:200], gave[:300], why])
                say(f"{name}: {others[-1]}")
    return {"programs": len(wanted), "as_told": len(wanted) - len(others), "others": others}
