"""The file beside a backup: the keys of the secrets, and the owner's token."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skillyard.domain.errors import InvalidInput
from skillyard.values import dataclass

FORMAT = 1
MOST = 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeysFile:
    """``secrets_keys`` are texts as :func:`skillyard.stores.seal.keys.parse_keys` reads them."""

    secrets_keys: tuple[str, ...]
    owner_token: str
    format: int = FORMAT

    def write(self, path: Path) -> None:
        """Makes a new private file. Raises OSError, FileExistsError too."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(handle, "w", encoding="ascii") as file:  # noqa: PTH123 - a descriptor, not a path
            json.dump(asdict(self), file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(handle)

    @classmethod
    def read(cls, path: Path) -> KeysFile:
        """Raises InvalidInput for another file, OSError."""
        with path.open("rb") as file:
            data = file.read(MOST + 1)
        try:
            value: Any = json.loads(data) if len(data) <= MOST else None
            if value["format"] != FORMAT:
                raise InvalidInput("--keys", "was made by another version of skillyard; restore with that version")
            keys, token = value["secrets_keys"], value["owner_token"]
            if all(isinstance(text, str) and text.isascii() for text in [*keys, token]):
                return cls(tuple(keys), token)
        except (ValueError, RecursionError, KeyError, TypeError):
            pass
        raise InvalidInput("--keys", f"must be a file that `skillyard backup --keys` wrote: {path} is another")
