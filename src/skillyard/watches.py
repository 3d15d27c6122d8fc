"""Waiting for descriptors where the user may have no watches left: the kernel counts them by user, of all processes
together (epoll(7), max_user_watches), so that one of them can leave the others with none.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import select
import selectors
from collections.abc import Callable
from math import ceil
from typing import Any


class Watches:
    """As select.epoll; what it has no room for is waited for by poll(2), which needs none, until there is room again.

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
        """Ready descriptors with their events; waits ``timeout`` seconds, for ever when it is None or negative."""
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
        """To where there is room now."""
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
    """Let this process have as many descriptors as it may. Those in flight between processes count by user too, against
    the limit of whoever sends one more (unix(7), ETOOMANYREFS): ours must be above that of a sandbox."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Selector(selectors.EpollSelector):
    """For asyncio."""

    _selector_cls: Any = Watches
    """What the standard library's makes and asks."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop that goes on when the user's watches are used up."""
    return asyncio.SelectorEventLoop(Selector())
