"""The backends of a runtime, what each can enforce here, and which one a run gets."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from skillyard.config.policy import PolicySettings
from skillyard.domain.errors import InvalidInput, ProtectionMissing, shown
from skillyard.domain.sandbox.guarantees import AUTO, Demand, Level, Probe, Protection, guarantees
from skillyard.ports.sandbox import Backend, Imaged, Launching, Sandbox


class Offer:
    """A backend that was probed, and the policy's verdict on it.

    ``revision`` names what its sandboxes are made of here: versions, image, walls and ``settings``. Another one means
    that sandboxes made before are out of date.
    """

    def __init__(self, backend: Backend, probe: Probe, demand: Demand, settings: str = "") -> None:
        self.name = backend.name
        self.settings = settings
        self.revision = _revision(probe, settings)
        self.backend = backend
        self.probe = probe
        self.demand = demand
        self.refusal = _verdict(probe, demand)
        self._launching = backend if isinstance(backend, Launching) else None
        self._met: tuple[tuple[Mapping[str, str], str] | None, dict[str, Any]] = (None, {})

    def check_ready(self) -> None:
        """Raises ProtectionMissing when the backend is away or cannot give what policy demands."""
        if self.refusal is not None:
            raise ProtectionMissing(self.refusal.message, **self.refusal.details)

    def check_walls(self, sandbox: Sandbox) -> dict[str, Any]:
        """Returns the guarantees of one sandbox by name, for its record.

        Each has its ``attestor`` and its ``evidence``, which for the kernel's surface also names the part that made the
        walls, where there are several. Raises ProtectionMissing, which names each guarantee that policy
        demands and the sandbox lacks.
        """
        enforced, made = sandbox.enforced, str(getattr(sandbox, "made", ""))
        if (enforced, made) == self._met[0]:  # as the last one that was checked
            return self._met[1]
        found = self._found(enforced)
        self.demand.check(found)
        stand = guarantees(found, self.backend.nature)
        told = {
            name: {"attestor": each.attestor.value, "evidence": list(each.evidence)} for name, each in stand.items()
        }
        if made:
            told["kernel_surface"]["evidence"] = [*told["kernel_surface"]["evidence"], f"walls {made}"]
        self._met = ((dict(enforced), made), told)
        return told

    def launcher(self) -> Launching | None:
        """Returns the backend where it starts programs with their sandboxes.

        Their walls are as policy demands then.

        Raises ProtectionMissing. None where the walls of a sandbox are known only when it is there.
        """
        if self._launching is None or (enforced := self._launching.enforces) is None:
            return None
        if self._met[0] is None or self._met[0][0] != enforced:
            self.demand.check(self._found(enforced))
        return self._launching

    def demanding(self, names: frozenset[str]) -> Offer:
        """Returns the same backend for a run that must have these guarantees and walls, too."""
        return Offer(self.backend, self.probe, replace(self.demand, named=self.demand.named | names), self.settings)

    def _found(self, enforced: Mapping[str, str]) -> dict[str, Protection]:
        """The levels of a sandbox, with the words of the probe."""
        said = self.probe.protections
        return {
            name: replace(said[name], level=Level(level)) if name in said else Protection(Level(level))
            for name, level in enforced.items()
        }


class Backends:
    """Each backend by its name. One is probed when it is first needed, and once."""

    def __init__(
        self, backends: Mapping[str, Backend], policy: PolicySettings, settings: Callable[[str], str] = lambda _: ""
    ) -> None:
        """``settings`` tells those of a backend. Raises InvalidInput where policy names an isolation without one."""
        self._backends, self._settings = dict(backends), settings
        self._ranked = _ranked(backends.values())
        self._policy = policy
        self._offers: dict[str, Offer] = {}
        self._probing = asyncio.Lock()
        self._default: Offer | None = None
        self.renewed: Callable[[], object] = bool
        """Called when a backend has another revision than before, or its first one."""
        ruled = [rule.isolation for rule in policy.rules if rule.isolation]
        for name in (policy.isolation, *policy.isolations, *ruled):
            if name != AUTO and name not in backends:
                raise InvalidInput("policy.isolation", f"there is no backend '{name}'")
        if AUTO in (policy.isolation, *policy.isolations) and not self._ranked:
            raise InvalidInput("policy.isolation", "there is no backend that 'auto' may choose; name one")

    def __iter__(self) -> Iterator[Backend]:
        return iter(self._backends.values())

    @property
    def default(self) -> Offer | None:
        """Returns what a run gets that names no isolation; None before :meth:`start`."""
        return self._default

    @property
    def passed_over(self) -> list[Offer]:
        """The stronger isolations that ``auto`` did not take, each with its refusal."""
        if self._policy.isolation != AUTO or self._default is None or self._default.refusal is not None:
            return []
        names = [backend.name for backend in self._ranked]
        stronger = names[: names.index(self._default.name)]
        return [self._offers[name] for name in stronger if name in self._offers]

    @property
    def strongest(self) -> str:
        """The name of the isolation of the best rank; empty when none has one."""
        return self._ranked[0].name if self._ranked else ""

    @property
    def offers(self) -> list[Offer]:
        """Those that were probed, the default first."""
        return sorted(self._offers.values(), key=lambda offer: offer is not self._default)

    @property
    def choices(self) -> frozenset[str]:
        """Returns what a run may name."""
        policy = self._policy
        return policy.isolations | {policy.isolation} | ({self._default.name} if self._default else frozenset())

    async def start(self) -> None:
        """Probe for the default isolation, afresh. Raises SandboxFault."""
        self._offers.clear()
        self._default = await self._resolve(self._policy.isolation)

    async def again(self, name: str) -> Offer:
        """Probes a backend that was away. Raises SandboxFault."""
        backend = self._backends[name]
        async with self._probing:
            found = await backend.probe()
            offer = self.admit(backend, found)
        if self._policy.isolation == AUTO:
            self._default = await self._resolve(AUTO)
        return offer

    async def choose(
        self,
        asked: str | None = None,
        skills: Sequence[tuple[str, str, bool]] = (),
        demanded: frozenset[str] = frozenset(),
        image: str = "",
    ) -> Offer:
        """Returns what a run gets that asks for an isolation and has ``skills``.

        Each is a name, a version, and whether it is approved. ``demanded`` are guarantees and walls that these skills
        must have, ``image`` is the one that it must be made of. Raises InvalidInput for an isolation that policy does
        not offer or a rule forbids, and for an image that policy does not admit or the isolation cannot take,
        ProtectionMissing for one that does not stand here or lacks what is demanded, SandboxFault.
        """
        if image and image not in self._policy.images:
            raise InvalidInput("image", "must be one that policy.images admits", shown(image))
        if asked is not None and asked not in self.choices:
            rule = f"must be one that policy.isolations offers: {', '.join(sorted(self.choices))}"
            raise InvalidInput("isolation", rule, shown(asked))
        if (
            rule_of := next((rule for rule in self._policy.rules if skills and rule.is_about(skills)), None)
        ) is not None:
            if rule_of.isolation and asked not in (None, rule_of.isolation):
                rule = f"must be '{rule_of.isolation}': policy.rules sends runs with these skills there"
                raise InvalidInput("isolation", rule, shown(asked))
            asked, demanded = rule_of.isolation or asked, demanded | rule_of.demand
        offer = self._default if asked is None else await self._resolve(asked)
        if offer is None:
            raise ProtectionMissing("the sandbox backend has not been probed yet")
        if image and asked is not None and not isinstance(offer.backend, Imaged):
            raise InvalidInput("image", f"the isolation '{asked}' takes none; ask for one that does", shown(image))
        if demanded or (image and not isinstance(offer.backend, Imaged)):
            named = offer.demanding(demanded) if demanded else offer
            offer = named if asked is not None else await self._with(demanded, offer, imaged=image != "")
        offer.check_ready()
        return offer

    async def _with(self, demanded: frozenset[str], default: Offer, *, imaged: bool) -> Offer:
        """Returns the default where it has all that, else the strongest that policy offers.

        With ``imaged`` it makes sandboxes of images.
        """
        names = {self._policy.isolation, *self._policy.isolations}
        ranked = [backend for backend in self._ranked if backend.name in names or AUTO in names]
        rest = [self._backends[name] for name in sorted(names - {AUTO, *(backend.name for backend in ranked)})]
        reasons = {}
        for backend in (default.backend, *ranked, *rest):
            if imaged and not isinstance(backend, Imaged):
                reasons[backend.name] = "it makes no sandboxes of images"
                continue
            offer = (await self._offer(backend)).demanding(demanded)
            if offer.refusal is None:
                return offer
            reasons[offer.name] = offer.refusal.message
        needed = [*sorted(demanded), *(["images"] if imaged else [])]
        rule = f"no isolation that policy offers has {', '.join(needed)}; name one in policy.isolations"
        tried = "; ".join(f"{name}: {why}" for name, why in reasons.items())
        raise ProtectionMissing(f"{rule} ({tried})", protections=needed)

    async def with_network(self) -> Offer | None:
        """Returns the strongest backend that can give a network by its nature; None without one.

        Runs may be allowed to use it or not. Raises SandboxFault.
        """
        able = [backend for backend in self._ranked if backend.nature.network]
        return await self._offer(able[0]) if able else None

    async def named(self, name: str) -> Offer | None:
        """Returns the backend of that name, also one that policy refuses; None when there is none."""
        backend = self._backends.get(name)
        return None if backend is None else await self._offer(backend)

    def admit(self, backend: Backend, probe: Probe) -> Offer:
        """Compare what a backend offers with what policy demands, and keep the verdict."""
        policy = self._policy
        demand = Demand(policy.kernel_only, policy.allow_degraded | backend.nature.without, policy.demand)
        before = self._offers.get(backend.name)
        offer = self._offers[backend.name] = Offer(backend, probe, demand, self._settings(backend.name))
        if before is None or before.revision != offer.revision:
            self.renewed()
        if backend.name == policy.isolation:
            self._default = offer
        return offer

    async def _resolve(self, isolation: str) -> Offer:
        """``auto`` is the strongest that is ready; with none, the strongest, and its refusal."""
        if isolation != AUTO:
            return await self._offer(self._backends[isolation])
        offers = []
        for backend in self._ranked:
            offers.append(await self._offer(backend))
            if offers[-1].refusal is None:
                return offers[-1]
        return offers[0]

    async def _offer(self, backend: Backend) -> Offer:
        async with self._probing:
            return self._offers.get(backend.name) or self.admit(backend, await backend.probe())


def _ranked(backends: Iterable[Backend]) -> list[Backend]:
    """Returns those that have a rank, the strongest first."""
    ranks = [(rank, backend) for backend in backends if (rank := backend.nature.rank) is not None]
    return [backend for _, backend in sorted(ranks, key=lambda found: found[0])]


def _revision(probe: Probe, settings: str) -> str:
    made_of = [probe.backend, sorted(probe.facts.items()), sorted(probe.enforced().items()), settings]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:12]


def _verdict(probe: Probe, demand: Demand) -> ProtectionMissing | None:
    if not probe.ready and probe.away:
        # Callers hear it: the reason names places of the host, and stands in the log.
        return ProtectionMissing(f"the backend '{probe.backend}' is away; come again later, or see doctor")
    try:
        if not probe.ready:
            said = dict.fromkeys(text for p in probe.protections.values() for text in (p.why, p.mend) if text)
            raise ProtectionMissing(f"the backend '{probe.backend}' is not ready: {'; '.join(said) or 'see doctor'}")
        demand.check(probe.protections)
    except ProtectionMissing as missing:
        return missing
    return None
