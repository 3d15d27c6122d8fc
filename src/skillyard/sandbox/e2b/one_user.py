"""The stage of a machine whose only user is not root: it starts the agent as that user.

The walls are the machine's own. Foreign code has the same user, so nothing of ours is a file: standard input brings
this text, an order and the guest, which becomes sealed memory. The agent's socket is abstract, and nobody can put
another one in its place while the agent lives. The standard library alone is imported::

    python3 -I -S -c BOOT MARK    with standard input: this text, an order in JSON and, to start, the compressed guest,
                                  each behind its length in eight hexadecimal digits

``look`` tells of the machine in one line. ``start`` begins the agent and tells so in one line. Then, as ``join`` does
at once, it is the end of a channel to the agent.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from skillyard.domain.package.platforms import interpreter  # its text is put into this one
else:
    import _socket as socket

BOOT = """\
import os
def block(size):
    found = b""
    while len(found) < size:
        found += os.read(0, size - len(found)) or os._exit(1)
    return found
exec(block(int(block(8), 16)))
"""
MARK = "skillyard-channel"
"""Tells the ends of channels from other processes."""
PLACES = ("/workspace", "/tmp", "/dev/shm")  # noqa: S108 - of the machine
_NO_AGENT = 64
_DUMPABLE = 4
_SEALS = (1033, 0xF)  # F_ADD_SEALS, all of them (fcntl(2))
_MIB = 1 << 20


def main() -> int:
    """Returns the exit status. A failure is told as ``{"error": …}``."""
    import json

    try:
        order = json.loads(_block())
        if order["op"] == "look":
            _say(json.dumps(machine() | {"interpreter": interpreter()}))
            return 0
        _be_undumpable()
        if order["op"] == "start":
            _launch(order, _sealed(_block()))
            _say('{"groups": []}')
        else:
            _end_earlier()
    except (ImportError, OSError, ValueError, KeyError) as error:
        _say(json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}))
        return 1
    return _join(order["socket"])


def _block() -> bytes:
    """Returns the next part of standard input. Raises ValueError at its end."""
    return _read(int(_read(8), 16))


def _read(size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (piece := os.read(0, size - len(found))):
            raise ValueError("the order did not come whole")
        found += piece
    return found


def _say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def machine() -> dict[str, Any]:
    """Returns an account of the machine, as that of the other stage."""
    status = _text("/proc/self/status")
    return {
        "missing": [f"a {place} that its user can write to" for place in PLACES if not os.access(place, os.W_OK)],
        "root": False,
        "terminals": os.access("/dev/ptmx", os.R_OK | os.W_OK),
        "filtered": "\nSeccomp:\t2\n" in status,
        "boot": _text("/proc/sys/kernel/random/boot_id").strip(),
        "release": os.uname().release,
        "machine": os.uname().machine,
        "python": list(sys.version_info[:2]),
        "memory_mb": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MIB,
        "processors": len(os.sched_getaffinity(0)),
        "spaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")},
        "stage": "",
        "compiled": "",
        "fixed": "",
        "guests": [],
        "content": [],
    }


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _be_undumpable() -> None:
    """Keeps programs of the same user from reading and tracing this process. Raises OSError."""
    import ctypes

    if ctypes.CDLL(None).prctl(_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_DUMPABLE) is refused")


def _sealed(packed: bytes) -> int:
    """Returns a descriptor of memory with the guest, which nobody can change any more."""
    import fcntl
    import zlib

    try:
        guest = os.memfd_create("guest", os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise OSError(f"the machine gives no memory that can be sealed: memfd_create: {error.strerror}") from None
    view = memoryview(zlib.decompress(packed))
    while view:
        view = view[os.write(guest, view) :]
    fcntl.fcntl(guest, *_SEALS)
    return guest


def _launch(order: dict[str, Any], guest: int) -> None:
    """Starts the agent in a session of its own, as an orphan."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{order['socket']}")
    listener.listen(16)
    listens = f"fd:{listener.fileno()}"
    words = [sys.executable, "-I", "-S", "-c", order["start"], f"/proc/self/fd/{guest}", "agent", "listen", listens]
    settings = os.memfd_create("settings")
    os.write(settings, order["agent"].encode() + b"\n")
    os.lseek(settings, 0, os.SEEK_SET)
    if child := os.fork():
        os.waitpid(child, 0)
        for fd in (listener.detach(), settings, guest):
            os.close(fd)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            os.dup2(settings, 0)
            nothing = os.open(os.devnull, os.O_WRONLY)
            for number in (1, 2):
                os.dup2(nothing, number)
            for fd in (listener.fileno(), guest):
                os.set_inheritable(fd, True)
            os.chdir("/")
            os.execve(words[0], words, {"PATH": os.defpath})
    finally:
        os._exit(1)


def _end_earlier() -> None:
    """Ends the end of the channel before, which nobody reads any more."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            if MARK.encode() in words and words[0].endswith(b"python3") and int(name) != os.getpid():
                os.kill(int(name), 9)
        except OSError:
            continue


def _join(where: str) -> int:
    """Joins standard input and output to the agent.

    Each of its bytes is written as the character of that number.
    """
    import select

    channel = socket.socket(socket.AF_UNIX)
    try:
        channel.connect(f"\0{where}")
    except OSError:
        return _NO_AGENT
    ways = {0: channel.fileno(), channel.fileno(): 1}
    poll = select.poll()
    for fd in ways:
        poll.register(fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if not (data := os.read(fd, 1 << 18)):
                return 0
            view = memoryview(data if fd == 0 else data.decode("latin-1").encode())
            while view:
                view = view[os.write(ways[fd], view) :]


if __name__ == "__main__":
    sys.exit(main())
