"""Signs of life on a terminal, for what takes longer than half a second. rich is imported only then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.status import Status

_QUIET_S = 0.5
_LOOK_S = 0.3


@contextmanager
def working(label: str, *, quiet: bool = False, look: Callable[[], str] | None = None) -> Iterator[None]:
    """A spinner while the body works; nothing when standard error is no terminal or ``quiet``. ``look`` says what to
    show in the label's place, or nothing."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    spinner = _Spinner(label, look)
    try:
        yield
    finally:
        spinner.stop()


@contextmanager
def transfer(label: str, *, quiet: bool = False) -> Iterator[Callable[[int, int | None], None] | None]:
    """A progress callback (bytes done, bytes in all) for the client, or None when nobody looks."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(label)
    try:
        yield bar.advance
    finally:
        bar.stop()


class _Spinner:
    def __init__(self, label: str, look: Callable[[], str] | None = None) -> None:
        self._label = label
        self._look = look
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    def _show(self) -> None:
        if self._over.wait(_QUIET_S):
            return
        from rich.console import Console

        with Console(stderr=True).status(self._label) as status:
            if self._look is not None:
                self._follow(status, self._look)
            self._over.wait()

    def _follow(self, status: Status, look: Callable[[], str]) -> None:
        """Until there is nothing to say any more."""
        from rich.text import Text

        while text := look():
            status.update(Text(text))
            if self._over.wait(_LOOK_S):
                return
        status.update(self._label)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


class _Bar:
    def __init__(self, label: str) -> None:
        self._label = label
        self._began = time.monotonic()
        self._progress: Progress | None = None

    def advance(self, done: int, total: int | None) -> None:
        if self._progress is None and time.monotonic() - self._began > _QUIET_S:
            self._progress = _progress(self._label)
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=done, total=total)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()


def _progress(label: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(True), TransferSpeedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    progress.add_task(label, total=None)
    return progress
