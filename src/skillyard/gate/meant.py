"""What a program meant by a host: the name that an address of the session's own stands for, else what it said."""

from __future__ import annotations

from skillyard.gate.host_port import Host
from skillyard.gate.session import Session
from skillyard.gate.synthetic import POOL


def meant(session: Session, via: str, host: Host, port: int) -> Host:
    """Raises Refused, logged, for an address that stands for no name that was asked for."""
    if isinstance(host, str) or host not in POOL:
        return host
    name = session.name_of(host)
    if name is None:
        raise session.refuse(via, str(host), port, f"{host} stands for no name that was asked for", layer="floor")
    return name
