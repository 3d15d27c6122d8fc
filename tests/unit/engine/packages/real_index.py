"""The package index of the world, for tests that want real packages: whether it answers, and the rules that let a build
reach it from this machine."""

from __future__ import annotations

import functools
import ipaddress
import os
import socket
import ssl
import urllib.request
from typing import Any

HOSTS = ("pypi.org", "files.pythonhosted.org")
VARIABLE = "SKILLYARD_REAL_INDEX"
"""Set to ``no``, it keeps tests away from the index."""
_BOUND_S = 10


@functools.cache
def why_not() -> str:
    """Why tests cannot have real packages here; empty when they can."""
    if os.environ.get(VARIABLE) == "no":
        return f"{VARIABLE} is 'no'"
    try:
        url = f"https://{HOSTS[0]}/simple/six/"
        with urllib.request.urlopen(url, timeout=_BOUND_S, context=ssl.create_default_context()) as answer:
            answer.read(100)
        for host in HOSTS:
            socket.create_connection((host, 443), _BOUND_S).close()
    except OSError as error:
        return f"the package index does not answer: {error}"
    return ""


def packages(**more: Any) -> dict[str, Any]:
    """``packages`` of the settings. Where a host has an address that is not of the internet, as behind a mirror, the
    operator has to name that too."""
    rules = [*HOSTS]
    for host in HOSTS:
        for *_, address in socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM):
            if not ipaddress.ip_address(address[0]).is_global:
                rules.append(str(address[0]))
    return {"network": tuple(dict.fromkeys(rules)), **more}
