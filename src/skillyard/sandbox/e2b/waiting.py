"""The stage that waits in a template: it has made all of a sandbox that no order changes.

It is the template's start command. The provider keeps a template as the memory of a machine in which this program
runs, and each machine goes on from there. So all that it holds is the same in every machine, and nothing of it is
secret: no key, no nonce, no time. It serves one sandbox::

    python3 -I -S waiting.py PLACE    wait for an order in a new directory, whose name tells releases apart

The order comes in one line, behind the number of the command that brings it, by a pipe that root of the machine alone
may write to. Then this process is the end of the channel in that command's place: it takes the command's standard input
and output, and the command waits for its exit status.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from skillyard.sandbox.e2b import stage
else:
    sys.path.insert(0, os.path.dirname(__file__))
    import stage

_PIECE = 64 * 1024


def main(place: str) -> int:
    """Returns the exit status."""
    os.makedirs(place, 0o755)
    prepared = stage.prepare(stage.baked(), ahead=True)
    for module in ("command", "kernel"):
        stage.inside(stage.AGENT, module)
    over = _pipe(f"{place}/over")
    stage.write(f"{place}/pid", f"{os.getpid()}\n")
    asking = _pipe(f"{place}/order")  # the last of all: the ready command looks for it
    number, _, text = _line(asking).partition(b" ")
    os.unlink(f"{place}/order")
    command = os.pidfd_open(int(number))
    for fd, theirs in enumerate(stage.ENDS):
        end = stage.inside(stage.AGENT, "space").end_of(command, theirs)
        os.dup2(end, fd)
        os.close(end)
    status = stage.serve(prepared.finish, stage.inside(stage.AGENT, "jsontext").decode(text), command)
    os.write(over, b"%d\n" % status)
    return status


def _pipe(path: str) -> int:
    """Makes a named pipe for root, and holds both of its ends: nobody has to wait for one."""
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def _line(source: int) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        found += os.read(source, _PIECE)
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
