"""Backends whose engine or server is away or cannot be used for a while, and their return."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from skillyard.domain.errors import BackendAway, SkillyardError
from skillyard.engine.backends import Backends, Offer
from skillyard.engine.observer import Fault, Observer, PartLost, PartRestarted
from skillyard.engine.reaper import Reaper
from skillyard.ports.clock import Clock
from skillyard.ports.sandbox import Backend, Changing, Remote

LOOK_S = 5.0
"""Seconds between two looks at backends that are there."""
_FIRST_S = 0.2
"""Seconds before the first look at one that went away; each pause is twice the one before, up to the next value."""
_MOST_S = 4.0
_REACH_S = 10.0
_PROBE_S = 30.0
"""Seconds between two probes of one that answers and cannot be used: a probe may make a sandbox."""
_TOLD = "its engine or server does not answer, or cannot be used; the log has the reason"


class Presence:
    """Watches the backends that may be away. ``away`` names each that is.

    When one is back, it is probed again, what an earlier server left in it is settled, and ``returned`` is called with
    its offer where that is the default.
    """

    def __init__(
        self,
        backends: Backends,
        reaper: Reaper,
        emit: Observer,
        clock: Clock,
        warm_up: Callable[[], Awaitable[None]],
    ) -> None:
        self.away: dict[str, str] = {}
        self.returned: Callable[[Offer], object] = bool
        self._backends, self._reaper = backends, reaper
        self._emit, self._clock = emit, clock
        self._warm_up = warm_up
        self._since: dict[str, tuple[float, int]] = {}
        """When each went away, and the looks since."""
        self._probe_at: dict[str, float] = {}

    @property
    def default_away(self) -> dict[str, str]:
        """Returns the reason for the default backend by its name, if it is away."""
        default = self._backends.default
        if default is None:
            return {}
        waited_for = not default.probe.ready and isinstance(default.backend, Remote)
        why = self.away.get(default.name, _TOLD if waited_for else "")
        return {default.name: why} if why else {}

    async def watch(self) -> None:
        """Looks at all of them, again and again."""
        pause = LOOK_S
        while True:
            for backend in self._backends:
                await self._look(backend)
            pause = _next(pause) if self.away else LOOK_S
            await asyncio.sleep(pause)

    async def _look(self, backend: Backend) -> None:
        name = backend.name
        try:
            async with asyncio.timeout(_REACH_S):
                if isinstance(backend, Remote):
                    await backend.reach()
                offer = self._offer(name)
                changed = offer is not None and isinstance(backend, Changing) and await backend.changed()
            # One that has an engine is probed again below, at intervals, where it could not be used.
            if changed and offer is not None and (offer.probe.ready or not isinstance(backend, Remote)):
                await self._probed(name)
            await self._take_back(name)
        except BackendAway as error:
            self._miss(name, error.message)
        except TimeoutError:
            self._miss(name, f"the backend '{name}' does not answer within {_REACH_S:g} seconds")
        except SkillyardError as error:  # the next look tries again
            self._emit(Fault("backend", error))

    async def _take_back(self, name: str) -> None:
        """Makes use of a backend that answers. Raises SandboxFault, BackendAway."""
        offer = self._offer(name)
        if offer is not None and (name in self.away or not offer.probe.ready):
            if not isinstance(offer.backend, Remote):
                if not offer.probe.ready:
                    return
            elif self._clock.monotonic() < self._probe_at.get(name, 0.0):
                return
            else:
                await self._probed(name)
        await self._reaper.settle_returned(name)
        if name in self.away:
            del self.away[name]
            since, looks = self._since.pop(name)
            self._emit(PartRestarted(name, looks, round(self._clock.monotonic() - since, 3)))

    def _offer(self, name: str) -> Offer | None:
        return next((offer for offer in self._backends.offers if offer.name == name), None)

    async def _probed(self, name: str) -> None:
        """Makes use of what a new probe tells. Raises SandboxFault, BackendAway."""
        offer = await self._backends.again(name)
        if offer.probe.away:
            raise BackendAway(offer.probe.away)
        if not offer.probe.ready:
            self._probe_at[name] = self._clock.monotonic() + _PROBE_S
            raise BackendAway(f"the backend '{name}' cannot be used: {offer.refusal}")
        if self._backends.default is offer:
            self.returned(offer)
            await self._warm_up()

    def _miss(self, name: str, why: str) -> None:
        if name not in self.away:
            self._since[name] = (self._clock.monotonic(), 0)
            self._emit(PartLost(name, why))
        since, looks = self._since[name]
        self._since[name] = since, looks + 1
        self.away[name] = _TOLD  # anybody may ask for it: the reason names places of the host


def _next(pause: float) -> float:
    """Returns the pause behind ``pause`` while one is away; the first is short."""
    return _FIRST_S if pause == LOOK_S else min(2 * pause, _MOST_S)
