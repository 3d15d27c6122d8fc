"""All attacks in order, and running them: a few at once, those that measure alone, the result in the order listed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from skillyard.domain.errors import InvalidInput
from skillyard.verify.attack import Attack, Judgement, Need, Verdict, broken, escaped, not_applicable
from skillyard.verify.judge import held_to_its_claims, within_its_means
from skillyard.verify.yard import Yard, serves

BOUND_S = 150.0
"""How long one attack may take, with all that it waits for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one attack, and how long that took."""

    attack: Attack
    judgement: Judgement
    seconds: float


Said = Callable[[Finding], None]


def chosen(attacks: Sequence[Attack], families: Collection[str] = (), names: Collection[str] = ()) -> list[Attack]:
    """Those of any of ``families`` or called any of ``names``; all when neither is given. Raises InvalidInput."""
    for what, asked, known in (
        ("family", families, {attack.family for attack in attacks}),
        ("name", names, {attack.name for attack in attacks}),
    ):
        if unknown := sorted(set(asked) - known):
            raise InvalidInput(what, f"there is none called {unknown[0]!r}; --list shows them all")
    if not families and not names:
        return list(attacks)
    return [attack for attack in attacks if attack.family in families or attack.name in names]


async def fight(yard: Yard, attacks: Sequence[Attack], *, at_once: int, said: Said = lambda _: None) -> list[Finding]:
    """Findings in the order of ``attacks``."""
    findings: dict[str, Finding] = {}
    places = asyncio.Semaphore(at_once)

    async def one(attack: Attack) -> None:
        async with places:
            findings[attack.name] = finding = await face(yard.fresh(), attack)
            said(finding)

    await asyncio.gather(*(one(attack) for attack in attacks if not attack.alone))
    for attack in attacks:
        if attack.alone:
            await one(attack)
    return [findings[attack.name] for attack in attacks]


async def face(yard: Yard, attack: Attack) -> Finding:
    """One attack, then a benign run: a server that does not serve after it was harmed by it."""
    began = time.monotonic()
    judgement = lacking(yard, attack)
    if judgement is None:
        judgement = held_to_its_claims(await _tried(yard, attack), attack, yard.enforced)
        judgement = within_its_means(judgement, attack, yard)
        if judgement.verdict is Verdict.CONTAINED and (why := await serves(yard)):
            judgement = escaped(f"afterwards the server did not serve: {why}")
    return Finding(attack, judgement, time.monotonic() - began)


def lacking(yard: Yard, attack: Attack) -> Judgement | None:
    """Not applicable, where something that it needs is not here."""
    have = set()
    if yard.runtime is not None:
        have.add(Need.IN_PROCESS)
    if yard.canaries is not None:
        have.add(Need.CANARIES)
    missing = sorted(attack.needs - have)
    return not_applicable(f"needs {', '.join(missing)}") if missing else None


async def _tried(yard: Yard, attack: Attack) -> Judgement:
    try:
        async with asyncio.timeout(BOUND_S):
            return await attack.steps(yard)
    except TimeoutError:
        return broken(f"no answer within {BOUND_S:.0f} s")
    except Exception as error:  # noqa: BLE001 - an attack that cannot be made shows nothing
        return broken(f"{type(error).__name__}: {error}"[:300])
