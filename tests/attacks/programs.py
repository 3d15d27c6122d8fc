"""What attack programs share: a prelude that runs inside, and the row of a table."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

PRELUDE = """
import array, ctypes, errno, fcntl, mmap, os, resource, signal, socket, struct, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def sys_call(number, *args):
    '''The result, or the errno by name.'''
    ctypes.set_errno(0)
    got = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    return got if got >= 0 else errno.errorcode[ctypes.get_errno()]


def refusal(function, *args):
    '''The errno by name with which it failed, "" when it did not.'''
    try:
        function(*args)
    except OSError as error:
        return errno.errorcode[error.errno]
    return ""


def filtered(sock, program):
    '''A socket behind a program of classic BPF.'''
    code = ctypes.create_string_buffer(program, len(program))
    sock.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))


def status_of(function):
    '''How a child that calls it ended: as os.waitpid tells.'''
    pid = os.fork()
    if pid == 0:
        function()
        os._exit(0)
    return os.waitpid(pid, 0)[1]
"""


class Row(NamedTuple):
    """``attack`` and its benign ``twin`` are expressions that are evaluated inside; ``refused`` holds what the
    attack may give, ``works`` what the twin must give."""

    id: str
    attack: str
    refused: tuple[object, ...]
    twin: str
    works: object


def program(body: str) -> str:
    """Source whose ``main(args)`` has ``body``, with the prelude before it."""
    return PRELUDE + "\ndef main(args):\n" + textwrap.indent(textwrap.dedent(body), "    ")


def expressions(row: Row) -> str:
    """Source that evaluates both expressions of a row."""
    return program(f"return {{'attack': {row.attack}, 'twin': {row.twin}}}")
