"""The skills that a principal may use, and the set of them that a run mounts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from skillyard.domain.errors import SkillNotFound
from skillyard.domain.principal import Principal
from skillyard.domain.skill.skill import Skill
from skillyard.engine.shares import LargeReads
from skillyard.engine.skills import requires
from skillyard.engine.skills.standings import Standings
from skillyard.ports.publications import PublicationStore
from skillyard.ports.skills import SkillStore


class SkillService:
    """The skills as one principal sees them. A skill that it may not use does not exist for it.

    Lists leave it out, and its name gives the same SkillNotFound as an unknown one. A skill that the principal's
    project has disabled is not found either, and the error says so."""

    def __init__(
        self,
        store: SkillStore,
        publications: PublicationStore,
        standings: Standings,
        *,
        cursor_key: bytes,
        large_reads: LargeReads,
    ) -> None:
        self.store = store
        self.standings = standings
        self.cursor_key = cursor_key
        self.large_reads = large_reads
        self._publications = publications
        self._disabled: dict[str, set[str]] | None = None

    async def find(self, principal: Principal, name: str, version: str | None = None, field: str = "name") -> Skill:
        """Returns the version, or the latest one. Raises SkillNotFound, which names ``field``."""
        if not principal.may_use(name):
            raise SkillNotFound(field, f"no skill '{name[:256]}'", skill=name[:256])
        if name in await self.disabled(principal.project):
            rule = f"the skill '{name[:256]}' is disabled in the project '{principal.project}'"
            raise SkillNotFound(field, f"{rule}; skills.disable with enabled = true enables it", skill=name[:256])
        try:
            return await self.store.get(name, version)
        except SkillNotFound as error:
            if field == "name":
                raise
            raise SkillNotFound(field, error.rule, skill=name[:256]) from None

    async def disabled(self, project: str) -> Collection[str]:
        """Returns the names of the skills that no agent of the project may use."""
        if self._disabled is None:
            found: dict[str, set[str]] = {}
            for each in await self._publications.disabled():
                found.setdefault(each.project, set()).add(each.name)
            self._disabled = found
        return self._disabled.get(project, ())

    def forget_disabled(self) -> None:
        """Has the choices of projects read again, since one has changed."""
        self._disabled = None

    async def mounted(
        self, principal: Principal, target: Skill | None, names: Sequence[str], *, as_approved: bool = False
    ) -> tuple[Skill, ...]:
        """Returns ``target``, then ``names``, then the skills that these require.

        ``as_approved`` treats them as if they were approved. Raises SkillNotFound, InvalidInput."""
        roots = [target] if target is not None else []
        for index, name in enumerate(names):
            if target is None or name != target.name:
                roots.append(await self.find(principal, name, field=f"mount_skills[{index}]"))
        if not any(skill.needs.requires for skill in roots):
            return requires.checked(roots)
        approved = as_approved or not (await self.standings.of(roots)).least
        off = await self.disabled(principal.project)
        seen = requires.Seen(self.store, self._publications, self.standings, principal, off)
        return requires.checked(await requires.resolved(seen, target, roots, approved=approved))
