"""Attempts that no socket of ours sees: packets to ports that nothing listens on, which the sandbox's kernel refuses by
itself. A packet socket on its loopback shows them, so that the record can tell."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct

from skillyard.domain.egress.address import Address
from skillyard.domain.egress.policy import Decision
from skillyard.domain.egress.session import DNS_PORT
from skillyard.egress.session import Session
from skillyard.egress.synthetic import OWN

VIA = "blocked"
_TCP, _UDP, _ICMP, _ICMP6 = 6, 17, 1, 58
_PROTOCOLS = {_TCP: "TCP", _UDP: "UDP", _ICMP: "ICMP", _ICMP6: "ICMP"}
_MOST = 128
"""Bytes of a packet that are looked at."""
_AT_ONCE, _PAUSE_S = 64, 0.05
"""Packets looked at before others have their turn, and for how long; what does not fit the socket is counted."""
_PACKET_HOST = 0
_ETHERNET_HEAD = 14
_SOL_PACKET, _PACKET_STATISTICS = 263, 6


class Watcher:
    def __init__(self, session: Session, sock: socket.socket) -> None:
        self._session = session
        self._sock = sock
        self._fd = sock.fileno()
        self._skip = _ETHERNET_HEAD if sock.type == socket.SOCK_RAW else 0
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._fd, self._readable)

    def close(self) -> None:
        """The socket's last close waits for the kernel (synchronize_net), so somebody else waits."""
        self._loop.remove_reader(self._fd)
        if self._pause is not None:
            self._pause.cancel()
        self.settle()
        self._loop.run_in_executor(None, self._sock.close)

    def settle(self) -> None:
        """Look at what has come, and count what did not fit."""
        with contextlib.suppress(OSError):
            self._look(_AT_ONCE)
            _, dropped = struct.unpack("II", self._sock.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
            self._session.log.lose(dropped)

    def _readable(self) -> None:
        try:
            more = self._look(_AT_ONCE)
        except OSError:
            self._loop.remove_reader(self._fd)
            return
        if more:
            self._loop.remove_reader(self._fd)
            self._pause = self._loop.call_later(_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._loop.add_reader(self._fd, self._readable)

    def _look(self, most: int) -> bool:
        """Whether there may be more."""
        for _ in range(most):
            try:
                packet, sender = self._sock.recvfrom(_MOST)
            except (BlockingIOError, InterruptedError):
                return False
            if sender[2] != _PACKET_HOST:  # loopback shows each packet on its way out too
                continue
            if (target := parse(packet[self._skip :])) is not None:
                self._note(*target)
        return True

    def _note(self, protocol: int, address: Address, port: int) -> None:
        name = self._session.name_of(address)
        decision = Decision(False, "kernel", "", self._reason(protocol, name, address, port))
        self._session.note(VIA, name or str(address), port, decision)

    def _reason(self, protocol: int, name: str | None, address: Address, port: int) -> str:
        if protocol != _TCP:
            return f"{_PROTOCOLS.get(protocol, f'IP protocol {protocol}')} does not leave a sandbox: TCP alone does"
        decision = self._session.policy.ask(name, None if name is not None else address, port)
        if not decision.allowed:
            return decision.reason
        return f"port {port} is open to programs that use the proxy variables only: name it in a rule to open it to all"


def parse(packet: bytes) -> tuple[int, Address, int] | None:
    """The protocol, target and port (0 where there are none) of an IP packet; None for what is none, for an answer (TCP
    other than a first SYN), for questions to the name server, and for what a sandbox says to itself."""
    if not packet:
        return None
    version = packet[0] >> 4
    if version == 4 and len(packet) >= 20:
        head, protocol, target = (packet[0] & 15) * 4, packet[9], packet[16:20]
        if int.from_bytes(packet[6:8]) & 0x1FFF:
            return None  # a later fragment
    elif version == 6 and len(packet) >= 40:
        head, protocol, target = 40, packet[6], packet[24:40]
    else:
        return None
    address = ipaddress.ip_address(target)
    if address == OWN or address.is_loopback:
        return None
    if protocol not in (_TCP, _UDP):
        return protocol, address, 0
    if len(packet) < head + (14 if protocol == _TCP else 4):
        return None
    port = int.from_bytes(packet[head + 2 : head + 4])
    if protocol == _TCP and packet[head + 13] & 0x12 != 0x02:
        return None
    return None if protocol == _UDP and port == DNS_PORT else (protocol, address, port)
