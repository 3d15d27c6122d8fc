"""The sources of secrets, their audit, and the secrets that a planned run is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import field

from skillyard.domain.errors import SkillyardError
from skillyard.domain.network.rule import Rule
from skillyard.domain.secret import Delivery, Secret, SecretAct, SecretEvent, bound_hosts
from skillyard.domain.skill.skill import SecretNeed
from skillyard.domain.work.record import SecretRef
from skillyard.engine.runs.failure import Refused
from skillyard.engine.runs.plan import Plan
from skillyard.ports.clock import Clock
from skillyard.ports.secrets import SecretAudit, SecretReader, SecretStore
from skillyard.values import dataclass


@dataclass(frozen=True, slots=True)
class SecretBook:
    """All sources of secrets, and the audit of their use. The first source that has a name decides.

    The store is asked first, since an operator put each of its values there for exactly this project and skill; then
    the readers in their order."""

    store: SecretStore
    audit: SecretAudit
    clock: Clock
    readers: Sequence[SecretReader] = ()

    async def find(self, name: str, project: str, skill: str) -> Secret | None:
        """Raises StoreFault when a source cannot answer. No later one is asked then: it may have another value."""
        for source in (self.store, *self.readers):
            found = await source.find(name, project, skill)
            if found is not None:
                return found
        return None


LEAST_AT_GATE = 8
"""Characters of a value that the gate can tell from other text in answers."""


@dataclass(frozen=True, slots=True)
class GivenSecret:
    """A secret of one run. ``delivery`` is GATE when the store or the manifest says so, and then ``hosts`` are not
    empty: names, each with its ports. ``version`` names the source of the value and its version: ``store:3``."""

    name: str
    value: str = field(repr=False)
    delivery: Delivery
    hosts: tuple[Rule, ...]
    version: str
    skill: str
    """One that declares it."""


@dataclass(frozen=True, slots=True)
class _Want:
    """A need, and the skill that declares it."""

    skill: str
    need: SecretNeed


class RunSecrets:
    """Finds the secrets of planned runs. ``code_may`` says whether code gets those of the skills that it mounts."""

    def __init__(self, book: SecretBook, *, code_may: bool) -> None:
        self._book = book
        self._code_may = code_may

    async def give(self, plan: Plan) -> tuple[GivenSecret, ...]:
        """Returns the secrets of the executed skill, or those of code by policy, in their order.

        Then their use is in the audit.

        Raises Refused: ``MissingSecret`` for a secret that is not there for this project and skill, or cannot be read
        or audited, ``PolicyRefused`` for a gate secret that no host is bound to, for skills that mean different values
        by one name, and for one that must be there where not every skill is approved; an optional one is then absent.
        """
        wants = _wants(plan, self._code_may)
        if not wants:
            return ()
        if plan.trust.least:
            return await self._none(plan, wants)
        found = [(want, await self._find(plan, want)) for want in wants]
        await self._check_absent(plan, [want for want, secret in found if secret is None])
        there = [(want, secret) for want, secret in found if secret is not None]
        given = [_given(name, there) for name in dict.fromkeys(want.need.name for want, _ in there)]
        delivery = {secret.name: secret.delivery for secret in given}
        await self._note(
            [self._event(plan, want, SecretAct.USED, secret, delivery[secret.name]) for want, secret in there]
        )
        return tuple(given)

    async def check(self, plan: Plan) -> None:
        """Checks ahead of :meth:`give` that those are there that must be. Only a refusal is written into the audit, and
        no value is kept. Raises Refused as that does."""
        wants = [want for want in _wants(plan, self._code_may) if not want.need.optional]
        if wants and plan.trust.least:
            await self._none(plan, wants)
        await self._check_absent(plan, [want for want in wants if await self._find(plan, want) is None])

    async def keep(self, plan: Plan, given: Sequence[GivenSecret]) -> tuple[SecretRef, ...]:
        """Keeps the values of a detached run, sealed; returns the references for its record.

        Else nobody could take them out of its output once they were rotated or deleted. Raises Refused.
        """
        if given:
            try:
                await self._book.store.keep(plan.run_id, [secret.value for secret in given])
            except SkillyardError as error:
                message = f"the secrets of a detached run cannot be kept for its next server: {error.message}"
                raise Refused("MissingSecret", message) from error
        return tuple(SecretRef(one.name, plan.principal.project, one.skill, one.version) for one in given)

    async def forget(self, run_id: str) -> None:
        """Erases what was kept for a run that has ended. Raises StoreFault."""
        await self._book.store.forget(run_id)

    async def again(self, run_id: str, refs: Sequence[SecretRef]) -> tuple[str, ...]:
        """Returns the values that an earlier server gave a run, and the current ones.

        They are to be taken out of its output. Raises Refused when one cannot be had any more.
        """
        try:
            kept = await self._book.store.kept(run_id)
        except SkillyardError as error:
            raise Refused("MissingSecret", _withheld(refs[0], f"cannot be read: {error.message}")) from error
        if kept is None:  # an earlier version of skillyard kept none
            return tuple([await self._in_that_version(ref) for ref in refs])
        return (*kept, *[value for ref in refs if (value := await self._current(ref)) is not None])

    async def _current(self, ref: SecretRef) -> str | None:
        """Returns the value that a run would get now. The run that ``ref`` is of never got it from us."""
        with suppress(SkillyardError):
            if (found := await self._book.find(ref.name, ref.project, ref.skill)) is not None:
                return found.value
        return None

    async def _in_that_version(self, ref: SecretRef) -> str:
        try:
            found = await self._book.find(ref.name, ref.project, ref.skill)
        except SkillyardError as error:
            raise Refused("MissingSecret", _withheld(ref, f"cannot be read: {error.message}")) from error
        if found is None or found.version != ref.version or ":" not in ref.version:
            raise Refused("MissingSecret", _withheld(ref, f"is not there any more in the version {ref.version}"))
        return found.value

    async def _check_absent(self, plan: Plan, wants: Sequence[_Want]) -> None:
        """Raises Refused for those that must be there."""
        absent = [want for want in wants if not want.need.optional]
        if absent:
            await self._note([self._event(plan, want, SecretAct.DENIED) for want in absent])
            raise Refused("MissingSecret", _missing(plan, absent))

    async def _none(self, plan: Plan, wants: Sequence[_Want]) -> tuple[GivenSecret, ...]:
        """Refuses the secrets of a run that gets the least policy. No store is asked."""
        reason = plan.trust.least[:500]
        await self._note([self._event(plan, want, SecretAct.DENIED, reason=reason) for want in wants])
        needed = [want for want in wants if not want.need.optional]
        if needed:
            names = ", ".join(dict.fromkeys(want.need.name for want in needed))
            raise Refused("PolicyRefused", f"'{needed[0].skill}' needs the secret {names}, and {plan.trust.least}")
        return ()

    async def _find(self, plan: Plan, want: _Want) -> Secret | None:
        try:
            return await self._book.find(want.need.name, plan.principal.project, want.skill)
        except SkillyardError as error:
            message = f"the secret '{want.need.name}' cannot be read: {error.message}"
            await self._note([self._event(plan, want, SecretAct.DENIED, reason=error.message[:500])])
            raise Refused("MissingSecret", message) from error

    async def _note(self, events: Sequence[SecretEvent]) -> None:
        try:
            await self._book.audit.record(events)
        except SkillyardError as error:
            message = f"the use of secrets cannot be written down: {error.message}"
            raise Refused("MissingSecret", message) from error

    def _event(
        self,
        plan: Plan,
        want: _Want,
        act: SecretAct,
        secret: Secret | None = None,
        delivery: Delivery | None = None,
        reason: str = "",
    ) -> SecretEvent:
        return SecretEvent(
            at=self._book.clock.now(),
            act=act,
            name=want.need.name,
            principal=plan.principal.name,
            project=plan.principal.project,
            skill=want.skill,
            run_id=plan.run_id,
            scope=str(secret.scope) if secret else "",
            version=secret.version if secret else "",
            delivery=delivery.value if delivery else "",
            reason=reason,
        )


def _withheld(ref: SecretRef, why: str) -> str:
    said = "its output, log and error text are withheld, since the secret could not be taken out of them"
    return f"the secret '{ref.name}' that the run had {why}; {said}"


def secret_versions(given: Iterable[GivenSecret]) -> dict[str, str]:
    """Returns versions by name for the run's ``digests``, never a value."""
    return {secret.name: secret.version for secret in given}


