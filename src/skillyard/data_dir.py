"""The data directory: where everything lies in it, and who may use it.

One process at a time owns a data directory, and everything in it is for its owner's eyes only (0700). The
lock is the kernel's: it ends with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from skillyard.domain.errors import SkillyardError
from skillyard.values import dataclass


class DataDirUnusable(SkillyardError):
    """The data directory cannot be made or written, or is not ours."""

    type = "DataDirUnusable"


class DataDirInUse(SkillyardError):
    """Another process owns the data directory; the message names it."""

    type = "DataDirInUse"


_OURS = frozenset(
    {"lock", "skillyard.db", "config.toml", "token", "tokens.json", "secrets.sealed", "secrets.key", "skills"}
)

_RESTORING = "restoring"
"""A directory that is there until a restore has ended."""


@dataclass(frozen=True, slots=True)
class DataDir:
    """Names below ``home``."""

    home: Path

    @property
    def database(self) -> Path:
        return self.home / "skillyard.db"

    @property
    def blobs(self) -> Path:
        return self.home / "blobs"

    @property
    def skills(self) -> Path:
        """Skills that are served besides those of the settings' directories."""
        return self.home / "skills"

    @property
    def snapshots(self) -> Path:
        return self.home / "snapshots"

    @property
    def uploads(self) -> Path:
        """Archives on their way; emptied at each start."""
        return self.home / "uploads"

    @property
    def catalogue(self) -> Path:
        """The cache of the catalogue: its index of what was read."""
        return self.home / "catalogue.db"

    @property
    def environments(self) -> Path:
        return self.home / "environments"

    @property
    def run(self) -> Path:
        """The backend's own."""
        return self.home / "run"

    @property
    def tokens(self) -> Path:
        return self.home / "tokens.json"

    @property
    def jails(self) -> Path:
        """The state of jails, each with a data directory of its own."""
        return self.home / "jails"

    @property
    def beside(self) -> Path:
        """The data directory of commands that bring their own skills while a server owns this one."""
        return self.home / "beside"

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Make the directory and own it. Raises DataDirUnusable, DataDirInUse."""
        self._make()
        descriptor = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock(descriptor)
            self._check_restored()  # once more: a restore looks for our files after it made its own
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def restored(self) -> Iterator[Path]:
        """Makes the directory for a restore, and yields a directory in it to unpack into.

        It must be new or empty. Until the yielded directory is gone, nobody can own the data directory. When the block
        fails and nothing was moved, nothing is left. Raises DataDirUnusable, DataDirInUse.
        """
        place = self.home / _RESTORING
        is_new = not self.home.exists()
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_owner()
            self._check_empty(set())
            self.home.chmod(0o700)
            place.mkdir(mode=0o700)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._check_empty({_RESTORING})
            yield place
        except BaseException:
            with suppress(OSError):  # it is not there, or was cut off while its content moved
                place.rmdir()
            if is_new:
                with suppress(OSError):  # somebody else uses it
                    self.home.rmdir()
            raise

    def _check_empty(self, but: set[str]) -> None:
        names = {entry.name for entry in self.home.iterdir()} - but
        if _RESTORING in names:
            self._check_restored()
        if "lock" in names:
            descriptor = os.open(self.home / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                self._lock(descriptor)
            finally:
                os.close(descriptor)
        if names:
            raise DataDirUnusable(f"the directory {self.home} is not empty: name an empty or a new one with --data-dir")

    def _check_restored(self) -> None:
        if (self.home / _RESTORING).exists():
            raise DataDirUnusable(
                f"a restore into {self.home} is at work or was cut off: wait for it, or remove the directory and "
                "restore again"
            )

    def _make(self) -> None:
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_owner()
            self._check_restored()
            self._check_ours()
            self.home.chmod(0o700)
            for directory in (self.skills, self.environments):
                directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _check_owner(self) -> None:
        owner = self.home.stat().st_uid
        if owner != os.geteuid():
            raise DataDirUnusable(
                f"the data directory {self.home} belongs to the user id {owner}, and this process is "
                f"{os.geteuid()}: work as that user, or name another with --data-dir or SKILLYARD_DATA_DIR"
            )

    def _unusable(self, error: OSError) -> DataDirUnusable:
        return DataDirUnusable(
            f"the data directory {self.home} cannot be used: {error.strerror}; "
            "name another with --data-dir or SKILLYARD_DATA_DIR"
        )

    def _check_ours(self) -> None:
        """So that a slip such as ``--data-dir /tmp`` does not close a directory that others use."""
        names = {entry.name for entry in self.home.iterdir()}
        if names and names.isdisjoint(_OURS):
            raise DataDirUnusable(
                f"the directory {self.home} is not empty, and not a data directory of skillyard: name an empty or "
                "a new one with --data-dir or SKILLYARD_DATA_DIR"
            )

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 300, 0).decode("utf-8", "replace").strip() or "another process"
            raise DataDirInUse(
                f"the data directory {self.home} is in use by {holder}: stop it, connect to it as a client, "
                "or name another with --data-dir",
                holder=holder,
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} ({_command()})\n".encode("utf-8", "replace"), 0)


def _command() -> str:
    words = [Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python", *sys.argv[1:2]]
    return " ".join(words)[:200]
