"""The compiled part of a zygote: its serve loop, and the walls of its clones (``steps.c``).

A zygote that runs no Python between two clones touches few pages, and every page that it or a clone touches is copied.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence

LIBRARY, FIRST = "libsteps.so", "first"
"""The library, and the program that is the first process of sandboxes for one program."""
ENDED, WORKER, INIT, FAILED = 0, 1, 2, -1
"""The states in which :meth:`Compiled.serve` returns."""


_DESCRIPTORS = ("control", "channel", "output", "stack", "last_words", "nothing", "children")


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


class Compiled:
    """The library, loaded. It keeps the interpreter lock."""

    def __init__(self, directory: str) -> None:
        """Raises OSError."""
        self._library = ctypes.PyDLL(os.path.join(directory, LIBRARY), use_errno=True)

    def serve(
        self, sock: int, spaces: int, closing: bytes, first: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[int, Made]:
        """Serves clones on ``sock``. ``first`` is the command of FIRST, which it executes with ``environment``.

        Returns ENDED when the keeper let go; in a clone, WORKER, or INIT when that has something to do. Raises OSError.
        """
        made = Made()
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
            ctypes.byref(made),
        )
        _after_fork(child=what == WORKER)
        if what == FAILED:
            number = ctypes.get_errno()
            raise OSError(number, f"the serve loop: {os.strerror(number)}")
        return what, made


def _texts(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    """Returns an array that execve(2) takes."""
    return (ctypes.c_char_p * (len(texts) + 1))(*map(os.fsencode, texts), None)


def _after_fork(*, child: bool) -> None:
    """Readies the interpreter after a fork in the library, as os.fork() does after its own."""
    call = ctypes.pythonapi.PyOS_AfterFork_Child if child else ctypes.pythonapi.PyOS_AfterFork_Parent
    call.restype = None
    call()
