"""The state of jails: data directories, each used by one jail at a time."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from skillyard.data_dir import DataDir, DataDirInUse
from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.principal import DEFAULT_PROJECT, LOCAL
from skillyard.domain.secret import Delivery, SecretAct, SecretEvent, bound_hosts

if TYPE_CHECKING:
    from skillyard.config.settings import Settings
    from skillyard.engine.secrets.service import GivenSecret, SecretBook
    from skillyard.runtime import Runtime


def base(settings: Settings) -> Path:
    """Returns the directory of the state of all jails."""
    chosen = settings.jail.dir or DataDir(settings.data_dir).jails
    return chosen.expanduser().absolute()


def own(settings: Settings) -> Path:
    """Returns the directory of the state of all jails, for use.

    Raises InvalidInput where others can change it: packages' grants and the way back of wrapped entries lie there.
    """
    place = base(settings)
    if settings.jail.dir is not None:  # another one lies in the data directory, which nobody else may enter
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = place.stat()
        except OSError as error:
            raise InvalidInput("jail.dir", f"cannot be used: {error.strerror}", shown(str(place))) from None
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            rule = "must be writable for its user alone, and be that user's; look who changed it, and chmod go-w"
            raise InvalidInput("jail.dir", rule, shown(str(place)))
    return place


@asynccontextmanager
async def runtime(settings: Settings, isolation: str | None) -> AsyncIterator[Runtime]:
    """Opens a runtime for one jail, on the first data directory that no other jail uses.

    It makes no sandbox ahead. Raises what :meth:`skillyard.runtime.Runtime.open` raises but DataDirInUse.
    """
    from skillyard.runtime import Runtime

    changes: dict[str, object] = {**settings.on_demand(), "skills_dirs": ()}
    if isolation is not None:
        changes["policy"] = settings.policy.changed(isolation=isolation)
    for number in itertools.count():
        home = own(settings) / str(number)
        opened = Runtime(settings=settings.model_copy(update={**changes, "data_dir": home}), warm=False)
        try:
            await opened.open()
        except DataDirInUse:
            continue
        try:
            yield opened
        finally:
            await opened.close()
        return


async def secrets(settings: Settings, names: Sequence[str]) -> tuple[GivenSecret, ...]:
    """As :func:`given`, from the store of the data directory."""
    if not names:
        return ()
    from skillyard.wiring import local_secrets

    async with local_secrets(settings, DataDir(settings.data_dir)) as book:
        return await given(book, names)


async def given(book: SecretBook, names: Sequence[str]) -> tuple[GivenSecret, ...]:
    """Returns the operator's secrets, whose use is in the audit then. Raises InvalidInput, StoreFault."""
    from skillyard.engine.secrets.service import GivenSecret

    told = []
    for name in names:
        found = await book.find(name, DEFAULT_PROJECT, "")
        if found is None:
            raise InvalidInput("secret", f"is not stored: `skillyard secret set {name}`", shown(name))
        event = SecretEvent(
            at=book.clock.now(),
            act=SecretAct.USED,
            name=name,
            principal=LOCAL.name,
            project=DEFAULT_PROJECT,
            scope=str(found.scope),
            version=found.version,
            delivery=found.delivery.value,
            reason="jail",
        )
        await book.audit.record([event])
        hosts = bound_hosts(found.hosts) if found.delivery is Delivery.GATE else ()
        told.append(GivenSecret(name, found.value, found.delivery, hosts, found.version, ""))
    return tuple(told)
