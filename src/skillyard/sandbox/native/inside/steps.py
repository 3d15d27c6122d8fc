"""The compiled part of a zygote: its serve loop, and the walls of its clones (``steps.c``).

A zygote that runs no Python between two clones touches few pages, and every page that it or a clone touches is copied.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence

LIBRARY, FIRST = "libsteps.so", "first"
"""The library, and the program that is the first process of sandboxes for one program."""
ENDED, INIT, FAILED = 0, 1, -1
"""The states in which :meth:`Compiled.serve` returns."""


class Made(ctypes.Structure):
    """The descriptors of a clone, and the pid of its worker."""

    _fields_ = (
        *(
            (name, ctypes.c_int)
            for name in ["control", "channel", "output", "stack", "last_words", "nothing", "children"]
        ),
        ("worker", ctypes.c_long),
    )
    control: int
    channel: int
    output: int
    stack: int
    last_words: int
    nothing: int
    children: int
    worker: int


class _Python(ctypes.Structure):
    """How a worker goes on in Python, without a way back to our caller."""

    _fields_ = (("after_fork", ctypes.c_void_p), ("call", ctypes.c_void_p), ("worker", ctypes.py_object))


class Compiled:
    """The library, loaded. It keeps the interpreter lock."""

    def __init__(self, directory: str) -> None:
        """Raises OSError."""
        self._library = ctypes.PyDLL(os.path.join(directory, LIBRARY), use_errno=True)

    def serve(
        self,
        sock: int,
        spaces: int,
        closing: bytes,
        first: Sequence[str],
        environment: Mapping[str, str],
        worker: Callable[[], object],
    ) -> tuple[int, Made]:
        """Serves clones on ``sock``. ``first`` is the command of FIRST, which it executes with ``environment``.

        ``worker`` is called in workers, whose descriptors are input, output, errors, channel and last stack; they end
        with it. Returns ENDED when the keeper let go, or INIT in a clone that has something to do. Raises OSError.
        """
        made, api = Made(), ctypes.pythonapi
        python = _Python(_address(api.PyOS_AfterFork_Child), _address(api.PyObject_CallNoArgs), worker)
        words, variables = _texts(first), _texts([f"{name}={value}" for name, value in environment.items()])
        # Once: a clone that shares our memory would take the locks of the interpreter for ever.
        ctypes.pythonapi.PyOS_BeforeFork()
        what: int = self._library.sy_serve(
            ctypes.c_int(sock),
            ctypes.c_ulong(spaces),
            closing,
            ctypes.c_size_t(len(closing)),
            words,
            variables,
            ctypes.byref(python),
            ctypes.byref(made),
        )
        api.PyOS_AfterFork_Parent()
        if what == FAILED:
            number = ctypes.get_errno()
            raise OSError(number, f"the serve loop: {os.strerror(number)}")
        return what, made


def _texts(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    """Returns an array that execve(2) takes."""
    return (ctypes.c_char_p * (len(texts) + 1))(*map(os.fsencode, texts), None)


def _address(function: ctypes._NamedFuncPointer) -> int | None:
    """Returns the address of a function of the interpreter."""
    return ctypes.cast(function, ctypes.c_void_p).value
