"""The content of mounts and environments, realised by a backend that binds."""

from __future__ import annotations

from pathlib import Path

from skillyard.domain.errors import SandboxFault
from skillyard.domain.sandbox.content import Content, HostDirectory


def bound(source: Content | HostDirectory) -> Path:
    """Returns the place on this host that a backend can bind. Raises SandboxFault where there is none."""
    if source.path is None:
        raise SandboxFault(f"the content {source.digest} has no place on this host")
    return source.path
