"""Runs many attacks: a few at once, those that measure alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from skillyard.domain.errors import InvalidInput
from skillyard.testing.attacks.attack import Attack, Judgement, Verdict, broken, escaped, tried
from skillyard.verify.site import Site, serves

BOUND_S = 150.0
"""How long one attack may take, with all that it waits for."""

_PAUSES_S = (0.0, 0.5, 2.0)
"""A server that serves nothing after these pauses was harmed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The judgement on one attack, and how long that took."""

    attack: Attack
    judgement: Judgement
    seconds: float


Said = Callable[[Finding], None]


def chosen(attacks: Sequence[Attack], families: Collection[str] = (), names: Collection[str] = ()) -> list[Attack]:
    """Returns the attacks of these families or names; all when neither is given. Raises InvalidInput."""
    for what, asked, known in (
        ("family", families, {attack.family for attack in attacks}),
        ("name", names, {attack.name for attack in attacks}),
    ):
        if unknown := sorted(set(asked) - known):
            raise InvalidInput(what, f"there is none called {unknown[0]!r}; --list shows them all")
    if not families and not names:
        return list(attacks)
    return [attack for attack in attacks if attack.family in families or attack.name in names]


async def fight(site: Site, attacks: Sequence[Attack], *, at_once: int, said: Said = lambda _: None) -> list[Finding]:
    """Returns findings in the order of ``attacks``."""
    findings: dict[str, Finding] = {}
    places = asyncio.Semaphore(at_once)

    async def one(attack: Attack) -> None:
        async with places:
            findings[attack.name] = finding = await face(site.fresh(), attack)
            said(finding)

    await asyncio.gather(*(one(attack) for attack in attacks if not attack.alone))
    for attack in attacks:
        if attack.alone:
            await one(attack)
    return [findings[attack.name] for attack in attacks]


async def face(site: Site, attack: Attack) -> Finding:
    """Runs one attack, then benign programs: a server that serves none of them was harmed."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(BOUND_S):
            judgement = await tried(site, attack)
    except TimeoutError:
        judgement = broken(f"no answer within {BOUND_S:.0f} s")
    except Exception as error:  # noqa: BLE001 - an attack that cannot be made shows nothing
        judgement = broken(f"{type(error).__name__}: {error}"[:300])
    if judgement.verdict is Verdict.CONTAINED and (why := await serves(site)):
        judgement = await _harmed(site, why)
    return Finding(attack, judgement, time.monotonic() - began)


async def _harmed(site: Site, why: str) -> Judgement:
    """Returns the judgement on an attack after which a benign program did not work.

    One sandbox that was lost, on a host that is busy or has a faulty engine, is nothing that the attack got.
    """
    for pause_s in _PAUSES_S:
        await asyncio.sleep(pause_s)
        if not await serves(site):
            return broken(f"afterwards a program did not work, and the same works again: {why}")
    return escaped(f"afterwards the server did not serve: {why}")
