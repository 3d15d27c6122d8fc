"""Keys in the Linux kernel's keyring (keyrings(7)): in no file and no environment, gone when the host restarts.

It is the keyring that a server has: Secret Service and KWallet, which desktop libraries speak to, want a session bus
and somebody who unlocks them. The text lies under a ``user`` key in the keyring of the server's user (``@u``), put
there at boot by ``skillyard secret key load`` or ``keyctl padd user NAME @u``. Sandboxes cannot get at it: their filter
has no keyring calls, and their users are others.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform

from skillyard.domain.errors import StoreFault

MOST_TEXT = 4096
"""Bytes of a key's text."""
_NUMBERS = {"x86_64": (248, 250), "aarch64": (217, 219)}
"""add_key and keyctl (syscalls(2))."""
_THREAD, _USER = -1, -4
_LINK, _UNLINK, _SEARCH, _READ = 8, 9, 10, 11


def read_key(name: str) -> bytes:
    """Returns the text of a key. Raises StoreFault."""
    _keyctl(name, _LINK, _USER, _THREAD)  # whose key one may read, one has to possess: keyrings(7)
    try:
        found = _keyctl(name, _SEARCH, _USER, b"user", name.encode(), 0)
        buffer = ctypes.create_string_buffer(MOST_TEXT)
        size = _keyctl(name, _READ, found, buffer, MOST_TEXT)
    finally:
        _keyctl(name, _UNLINK, _USER, _THREAD)
    if size > MOST_TEXT:
        raise StoreFault(f"the kernel keyring's key '{name}' is larger than {MOST_TEXT} bytes")
    return buffer.raw[:size]


def load_key(name: str, text: bytes) -> None:
    """Put it there, or replace it. Raises StoreFault."""
    _call(name, _numbers(name)[0], b"user", name.encode(), text, len(text), _USER)


def forget_key(name: str) -> None:
    """Take it away. Raises StoreFault when there is none."""
    _keyctl(name, _UNLINK, _keyctl(name, _SEARCH, _USER, b"user", name.encode(), 0), _USER)


def _keyctl(name: str, *words: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    return _call(name, _numbers(name)[1], *words)


def _call(name: str, number: int, *words: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    arguments = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    result: int = syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise StoreFault(_why(name, ctypes.get_errno()))
    return result


def _numbers(name: str) -> tuple[int, int]:
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        raise StoreFault(f"the key '{name}' cannot be had: there is no kernel keyring for {platform.machine()} here")
    return numbers


def _why(name: str, number: int) -> str:
    if number in (errno.ENOKEY, errno.EKEYEXPIRED, errno.EKEYREVOKED):
        return f"the kernel keyring of this user holds no key '{name}'; load it: skillyard secret key load {name}"
    if number in (errno.ENOSYS, errno.EPERM, errno.EACCES):
        return (
            f"the kernel keyring cannot be used here for the key '{name}' ({os.strerror(number)}): containers close it"
        )
    return f"the kernel keyring refuses the key '{name}': {os.strerror(number)}"
