"""Reads the names by which the ports of services are reached."""

from __future__ import annotations

import re

from skillyard.values import dataclass

_PATH = re.compile(rb"/services/(run_[A-Za-z0-9]{1,64})/([1-9][0-9]{0,4})(/.*)?", re.DOTALL)
_LABEL = re.compile(r"([1-9][0-9]{0,4})-([a-z0-9]{1,52})")
_MOST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Place:
    """A port of a service, and the target of a request there, which begins with ``/``."""

    task_id: str
    port: int
    target: bytes


def by_path(raw_path: bytes) -> Place | None:
    """Returns the place that a path names as it was sent; None for one that names none."""
    match = _PATH.fullmatch(raw_path)
    if match is None or int(match[2]) > _MOST_PORT:
        return None
    return Place(match[1].decode("ascii"), int(match[2]), match[3] or b"/")


def name_pattern(domain: str) -> re.Pattern[bytes]:
    """Returns the pattern of the names of ports. Other names below the domain may be the server's own."""
    return re.compile(rf"{_LABEL.pattern}\.{re.escape(domain)}".encode("ascii"))


def by_host(name: str, domain: str, raw_path: bytes) -> Place | None:
    """Returns the place that a name below ``domain`` means; None for another name."""
    match = _LABEL.fullmatch(name.removesuffix(f".{domain}"))
    if match is None or int(match[1]) > _MOST_PORT or not raw_path.startswith(b"/"):
        return None
    return Place(f"run_{match[2]}", int(match[1]), raw_path)
