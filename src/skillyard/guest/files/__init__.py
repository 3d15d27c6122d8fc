"""The files program of a sandbox: ``read``, ``write``, ``entries``, ``stat``, ``remove``, ``put`` and ``get``.

One program serves many requests, one after the other, over its standard input and output. Frames are one byte of kind,
four bytes of big-endian payload length, payload. The host sends::

    Q  {"op": "read", "path": "…", …}     a request
    D  bytes                              a piece of what ``write`` and ``put`` take
    E                                     that was the last piece
    X                                     the host gives up: nothing is written, and the answer is F
    C  4 bytes                            that many more bytes may be sent

and gets any number of D, then O or F::

    D  bytes                              a piece of what ``read``, ``entries`` and ``get`` give
    O  JSON                               the request is done: ``size`` after ``write``, an entry after ``stat``
    F  {"status": 3, "text": "…"}         it failed; the status is one of the numbers below

Without credit (C) at most :data:`WINDOW` bytes of D are sent for a request, so nobody has to keep more of a reader that
is slow. End of file on the standard input ends the program.

A link as the last part of a path is not followed. Nothing here waits for a FIFO or a device. Names that are not UTF-8
pass through as lone surrogates (PEP 383).
"""

MISSING = 3
"""There is no such file; for ``entries``, no such directory."""
NOT_REGULAR = 4
"""It is something else: a link, a directory, a FIFO, a device."""
NO_SPACE = 5
REFUSED = 6
"""The kernel says no for another reason, permissions most of all."""
DAMAGED = 7
"""A stream for ``put`` breaks the format, or holds an entry that is not taken."""
GIVEN_UP = 8
USAGE = 64

WINDOW = 512 * 1024
PIECE = 128 * 1024
MAX_ENTRIES = 10_000
