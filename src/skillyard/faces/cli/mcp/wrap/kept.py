"""The way back: the source that each wrapped command had in its file."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillyard.faces.cli.failures import Failure
from skillyard.faces.cli.jail import home
from skillyard.faces.cli.mcp.wrap.pieces import Keys
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.config.settings import Settings


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A wrapped entry: its sources before and after, and the package that was added for it."""

    keys: Keys
    before: dict[str, str | None]
    after: dict[str, str | None]
    package: str = ""


class Wraps:
    """The wrapped entries of all files, one file of records for each below ``place``.

    Commands may hold credentials, so a record is its user's alone.
    """

    def __init__(self, place: Path) -> None:
        self._place = place

    def of(self, file: Path) -> dict[Keys, Wrapped]:
        """Returns the wrapped entries of a configuration file. Raises Failure for records that cannot be read."""
        try:
            told = json.loads(self._path(file).read_text(encoding="utf-8"))
            found = [Wrapped(**{**row, "keys": tuple(row["keys"])}) for row in told["entries"]]
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError):
            raise Failure(
                f"{self._path(file)} cannot be read", "restore the .bak file beside the configuration"
            ) from None
        return {one.keys: one for one in found}

    def keep(self, file: Path, entries: dict[Keys, Wrapped]) -> None:
        """Replaces the records of a file, whole or not at all."""
        path = self._path(file)
        if not entries:
            path.unlink(missing_ok=True)
            return
        self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        told: dict[str, Any] = {"file": str(file), "entries": [asdict(one) for one in entries.values()]}
        new = path.with_suffix(f".{os.getpid()}.new")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor
            json.dump(told, stream)
        new.replace(path)

    def _path(self, file: Path) -> Path:
        return self._place / f"{hashlib.sha256(os.fsencode(file)).hexdigest()}.json"


def wraps_of(settings: Settings) -> Wraps:
    """Returns the records of wrapped entries."""
    return Wraps(home.own(settings) / "wrapped")
