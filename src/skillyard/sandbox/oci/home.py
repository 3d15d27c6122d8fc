"""The name of a data directory at engines, its files, and the containers that it lends."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from contextlib import suppress
from functools import cache, cached_property
from importlib import resources
from pathlib import Path

from skillyard.domain.sandbox.spec import Held, Owner
from skillyard.sandbox.guest_argv import guest_bundle
from skillyard.sandbox.oci.container import GUEST, NAMES, SWITCH, Shown

OURS = "skillyard"
"""The first part of labels and names."""


@cache
def loader_text() -> str:
    """Returns the loader as a program, the same as long as this server lives."""
    return resources.files(__package__).joinpath("loader.py").read_text("utf-8")


class Home:
    """The directory ``state`` of the backend."""

    def __init__(self, state: Path) -> None:
        self._state = state

    @cached_property
    def server(self) -> str:
        """Returns the name of this data directory at the engine. Containers of others are left alone."""
        place = self._state / "server"
        if not place.exists():
            self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = self._state / f".server-{secrets.token_hex(8)}"
            part.write_text(secrets.token_hex(16), "ascii")
            with suppress(FileExistsError):
                os.link(part, place)
            part.unlink()
        return place.read_text("ascii")

    def name_of(self, key: str) -> str:
        """Returns the name of the container of ``key``."""
        digest = hashlib.sha256(f"{self.server} {key}".encode()).hexdigest()
        return f"{OURS}-{digest[:32]}"

    def file(self, stem: str, data: bytes, end: str = "") -> str:
        """Returns the path of a file on this host that containers are shown, named by its content."""
        place = self._state / f"{stem}-{hashlib.sha256(data).hexdigest()[:32]}{end}"
        if not place.exists():
            self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = self._state / f".{stem}-{secrets.token_hex(8)}"
            part.write_bytes(data)
            part.chmod(0o444)
            part.rename(place)
        return str(place)

    def shown(self) -> tuple[Shown, ...]:
        """Returns the files that every container is shown."""
        return (
            Shown(self.file("guest", guest_bundle(), ".pyz"), GUEST),
            Shown(self.file("hosts", NAMES.encode()), "/etc/hosts"),
            Shown(self.file("switch", SWITCH.encode()), "/etc/nsswitch.conf"),
        )

    def fresh(self) -> str:
        """Returns the path of a new file, whose name nobody could know. The earlier ones go."""
        for earlier in self._state.glob("fresh-*"):
            earlier.unlink(missing_ok=True)
        return self.file("fresh", secrets.token_bytes(32))


class Lent:
    """Containers that were made ahead and are lent, which engines cannot be told of.

    Those of tasks are written down in the directory ``place``, for the next server.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._lent: dict[str, tuple[str, Owner, float, int]] | None = None

    @property
    def _all(self) -> dict[str, tuple[str, Owner, float, int]]:
        """The key, the owner, the time and the deadline of each, by handle."""
        if self._lent is None:
            self._lent = {}
            for file in self._place.glob("*.json"):
                try:
                    told = json.loads(file.read_text("utf-8"))
                except ValueError:  # the power went while it was written, and its container ended with that
                    file.unlink()
                    continue
                self._lent[file.stem] = told["key"], Owner.TASK, told["at"], told["timeout_ms"]
        return self._lent

    def add(self, handle: str, key: str, owner: Owner, timeout_ms: int) -> None:
        self._all[handle] = key, owner, (at := time.time()), timeout_ms
        if owner is Owner.TASK:
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = self._place / f".{handle}"
            part.write_text(json.dumps({"key": key, "at": at, "timeout_ms": timeout_ms}), "utf-8")
            part.rename(self._place / f"{handle}.json")

    def of(self, handle: str) -> Held | None:
        """Returns what is held there; None where it is not lent."""
        if (found := self._all.get(handle)) is None:
            return None
        key, owner, at, _ = found
        return Held(handle, key, owner, max(0.0, time.time() - at))

    def timeout_ms(self, handle: str) -> int:
        return self._all[handle][3]

    def handle_of(self, key: str) -> str | None:
        return next((handle for handle, (held, *_) in self._all.items() if held == key), None)

    def forget(self, handle: str) -> None:
        self._all.pop(handle, None)
        (self._place / f"{handle}.json").unlink(missing_ok=True)

    def handles(self) -> frozenset[str]:
        return frozenset(self._all)
