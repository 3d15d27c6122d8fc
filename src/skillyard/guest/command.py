"""The guest as a command, for backends that only start programs::

    python3 -I guest.pyz call REQUEST CHANNEL [PID,...]
    python3 -I -S guest.pyz files                   see :mod:`.files`
    python3 -I -S guest.pyz agent MODE WHERE        see :mod:`.agent`

REQUEST and CHANNEL are paths, or ``fd:N`` for an open descriptor. A request file is removed when it was read (it
holds secrets); a channel file is appended to, and made when it is missing. A request that clears the sandbox spares the
processes PID.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_exit = os._exit  # foreign code may replace what it finds in os


def main() -> NoReturn:
    """Never returns: threads that foreign code left behind do not hold the process."""
    arguments = sys.argv[1:]
    sys.path[:] = [path for path in sys.path if path != sys.argv[0]]
    if len(arguments) in (3, 4) and arguments[0] == "call":
        _call(arguments[1], arguments[2], frozenset(map(int, arguments[3].split(",")) if arguments[3:] else ()))
        _exit(0)
    if arguments[:1] == ["agent"]:
        from .agent.command import main as agent

        _exit(agent(arguments[1:], sys.argv[0]))
    if arguments != ["files"]:
        os.write(2, b"usage: call REQUEST CHANNEL [PID,...] | files | agent ...\n")
        _exit(64)
    from .files.serving import main as files

    _exit(files())


def _call(request: str, channel: str, spared: frozenset[int]) -> None:
    from .main import serve
    from .process import open_stdio, reset_signals

    request_fd = _descriptor(request, os.O_RDONLY)
    channel_fd = _descriptor(channel, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if not request.startswith("fd:"):
        os.unlink(request)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    open_stdio()
    reset_signals()
    serve(request_fd, channel_fd, spared=spared)


def _descriptor(where: str, flags: int) -> int:
    if where.startswith("fd:"):
        return int(where[3:])
    return os.open(where, flags | os.O_CLOEXEC, 0o600)
