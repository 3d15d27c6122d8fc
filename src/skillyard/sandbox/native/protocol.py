"""The version of the messages between a server and its keeper.

A keeper that holds detached runs outlives its server, so that the two may be of different releases. A newer server
serves what an older keeper holds, as far as both speak it (``keepers.py``).

To change a message, or what the files program inside a sandbox says: add one to ``PROTOCOL``, and write that number
beside its operation in ``SINCE``. A server of that version refuses this operation on older keepers, by name.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

PROTOCOL = 8

SINCE: Mapping[str, int] = {
    "attach": 1,
    "close_stdin": 1,
    "create": 8,
    "destroy": 1,
    "environment": 1,
    "follow": 2,
    "forget": 4,
    "forward": 2,
    "keep": 3,
    "kill": 1,
    "outside": 1,
    "plug": 1,
    "prepare": 1,
    "send": 1,
    "resize": 4,
    "start": 2,
    "stats": 1,
    "stop": 1,
    "survey": 1,
    "terminal": 4,
    "took": 2,
    "wait": 1,
}
"""The operations of a keeper, each with the version since which it has its form. ``survey``, ``destroy`` and ``stop``
keep theirs: by these a keeper of any version is drained."""


def refused_by(version: int) -> dict[str, str]:
    """Returns the operations that a keeper of ``version`` does not speak, each with the reason."""
    return {
        name: f"the keeper of this sandbox speaks version {version} of its protocol, and '{name}' came with {since}"
        for name, since in SINCE.items()
        if since > version
    }


def mark_begun(channel: socket.socket) -> None:
    """Marks the channel of a waiting worker, before its request is written there. Raises OSError.

    The keeper has the same end of the channel, and the worker cannot change it. For this kind of socket the value means
    nothing to the kernel (unix(7)).
    """
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 1)


def is_begun(channel: socket.socket) -> bool:
    """Returns whether the server gave the worker a request. Its word of that may still be on the way."""
    return channel.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 1
