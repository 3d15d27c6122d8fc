"""Shows progress of work that takes longer than half a second. rich is imported only then.

Spinners and bars are for a terminal. The progress of a build is printed line by line elsewhere.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.render import calm

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.status import Status

    from skillyard.faces.cli.target import Target


_QUIET_S = 0.5
_LOOK_S = 0.3


@contextmanager
def working(label: str, *, quiet: bool = False, look: Callable[[], str] | None = None) -> Iterator[None]:
    """Shows a spinner on a terminal while the body works, unless ``quiet``.

    ``look`` returns a text to show in place of the label, or an empty one.
    """
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
    """Yields a callback (bytes done, bytes in all) for the client, or None without a terminal."""
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
        """Shows the words of ``look`` until there are none."""
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


_PAUSES_S = (0.5, 0.3)
"""Before the first look at a build, and between the others."""
_AT_WORK = ("waiting", "resolving", "installing")


class BuildProgress:
    """A line that changes on a terminal, and a line for each state elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._state = ""
        self._status: Status | None = None

    def __enter__(self) -> BuildProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.clear()

    def show(self, found: Mapping[str, Any]) -> None:
        if self._quiet:
            return
        if not sys.stderr.isatty():
            if found["state"] != self._state:
                click.echo(calm(f"environment: {found['state']}"), err=True)
            self._state = found["state"]
            return
        text = said(found)
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status("")
            self._status.start()
        from rich.text import Text

        self._status.update(Text(text[:120]))

    def clear(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def said(found: Mapping[str, Any]) -> str:
    """Returns one line about a build."""
    line = " ".join(str(found.get("error") or found.get("line") or "").split())
    return calm(f"environment {found['state']}" + (f": {line}" if line else ""))


@contextmanager
def running(
    target: Target, asked: Mapping[str, Any] | None, *, quiet: bool, pauses_s: tuple[float, float] = _PAUSES_S
) -> Iterator[None]:
    """Shows that the body waits for a run, and how far the build of its environment is.

    ``asked`` holds the parameters of ``environments.show``; None stands for a run that needs no environment.
    """
    from skillyard.faces.cli.progress import working

    look = None if asked is None else Look(target, asked)
    if quiet or look is None or sys.stderr.isatty():
        with working("running", quiet=quiet, look=None if look is None else look.line):
            yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_tell, args=(look, over, pauses_s), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Look:
    """Asks how far a build is, for as long as there is one."""

    def __init__(self, target: Target, asked: Mapping[str, Any]) -> None:
        self._target = target
        self._asked = dict(asked)
        self.over = False

    def found(self) -> dict[str, Any] | None:
        """Returns the build, None without one or when it cannot be seen."""
        if self.over:
            return None
        try:
            found: dict[str, Any] = self._target.call("environments.show", self._asked)["environment"]
        except Exception:  # noqa: BLE001
            found = {}
        self.over = found.get("state") not in _AT_WORK
        return None if self.over else found

    def line(self) -> str:
        found = self.found()
        return said(found)[:120] if found is not None else ""


def _tell(look: Look, over: threading.Event, pauses_s: tuple[float, float]) -> None:
    """Tells each state; it does not ask about a run that takes no time."""
    wait_s, between_s = pauses_s
    with BuildProgress() as progress:
        while not over.wait(wait_s) and (found := look.found()) is not None:
            wait_s = between_s
            progress.show(found)
