"""The name of a data directory at engines, and files that containers are shown."""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from functools import cached_property
from pathlib import Path

OURS = "skillyard"
"""The first part of labels and names."""


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
            part = self._state / f".{stem}-{secrets.token_hex(8)}"
            part.write_bytes(data)
            part.chmod(0o444)
            part.rename(place)
        return str(place)