def _wants(plan: Plan, code_may: bool) -> list[_Want]:
    if plan.skill is not None:
        return [_Want(plan.skill.name, need) for need in plan.skill.needs.secrets]
    if not code_may:
        return []
    return [_Want(skill.name, need) for skill in plan.skills for need in skill.needs.secrets]


def _missing(plan: Plan, absent: Sequence[_Want]) -> str:
    names = ", ".join(dict.fromkeys(want.need.name for want in absent))
    whom = f"project '{plan.principal.project}' and skill '{absent[0].skill}'"
    return f"not in the secret store for {whom}: {names} (skillyard secret set NAME)"


def _given(name: str, there: Sequence[tuple[_Want, Secret]]) -> GivenSecret:
    """Returns the one secret for all skills that declare ``name``. The operator's choice goes before the manifests',
    and of these the narrower one."""
    mine = [(want.need, secret) for want, secret in there if want.need.name == name]
    first, skill = mine[0][1], next(want.skill for want, _ in there if want.need.name == name)
    if any((secret.version, secret.scope) != (first.version, first.scope) for _, secret in mine):
        raise Refused("PolicyRefused", f"the mounted skills mean different secrets by '{name}'")
    gated = first.delivery is Delivery.GATE or any(need.delivery is Delivery.GATE for need, _ in mine)
    if not gated:
        return GivenSecret(name, first.value, Delivery.ENV, (), first.version, skill)
    hosts = bound_hosts(first.hosts or dict.fromkeys(host for need, _ in mine for host in need.hosts))
    if not hosts:
        mend = f"skillyard secret bind {name} --delivery gate --host HOST"
        raise Refused(
            "PolicyRefused", f"the secret '{name}' is delivered at the gate, and no host is bound to it: {mend}"
        )
    if len(first.value) < LEAST_AT_GATE:
        rule = f"is shorter than {LEAST_AT_GATE} characters: the gate could not tell it from other text in answers"
        raise Refused("PolicyRefused", f"the secret '{name}' is delivered at the gate and {rule}")
    return GivenSecret(name, first.value, Delivery.GATE, hosts, first.version, skill)
