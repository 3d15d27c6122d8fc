"""The secret of a data directory for backends on other hosts."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def secret_of(state: Path) -> bytes:
    """Returns 32 bytes that ``state`` holds, made when they are missing."""
    place = state / "secret"
    if not place.exists():
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = state / f".secret-{secrets.token_hex(8)}"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
        with suppress(FileExistsError):
            os.link(part, place)
        part.unlink()
    return place.read_bytes()
