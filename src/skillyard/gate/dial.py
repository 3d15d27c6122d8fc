"""Looks up names and dials addresses; no session holds up another."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from skillyard.domain.network.address import Address, nat64_prefixes
from skillyard.gate.addresses import plain
from skillyard.gate.relay.guard import TimedOut, Unreachable

_THREADS = 64
_AT_ONCE = 4
"""Lookups of one session at once: getaddrinfo(3) blocks a thread for as long as a name server is silent."""
_MOST_CANDIDATES = 8
_NAT64_NAME, _NAT64_S, _NAT64_AGAIN_S = "ipv4only.arpa.", 600.0, 30.0
"""The name to ask for, and the seconds for which an answer, or its absence, counts."""
_NAT64_FOURS = (ipaddress.IPv4Address("192.0.0.170"), ipaddress.IPv4Address("192.0.0.171"))
"""The only addresses of that name; a translator makes others of them (RFC 7050 §8.2)."""
_HEAD_START_S = 0.25
"""Before the next address is tried beside one that does not answer (RFC 8305 §5)."""


class Dialer:
    """Resolves and dials; ``own`` gives the host's own addresses."""

    def __init__(self, own: Callable[[], Collection[Address]]) -> None:
        self.own = own
        self._threads = ThreadPoolExecutor(_THREADS, "resolve")
        self._waiting: dict[str, asyncio.Semaphore] = {}
        self.nat64: frozenset[ipaddress.IPv6Network] = frozenset()
        """Prefixes of translators that :meth:`learn_nat64` found."""
        self._learnt_at = -_NAT64_S
        self._learning: asyncio.Future[frozenset[ipaddress.IPv6Network] | None] | None = None

    async def resolve(self, session: str, name: str, within: float) -> Sequence[Address]:
        """Returns the addresses of ``name``, in the host's order of preference. Raises Unreachable."""
        turn = self._waiting.setdefault(session, asyncio.Semaphore(_AT_ONCE))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(within):
                await turn.acquire()
                looked_up = loop.run_in_executor(self._threads, _lookup, name)
                # Also when the caller gives up, the thread is taken until it is back.
                looked_up.add_done_callback(lambda done: _back(done, turn))
                return await asyncio.shield(looked_up)
        except TimeoutError:
            raise TimedOut(f"{name} cannot be looked up within {within:g} s") from None

    async def learn_nat64(self, within: float) -> None:
        """Asks the host's name servers for the prefix of a NAT64 (RFC 7050).

        That comes before an IPv6 address is judged. Raises TimedOut while they have not answered."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._learnt_at + _NAT64_S:
            return
        if self._learning is None:
            self._learning = loop.run_in_executor(None, _look_for_nat64)
        learning = self._learning
        try:
            async with asyncio.timeout(within):
                found = await asyncio.shield(learning)
        except TimeoutError:
            raise TimedOut(f"whether there is a NAT64 cannot be looked up within {within:g} s") from None
        finally:
            first = self._learning is learning
            if first and learning.done():
                self._learning = None
        if first:
            self._learnt_at = loop.time()
            if found is None:
                self._learnt_at -= _NAT64_S - _NAT64_AGAIN_S
            else:
                self.nat64 = found

    def forget(self, session: str) -> None:
        self._waiting.pop(session, None)

    async def dial(self, addresses: Sequence[Address], port: int, within: float) -> tuple[socket.socket, Address]:
        """Returns a socket that is connected to one of these very addresses, and its peer.

        The next address is tried a little after one that is slow. Raises Unreachable."""
        try:
            async with asyncio.timeout(within):
                if len(addresses) == 1:
                    return await _connect(addresses[0], port), addresses[0]
                return await _race(addresses[:_MOST_CANDIDATES], port)
        except TimeoutError:
            raise TimedOut(f"{addresses[0]} port {port} does not answer within {within:g} s") from None
        except OSError as error:
            raise Unreachable(f"{addresses[0]} port {port}: {os.strerror(error.errno or 0)}") from None


async def _race(addresses: Sequence[Address], port: int) -> tuple[socket.socket, Address]:
    """Returns the first connection. Raises the first one's OSError when there is none."""
    racing: dict[asyncio.Task[socket.socket], Address] = {}
    first: OSError | None = None
    waiting = list(addresses)
    try:
        while waiting or racing:
            if waiting:
                address = waiting.pop(0)
                racing[asyncio.create_task(_connect(address, port))] = address
            done, _ = await asyncio.wait(
                racing, timeout=_HEAD_START_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                address = racing.pop(task)
                if (fault := task.exception()) is None:
                    return task.result(), address
                if not isinstance(fault, OSError):
                    raise fault
                first = first or fault
        assert first is not None
        raise first
    finally:
        for task in racing:
            task.cancel()
            task.add_done_callback(_close_late)


def _back(looked_up: asyncio.Future[list[Address]], turn: asyncio.Semaphore) -> None:
    turn.release()
    if not looked_up.cancelled():
        looked_up.exception()  # nobody may be waiting


def _close_late(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _lookup(name: str) -> list[Address]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unreachable(f"{name} cannot be looked up: {error.strerror}") from None
    return list(dict.fromkeys(plain(ipaddress.ip_address(str(entry[4][0]).partition("%")[0])) for entry in found))


def _look_for_nat64() -> frozenset[ipaddress.IPv6Network] | None:
    """Returns the translator's prefixes; None where no server answers."""
    try:
        found = socket.getaddrinfo(_NAT64_NAME, None, socket.AF_INET6, socket.SOCK_STREAM)
    except OSError as error:
        return None if error.errno == socket.EAI_AGAIN else frozenset()
    addresses = {ipaddress.IPv6Address(str(entry[4][0]).partition("%")[0]) for entry in found}
    return frozenset().union(*(nat64_prefixes(address, _NAT64_FOURS) for address in addresses))


async def _connect(address: Address, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock
