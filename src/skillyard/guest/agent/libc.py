"""Functions of the C library, by the part of ctypes that is written in C.

The package ctypes takes longer to import than most of the agent.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctypes import _SimpleCData, addressof, get_errno
    from typing import Any

    Array: Any
    CFuncPtr: Any

    FUNCFLAG_CDECL: int
    FUNCFLAG_USE_ERRNO: int

    def dlopen(name: str | None, flags: int, /) -> int: ...
    def dlsym(library: int, name: str, /) -> int: ...
else:
    from _ctypes import (
        FUNCFLAG_CDECL,
        FUNCFLAG_USE_ERRNO,
        Array,
        CFuncPtr,
        _SimpleCData,
        addressof,
        dlopen,
        dlsym,
        get_errno,
    )


class _Char(_SimpleCData):  # type: ignore[type-arg]
    _type_ = "c"


class _Int(_SimpleCData):  # type: ignore[type-arg]
    _type_ = "i"


class Long(_SimpleCData):  # type: ignore[type-arg]
    """An argument of the size of an address; other numbers go as ints."""

    _type_ = "L"


class _Function(CFuncPtr):  # type: ignore[misc]
    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
    _restype_ = _Int


_own = dlopen(None, os.RTLD_NOW)


def function(name: str) -> Any:
    """Returns a function that gives an int. Raises OSError where there is none of that name."""
    return _Function(dlsym(_own, name))


def address(data: bytes) -> tuple[object, int]:
    """Returns a copy of bytes, for as long as they are to be there, and its address."""
    kind: Any = type("_Bytes", (Array,), {"_type_": _Char, "_length_": len(data)})
    copy = kind.from_buffer_copy(data)
    return copy, addressof(copy)


def done(result: int, what: str) -> None:
    """Raises OSError with the reason of a call that failed."""
    if result != 0:
        raise OSError(get_errno(), os.strerror(get_errno()), what)
