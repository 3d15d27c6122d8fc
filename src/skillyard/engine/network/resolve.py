"""The addresses of names, and which of them are the host's own, for explanations: the gate looks for itself."""

from __future__ import annotations

import asyncio
import socket

from skillyard.domain.errors import InvalidInput
from skillyard.domain.network.address import Address, parse_address

PATIENCE_S = 5.0


async def resolve(name: str, field: str) -> tuple[Address, ...]:
    """As getaddrinfo(3) has them. Raises InvalidInput for a name that has none."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE_S):
            found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        why = "the name server did not answer" if isinstance(error, TimeoutError) else str(error)
        raise InvalidInput(field, f"'{name}' has no address here: {why}") from None
    texts = dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found)
    return tuple(address for text in texts if (address := parse_address(text)) is not None)


def is_own(address: Address) -> bool:
    """Returns whether it is one of the host's: only those can be bound (ip(7))."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
