"""The methods ``catalogue.*``, ``environments.*`` and tools ``skills.*`` for Python."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

from skillyard.client.methods.calling import Calls, Json, Waits, blocking, given


class CatalogueMethods(Calls):
    """Methods about the versions of skills, their approvals and what they need."""

    async def skill_versions(self, name: str, *, history: int | None = None) -> Json:
        """Returns ``versions``, newest first, with ``latest``, ``pin``, ``project`` and ``history``."""
        return await self.call("catalogue.versions", given(**locals()))

    async def diff_skill(self, name: str, old: str, new: str | None = None) -> Json:
        """Returns the changes from version ``old`` to ``new``, the latest when left out.

        They are ``needs``, wider ones first, ``facts`` and ``files`` with unified diffs; ``same`` and ``widens``.
        """
        return await self.call("catalogue.diff", {"name": name, "from": old, **given(to=new)})

    async def review_skill(self, name: str, *, version: str | None = None) -> Json:
        """Returns the review of a skill: ``needs``, ``imports``, ``hosts`` and ``findings``, gravest first."""
        return await self.call("catalogue.review", given(**locals()))

    async def skill_needs(self, name: str, *, version: str | None = None) -> Json:
        """Returns the declared needs of a skill: ``needs`` with ``need``, ``asked``, ``granted`` and ``why``.

        ``digest`` is the content that an approval is bound to. ``approved``, ``by`` and ``because`` say whether and how
        it is approved.
        """
        return await self.call("catalogue.needs", given(**locals()))

    async def approve_skill(
        self, name: str, *, version: str | None = None, digest: str | None = None, note: str | None = None
    ) -> Json:
        """Consent to what a version declares: its needs, and ``approval``. With ``digest``, only to these bytes. Needs
        ``admin``."""
        return await self.call("catalogue.approve", given(**locals()))

    async def revoke_skill(self, name: str, *, version: str | None = None) -> Json:
        """Take approvals back, of every version when none is given: ``revoked`` counts them, ``still`` says what
        approves it all the same. Needs ``admin``."""
        return await self.call("catalogue.revoke", given(**locals()))

    async def list_approvals(
        self, *, name: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Json:
        """One page: ``approvals`` and ``next_cursor``. Needs ``admin``."""
        return await self.call("catalogue.approvals", given(**locals()))

    async def withdraw_skill(self, name: str, version: str, *, reason: str | None = None) -> Json:
        """Serve a published version no longer: its state, ``changed`` and ``unpinned``. Runs at work go on. Needs
        ``publish``, as those that follow, for the project that the name belongs to."""
        return await self.call("catalogue.withdraw", given(**locals()))

    async def restore_skill(self, name: str, version: str) -> Json:
        """Serve a withdrawn version again."""
        return await self.call("catalogue.restore", {"name": name, "version": version})

    async def pin_skill(self, name: str, version: str) -> Json:
        """Choose which version the name alone means."""
        return await self.call("catalogue.pin", {"name": name, "version": version})

    async def unpin_skill(self, name: str) -> Json:
        """Let the name mean the newest version again: ``unpinned``, ``latest``."""
        return await self.call("catalogue.unpin", {"name": name})


class SyncCatalogueMethods(Waits):
    """:class:`CatalogueMethods` without ``await``."""

    skill_versions = blocking(CatalogueMethods.skill_versions)
    diff_skill = blocking(CatalogueMethods.diff_skill)
    review_skill = blocking(CatalogueMethods.review_skill)
    skill_needs = blocking(CatalogueMethods.skill_needs)
    approve_skill = blocking(CatalogueMethods.approve_skill)
    revoke_skill = blocking(CatalogueMethods.revoke_skill)
    list_approvals = blocking(CatalogueMethods.list_approvals)
    withdraw_skill = blocking(CatalogueMethods.withdraw_skill)
    restore_skill = blocking(CatalogueMethods.restore_skill)
    pin_skill = blocking(CatalogueMethods.pin_skill)
    unpin_skill = blocking(CatalogueMethods.unpin_skill)


class EnvironmentMethods(Calls):
    """Packages for runs. An environment is named by exactly one of ``environment`` (a name of the server's settings, or
    a digest), ``skill`` (with ``version``) and ``packages``. Where there is none it is EnvironmentNotFound or
    SkillNotFound."""

    async def list_environments(self) -> Json:
        """``named``, ``environments`` and ``builds``. Needs ``admin``."""
        return await self.call("environments.list")

    async def show_environment(
        self,
        environment: str | None = None,
        *,
        skill: str | None = None,
        version: str | None = None,
        packages: Sequence[str] | None = None,
    ) -> Json:
        """``environment``: what is in it, or how far its build is (``state``)."""
        return await self.call("environments.show", given(**locals()))

    async def build_environment(
        self,
        environment: str | None = None,
        *,
        skill: str | None = None,
        version: str | None = None,
        packages: Sequence[str] | None = None,
        refresh: bool | None = None,
        wait: bool | None = None,
    ) -> Json:
        """Build it ahead of its first run: ``environment``. A failed build does not raise: its ``state`` is
        ``failed``, and ``error`` says why. With ``wait=False`` it returns while the build goes on."""
        asked = given(environment=environment, skill=skill, version=version, packages=packages)
        return await self.call("environments.build", {**asked, **given(refresh=refresh, wait=wait)})

    async def remove_environment(
        self,
        environment: str | None = None,
        *,
        skill: str | None = None,
        version: str | None = None,
        packages: Sequence[str] | None = None,
        forget: bool | None = None,
    ) -> Json:
        """Remove a built one, with ``forget`` the versions that it was resolved to as well: ``removed``, its digest.
        Needs ``admin``."""
        return await self.call("environments.remove", given(**locals()))


class SyncEnvironmentMethods(Waits):
    """:class:`EnvironmentMethods` without ``await``."""

    list_environments = blocking(EnvironmentMethods.list_environments)
    show_environment = blocking(EnvironmentMethods.show_environment)
    build_environment = blocking(EnvironmentMethods.build_environment)
    remove_environment = blocking(EnvironmentMethods.remove_environment)


class SkillTools(Calls):
    """The tools ``skills.*`` of the catalogue, each named as its tool.

    ``agent`` names the agent that a call is for, where the token allows it; the token's own when left out."""

    async def skills_list(
        self,
        *,
        namespace: str | None = None,
        enabled_only: bool | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        agent: str | None = None,
    ) -> Json:
        """One page: ``skills`` with ``version_hash`` and ``enabled``, and ``next_cursor``."""
        return await self.call("skills.list", given(**locals()))

    async def skills_load(
        self,
        skill_name: str,
        path: str | None = None,
        *,
        version: str | None = None,
        session_id: str | None = None,
        agent: str | None = None,
    ) -> Json:
        """``content`` of a file (SKILL.md) with ``bytes``, ``sha256`` and ``version_hash``."""
        return await self.call("skills.load", given(**locals()))

    async def skills_activate(
        self,
        skill_name: str,
        *,
        version: str | None = None,
        timeout_sec: float | None = None,
        session_id: str | None = None,
        wait_ms: int | None = None,
        agent: str | None = None,
    ) -> Json:
        """Make a skill ready for commands: ``local_dir`` and ``active_path`` say where these find its files. With
        ``session_id`` the session has them then. Raises Busy when its packages are not built within ``timeout_sec``."""
        return await self.call("skills.activate", given(**locals()))

    async def skills_upload(
        self,
        archive: bytes | None = None,
        *,
        blob_id: str | None = None,
        activate: bool | None = None,
        agent: str | None = None,
    ) -> Json:
        """Publish the bundle in an archive, or in a blob, and pin it: ``version``, ``version_hash``, ``created``,
        ``active_version``. Needs ``publish``, as those that follow. :meth:`publish_skill` takes large ones."""
        content = None if archive is None else b64encode(archive).decode()
        params = given(content=content, blob_id=blob_id, activate=activate, agent=agent)
        return await self.call("skills.upload", params)

    async def skills_set_version(self, skill_name: str, version: str, *, agent: str | None = None) -> Json:
        """Choose which version the name alone means."""
        return await self.call("skills.set_version", given(**locals()))

    async def skills_disable(self, skill_name: str, *, enabled: bool | None = None, agent: str | None = None) -> Json:
        """Let no agent of the project use a skill, or with ``enabled`` let them use it again: ``changed``."""
        return await self.call("skills.disable", given(**locals()))

    async def skills_delete(
        self,
        skill_name: str,
        *,
        version: str | None = None,
        reason: str | None = None,
        agent: str | None = None,
    ) -> Json:
        """Serve a published version, or all of them, no longer: ``deleted`` and ``active_version``."""
        return await self.call("skills.delete", given(**locals()))


class SyncSkillTools(Waits):
    """:class:`SkillTools` without ``await``."""

    skills_list = blocking(SkillTools.skills_list)
    skills_load = blocking(SkillTools.skills_load)
    skills_activate = blocking(SkillTools.skills_activate)
    skills_upload = blocking(SkillTools.skills_upload)
    skills_set_version = blocking(SkillTools.skills_set_version)
    skills_disable = blocking(SkillTools.skills_disable)
    skills_delete = blocking(SkillTools.skills_delete)
