"""``[services]``: where browsers reach services, and the bounds of connections to them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from skillyard.config.section import MIB, Section
from skillyard.domain.errors import InvalidInput, shown

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")


def _domain(value: str) -> str:
    """Raises InvalidInput for a text that is not a domain in lower case."""
    if value and (len(value) > 180 or not _DOMAIN.fullmatch(value)):
        raise InvalidInput(
            "services.domain", "must be a domain in lower case, such as services.example.org", shown(value)
        )
    return value


class ServiceSettings(Section):
    """How the ports of services are reached."""

    model_config = ConfigDict(title="services")

    domain: Annotated[str, AfterValidator(_domain)] = Field(
        default="localhost",
        description="Domain below which each port of a service has a name of its own for browsers,"
        " `<port>-<task>.<domain>`. Others than this machine need a domain of your own that serves nothing else, with a"
        " wildcard in DNS; empty leaves bearer tokens by path as the only way.",
    )
    https: bool = Field(
        default=False, description="Whether a proxy with TLS stands before those names; cookies are then for TLS only."
    )
    public_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port in the URLs of those names; 0 is the server's own, or 443 with https.",
    )
    cookie_s: float = Field(
        default=28_800.0, gt=0, description="Time that a browser may use a port after its ticket was taken."
    )
    places: int = Field(
        default=16,
        ge=1,
        description="Services that wait to begin or work at a time, at most a quarter of `admission.running`; more are"
        " refused with `Busy`. They take no places of other tasks.",
    )
    places_each: int = Field(default=8, ge=1, description="Services of one principal at a time.")
    connections: int = Field(default=400, ge=1, description="Most connections to services at once.")
    connections_each: int = Field(default=64, ge=1, description="Most connections to one service at once.")
    idle_connections: int = Field(
        default=64,
        ge=0,
        description="Most connections into sandboxes that are kept for the next request after an answer; with 0 each"
        " request has one of its own.",
    )
    answer_s: float = Field(default=120.0, gt=0, description="Longest wait for the beginning of an answer.")
    idle_s: float = Field(
        default=600.0, gt=0, description="Time without any byte after which an answer or a websocket is ended."
    )
    body_bytes: int = Field(default=1024 * MIB, ge=1, description="Largest body of a request to a service.")
