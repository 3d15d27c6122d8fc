"""A prelude that runs inside, for programs that are not in the library of attacks."""

from __future__ import annotations

import textwrap

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

"""


def program(body: str) -> str:
    """Returns source whose ``main(args)`` has ``body``, with the prelude before it."""
    return PRELUDE + "\ndef main(args):\n" + textwrap.indent(textwrap.dedent(body), "    ")
