"""System calls that another process decides (seccomp_unotify(2)).

A filter lets a call wait for its supervisor, who makes the call's object itself and hands it in. The supervisor reads
each argument once and acts on what it read, so that nobody can change it in between.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from dataclasses import dataclass

from skillyard.sandbox.native.linux import kernel
from skillyard.sandbox.native.linux.bpf import RETURN, Instruction

ASK: Instruction = (RETURN, 0, 0, 0x7FC00000)
"""Ends a filter: the call waits for the supervisor (SECCOMP_RET_USER_NOTIF)."""

_FILTER_MODE, _NEW_LISTENER, _WAIT_KILLABLE = 1, 0x8, 0x20
_RECEIVE, _SEND, _VALID, _ADD = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_ADD_AND_SEND = 0x2
_CALL = struct.Struct("=QIIiIQ6Q")


@dataclass(frozen=True, slots=True)
class Call:
    """A call that waits. ``pid`` is the thread that made it, as this process counts."""

    id: int
    pid: int
    number: int
    arguments: tuple[int, ...]


def install(assembled: bytes) -> int:
    """Installs a filter for this thread and all it makes; returns the supervisor's descriptor. Raises OSError.

    Only deadly signals interrupt a call that the supervisor has received (Linux 5.19).
    """
    code = ctypes.create_string_buffer(assembled, len(assembled))
    program = struct.pack("HxxxxxxP", len(assembled) // 8, ctypes.addressof(code))
    flags = ctypes.c_uint(_NEW_LISTENER | _WAIT_KILLABLE)
    return kernel.call("seccomp", kernel.NR_SECCOMP, ctypes.c_uint(_FILTER_MODE), flags, program)


def receive(fd: int) -> Call:
    """Returns a waiting call once ``fd`` can be read. Raises FileNotFoundError when its thread was killed."""
    raw = bytearray(_CALL.size)
    fcntl.ioctl(fd, _RECEIVE, raw)
    id, pid, _, number, _, _, *arguments = _CALL.unpack(raw)
    return Call(id, pid, number, tuple(arguments))


def waits(fd: int, call: Call) -> bool:
    """Returns whether the call still waits, so that its pid means its thread."""
    try:
        fcntl.ioctl(fd, _VALID, struct.pack("=Q", call.id))
    except FileNotFoundError:
        return False
    return True


def answer(fd: int, call: Call, error: int = 0) -> None:
    """Ends the call with 0, or with an error's number. Raises FileNotFoundError when its thread was killed."""
    fcntl.ioctl(fd, _SEND, struct.pack("=QqiI", call.id, 0, -error, 0))


def hand_in(fd: int, call: Call, given: int, *, stays_open: bool) -> None:
    """Ends the call with a descriptor of the file ``given``. ``stays_open`` when another program is executed.

    Raises FileNotFoundError when its thread was killed, OSError when it has no room for a descriptor.
    """
    flags = 0 if stays_open else os.O_CLOEXEC
    fcntl.ioctl(fd, _ADD, struct.pack("=QIIII", call.id, _ADD_AND_SEND, given, 0, flags))
