"""The settings under which a build reaches the public index from here."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

HOSTS = ("pypi.org", "files.pythonhosted.org")


def real_index() -> dict[str, Any]:
    """``packages`` of the settings. Where this network gives the index's hosts addresses that are closed by nature (a
    mirror's), the rules name these too, as an operator would."""
    found: set[str] = set()
    for host in HOSTS:
        try:
            answers = socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM)
        except OSError:
            continue
        found.update(str(answer[4][0]) for answer in answers)
    closed = sorted(text for text in found if not ipaddress.ip_address(text).is_global)
    return {"network": [*HOSTS, *(f"[{text}]" if ":" in text else text for text in closed)]}
