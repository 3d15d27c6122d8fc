"""Small JSON files of ours: written beside and renamed, so that they are there whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from skillyard.domain.errors import StoreFault

TEMPORARY = ".tmp-"


def read_json(file: Path) -> dict[str, Any] | None:
    """None when there is none. Raises StoreFault."""
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreFault(f"{file} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise StoreFault(f"{file} is damaged")
    return data


def write_json(file: Path, data: dict[str, Any], modified_at: float | None = None) -> None:
    """With ``modified_at``, nobody sees the file with another time. Raises StoreFault."""
    new = file.with_name(f"{TEMPORARY}{file.name}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with new.open("w", encoding="utf-8") as stream:
            json.dump(data, stream)
            stream.flush()
            os.fsync(stream.fileno())
        if modified_at is not None:
            os.utime(new, (modified_at, modified_at))
        new.replace(file)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise StoreFault(f"{file} cannot be written: {error.strerror}") from error
