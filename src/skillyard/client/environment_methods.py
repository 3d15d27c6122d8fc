"""The methods ``environments.*`` as Python methods."""

from __future__ import annotations

from collections.abc import Sequence

from skillyard.client.calling import Calls, Json, Waits, blocking, given, listed


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
        asked = given(environment=environment, skill=skill, version=version, packages=listed(packages))
        return await self.call("environments.show", asked)

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
        """Build it ahead of its first run: ``environment``. A build that failed is no exception: its ``state`` is
        ``failed``, and ``error`` says why. With ``wait=False`` it returns while the build goes on."""
        asked = given(environment=environment, skill=skill, version=version, packages=listed(packages))
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
        asked = given(environment=environment, skill=skill, version=version, packages=listed(packages), forget=forget)
        return await self.call("environments.remove", asked)


class SyncEnvironmentMethods(Waits):
    """:class:`EnvironmentMethods` without ``await``."""

    list_environments = blocking(EnvironmentMethods.list_environments)
    show_environment = blocking(EnvironmentMethods.show_environment)
    build_environment = blocking(EnvironmentMethods.build_environment)
    remove_environment = blocking(EnvironmentMethods.remove_environment)
