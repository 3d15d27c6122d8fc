"""One listening socket: accepts connections, within the session's limits, and serves each in a task of its own."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable

from skillyard.domain.network.session import PROXY_PORT
from skillyard.gate.descriptors import Room
from skillyard.gate.failures import Trouble
from skillyard.gate.relay.stream import Stream
from skillyard.gate.session import Session
from skillyard.gate.visit import Visit

Serve = Callable[[Session, Stream], Awaitable[None]]

_AT_ONCE = 32
"""Connections accepted before others have their turn."""
_CROWDED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_LATER_S = 0.1


class Door:
    def __init__(
        self, session: Session, sock: socket.socket, serve: Serve, room: Room, on_fault: Callable[[BaseException], None]
    ) -> None:
        self._session = session
        self._sock = sock
        self._fd = sock.fileno()
        self._serve = serve
        self._room = room
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        self._open()

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        if self._later is not None:
            self._later.cancel()
        self._sock.close()

    def _open(self) -> None:
        self._loop.add_reader(self._fd, self._knocked)

    def _knocked(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                # Who knocks waits in the kernel's queue meanwhile; a socket that is broken is left alone.
                self._loop.remove_reader(self._fd)
                if error.errno in _CROWDED:
                    self._later = self._loop.call_later(_LATER_S, self._open)
                return
            self._admit(Stream(sock, self._session.limits.idle_s))

    def _admit(self, client: Stream) -> None:
        session, room = self._session, self._room
        why = room.full_for(session.usage.connections) or session.usage.enter()
        if why is not None:
            self._turn_away(client, why)
            return
        room.connections += 1
        visit = Visit(client)
        session.visits.add(visit)
        visit.task = self._loop.create_task(self._visit(visit))
        visit.task.add_done_callback(lambda _: self._over(visit))  # one that is ended at once never begins

    def _turn_away(self, client: Stream, why: str) -> None:
        address, port = client.local
        via = "http" if port == PROXY_PORT else "direct"
        self._session.refuse(via, self._session.name_of(address) or str(address), port, why, layer="limits")
        client.reset()

    async def _visit(self, visit: Visit) -> None:
        visit.enter()
        try:
            await self._serve(self._session, visit.client)
        except (Trouble, OSError):
            pass  # the log has it, or a side went away
        except Exception as fault:  # noqa: BLE001 - one connection's fault must not be another's
            self._on_fault(fault)
        finally:
            visit.client.reset()

    def _over(self, visit: Visit) -> None:
        self._session.visits.discard(visit)
        self._session.usage.leave()
        self._room.connections -= 1
