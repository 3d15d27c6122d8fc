"""The start, by exec, of a program in a sandbox whose first process is the static one.

That is ``first.c``. Such a sandbox is made for one program: its waiting worker's, a command, or a guest that collects
what the worker left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from skillyard.guest import main as guest
from skillyard.sandbox.native.inside import init
from skillyard.sandbox.native.inside.plain import be_plain

NOTHING, STACK, GIVEN = 0, 5, 16
"""The descriptors of ``first.c``: no input and no output, the last stack, and the first of those that came along."""


def main(packages: str, *pieces: str, be_child: Callable[[tuple[int, ...]], None] = init.be_child) -> None:
    """Goes on as the program of the keeper's message, which comes in pieces."""
    message = json.loads(os.fsencode("".join(pieces)))
    if message["argv"] is None:
        channel, output = GIVEN, GIVEN + 1
        be_child((NOTHING, output, output, channel, STACK))
        be_plain(packages)
        guest.prepare()
        init.serve_guest(frozenset())
    else:
        be_child(tuple(range(GIVEN, GIVEN + 3)))
        init.run_command(message, message["cwd"])
