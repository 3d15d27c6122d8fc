"""The guest as a command, for backends that only start programs::

    python3 -I guest.pyz call REQUEST CHANNEL [GO]
    python3 -I -S guest.pyz files                   see :mod:`.files`
    python3 -I -S guest.pyz agent MODE WHERE        see :mod:`.agent`

``-c START guest.pyz`` in the place of ``guest.pyz`` does the same in less time: to run a file, Python imports much.

REQUEST and CHANNEL are paths, or ``fd:N`` for an open descriptor. A request file is removed when it was read (it
holds secrets); a channel file is appended to, and made when it is missing. The request is read once nobody can write to
GO any more, which is the number of a descriptor.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

START = "import sys; sys.path.insert(0, sys.argv[1]); from skillyard_guest.command import main; main()"
_exit = os._exit  # foreign code may replace what it finds in os


def main() -> NoReturn:
    """Never returns: threads that foreign code left behind do not hold the process."""
    bundle, *arguments = sys.argv if sys.argv[0] != "-c" else sys.argv[1:]
    sys.path[:] = [path for path in sys.path if path != bundle]
    if len(arguments) in (3, 4) and arguments[0] == "call":
        _call(*arguments[1:])
        _exit(0)
    if arguments[:1] == ["agent"]:
        from .agent.command import main as agent

        _exit(agent(arguments[1:], bundle))
    if arguments != ["files"]:
        os.write(2, b"usage: call REQUEST CHANNEL [GO] | files | agent ...\n")
        _exit(64)
    from .files.serving import main as files

    _exit(files())


def _call(request: str, channel: str, go: str = "") -> None:
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
    if go:
        os.read(waits := int(go), 1)
        os.close(waits)
    serve(request_fd, channel_fd)


def _descriptor(where: str, flags: int) -> int:
    if where.startswith("fd:"):
        return int(where[3:])
    return os.open(where, flags | os.O_CLOEXEC, 0o600)
