"""Control groups of a root server: one for each sandbox that another program makes."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skillyard.domain.errors import SandboxFault
from skillyard.sandbox.native.groups import hierarchies
from skillyard.sandbox.native.groups.groups import Cgroups, Group, GroupLimits

_BOUND_S = 10.0
_AGAIN_S = 0.02


class Bounds:
    """The groups of the sandboxes of ``backend`` below ``root``. They are looked for when they are first asked for."""

    def __init__(self, backend: str, root: Path) -> None:
        self._name = f"skillyard-{hashlib.sha256(f'{backend} {root}'.encode()).hexdigest()[:12]}"
        self._found: Cgroups | None = None

    def lacking(self, controller: str) -> str:
        """Returns why a controller counts nothing here; empty where it counts."""
        found = self._groups()
        return "" if found.has(controller) else found.missing.get(controller, "an ordinary user makes no groups")

    def of(self, handle: str) -> dict[str, Any]:
        """Returns the account of a sandbox's group for its state; empty where there is none."""
        found = self._groups()
        if not found.has("memory"):
            return {}
        parents = {"": found.parents["memory"]} if found.version == 2 else found.parents
        return {"version": found.version, "directories": {name: f"{path}/{handle}" for name, path in parents.items()}}

    def make(self, handle: str, limits: GroupLimits) -> None:
        """Makes the group of a sandbox. Raises SandboxFault."""
        try:
            self._groups().make(handle, limits).close_counters()  # it is found again by its name
        except OSError as error:
            raise SandboxFault(f"the control group of a sandbox cannot be made: {error.strerror}") from None

    def close(self) -> None:
        if self._found is not None:
            self._found.close()
            self._found = None

    def _groups(self) -> Cgroups:
        if self._found is None:
            self._found = hierarchies.find(self._name) if os.geteuid() == 0 else Cgroups()
        return self._found


def join_files(account: Mapping[str, Any]) -> list[str]:
    """Returns the files to which a process writes ``0`` to become a member."""
    return Group(account["version"], account["directories"]).join_files() if account else []


async def removed(account: Mapping[str, Any]) -> None:
    """Removes the group of a sandbox that has ended. Raises SandboxFault."""
    if not account:
        return
    group = Group(account["version"], account["directories"])
    try:
        async with asyncio.timeout(_BOUND_S):
            while True:
                if group.remove():
                    return
                await asyncio.sleep(_AGAIN_S)  # the kernel lets go of ended processes in its own time
    except TimeoutError:
        raise SandboxFault(f"a control group of a sandbox is busy {_BOUND_S:.0f} s after its end") from None
