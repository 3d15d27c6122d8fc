"""Seeing what the kernel refuses by itself: the first packets that a sandbox sends to ports that nobody serves.

A packet socket on the sandbox's loopback with a classic BPF filter (packet(7), linux/filter.h, RFC 9293 §3.1): what
comes out of it begins with an IP header, is the first segment of a TCP connection or a UDP datagram, and is cut off
behind the ports.
"""

from __future__ import annotations

import ctypes
import functools
import socket
import struct
from collections.abc import Iterable

from skillyard.sandbox.native import bpf
from skillyard.sandbox.native.bpf import AND, JEQ, JGE, JSET, LOAD, RETURN, Instruction, ranges

_HALF, _BYTE, _HALF_AT_X, _BYTE_AT_X = 0x28, 0x30, 0x48, 0x50
_X_IS, _X_HEADER_LENGTH, _JUMP, _JGT = 0x01, 0xB1, 0x05, 0x25
_TCP, _UDP = 6, 17
_SYN, _SYN_OR_ACK = 0x02, 0x12
_KEPT_BYTES = 128
_ALL_PROTOCOLS = 0x0003
_SOL_PACKET, _IGNORE_OUTGOING, _ATTACH_FILTER = 263, 23, 26
_ROOM = 64 * 1024

Step = tuple[int, str, str, int]
"""An instruction whose jumps go to names; empty: to the next one."""


def open_socket(streams: Iterable[int], datagrams: Iterable[int]) -> socket.socket:
    """In the network namespace that we are in. What goes to ``streams`` and ``datagrams``, which are served, and to
    loopback addresses is not seen. Raises OSError. Its last close waits for the kernel, some milliseconds."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 0)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM)
        sock.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        _attach(sock, _assembled(tuple(streams), tuple(datagrams)))
        sock.bind(("lo", _ALL_PROTOCOLS))
    except BaseException:
        sock.close()
        raise
    return sock


@functools.lru_cache(maxsize=64)
def _assembled(streams: tuple[int, ...], datagrams: tuple[int, ...]) -> bytes:
    return bpf.assemble(program(streams, datagrams))


def program(streams: Iterable[int], datagrams: Iterable[int]) -> list[Instruction]:
    """Loads count from the IP header on."""
    steps: list[tuple[str, Step]] = [
        ("", (_BYTE, "", "", 0)),
        ("", (AND, "", "", 0xF0)),
        ("", (JEQ, "v4", "", 0x40)),
        ("", (JEQ, "v6", "drop", 0x60)),
        ("v4", (_BYTE, "", "", 16)),
        ("", (JEQ, "drop", "", 127)),
        ("", (_HALF, "", "", 6)),
        ("", (JSET, "drop", "", 0x1FFF)),  # a later fragment has no ports
        ("", (_X_HEADER_LENGTH, "", "", 0)),
        ("", (_BYTE, "", "", 9)),
        ("", (_JUMP, "transport", "", 0)),
        ("v6", (LOAD, "", "", 24)),
        ("", (JEQ, "", "far", 0)),
        ("", (LOAD, "", "", 28)),
        ("", (JEQ, "", "far", 0)),
        ("", (LOAD, "", "", 32)),
        ("", (JEQ, "", "far", 0)),
        ("", (LOAD, "", "", 36)),
        ("", (JEQ, "drop", "", 1)),
        ("far", (_X_IS, "", "", 40)),
        ("", (_BYTE, "", "", 6)),
        ("transport", (JEQ, "tcp", "", _TCP)),
        ("", (JEQ, "udp", "drop", _UDP)),
        ("tcp", (_BYTE_AT_X, "", "", 13)),
        ("", (AND, "", "", _SYN_OR_ACK)),
        ("", (JEQ, "streams", "drop", _SYN)),
        ("drop", (RETURN, "", "", 0)),
        ("udp", (_HALF_AT_X, "", "", 2)),
        *(("", step) for step in _unless(datagrams)),
        ("streams", (_HALF_AT_X, "", "", 2)),
        *(("", step) for step in _unless(streams)),
    ]
    return _resolved(steps)


def _unless(ports: Iterable[int]) -> list[Step]:
    """Keep the packet unless its port is one of these: range by range, since no jump is longer than 255."""
    steps: list[Step] = []
    for first, end in ranges(ports):
        steps += [(JGE, "", "+2", first), (_JGT, "+1", "", end - 1), (RETURN, "", "", 0)]
    return [*steps, (RETURN, "", "", _KEPT_BYTES)]


def _resolved(steps: list[tuple[str, Step]]) -> list[Instruction]:
    at = {name: place for place, (name, _) in enumerate(steps) if name}

    def jump(place: int, target: str) -> int:
        if not target:
            return 0
        return int(target) if target.startswith("+") else at[target] - place - 1

    found: list[Instruction] = []
    for place, (_, (code, true, false, constant)) in enumerate(steps):
        if code == _JUMP:
            found.append((code, 0, 0, jump(place, true)))
        else:
            found.append((code, jump(place, true), jump(place, false), constant))
    return found


def _attach(sock: socket.socket, assembled: bytes) -> None:
    code = ctypes.create_string_buffer(assembled, len(assembled))
    filter_program = struct.pack("HxxxxxxP", len(assembled) // 8, ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, filter_program)
