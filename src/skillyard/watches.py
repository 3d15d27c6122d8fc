"""Waiting for descriptors where the user may have no watches of epoll left.

The kernel counts them by user, of all processes together (epoll(7), max_user_watches), so that one process can leave
the others with none.
"""

from __future__ import annotations

import errno
import resource
import select
import selectors
from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


class Watches:
    """As select.epoll, but descriptors without room wait by poll(2), which needs no watch.

    ``on_full`` is called when there is none."""

    def __init__(self, on_full: Callable[[], None] = lambda: None) -> None:
        self.on_full = on_full
        self._epoll = select.epoll()
        self._poll = select.poll()
        self._poll.register(self._epoll, select.POLLIN)
        self._left_over: dict[int, int] = {}

    def register(self, fd: int, events: int) -> None:
        try:
            self._epoll.register(fd, events)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._left_over[fd] = events
            self._poll.register(fd, events)
            self.on_full()

    def modify(self, fd: int, events: int) -> None:
        if fd in self._left_over:
            self._left_over[fd] = events
            self._poll.modify(fd, events)
        else:
            self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        if self._left_over.pop(fd, None) is not None:
            self._poll.unregister(fd)
        else:
            self._epoll.unregister(fd)

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        """Returns ready descriptors with their events.

        Waits ``timeout`` seconds; None or less: for ever."""
        if self._left_over:
            self._move()
        if not self._left_over:
            return self._epoll.poll(timeout, maxevents)
        waited = self._poll.poll(None if timeout is None or timeout < 0 else ceil(timeout * 1000))
        for fd in [fd for fd, events in waited if events & select.POLLNVAL]:
            self.unregister(fd)  # it was closed, and epoll(7) forgets such by itself
        ready = [(fd, events) for fd, events in waited if fd in self._left_over]
        return ready + self._epoll.poll(0, maxevents) if len(ready) < len(waited) else ready

    def _move(self) -> None:
        """Moves descriptors to epoll where there is room now."""
        for fd, events in list(self._left_over.items()):
            try:
                self._epoll.register(fd, events)
            except OSError:
                return
            del self._left_over[fd]
            self._poll.unregister(fd)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        self._epoll.close()


def raise_descriptors() -> None:
    """Raises this process's limit of descriptors to the hard one.

    Those in flight count by user too, against the sender's limit (unix(7), ETOOMANYREFS): ours must be above that of
    a sandbox."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Selector(selectors.EpollSelector):
    """A selector for asyncio."""

    _selector_cls: Any = Watches
    """The constructor and the attributes of the standard library's selector."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Returns an event loop that goes on when the user's watches are used up."""
    import asyncio  # half of what a keeper, which has none, would import

    return asyncio.SelectorEventLoop(Selector())
