"""Callbacks: the end of a task, told to a URL of its caller's. Signed as Standard Webhooks says, version 1.0.0.

The signature is HMAC-SHA256 over id, time and body, in base64. All tries of one callback have its id.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from skillyard.domain.errors import InvalidInput, shape
from skillyard.domain.network.address import Address, parse_address
from skillyard.domain.network.rule import canonical_name
from skillyard.values import dataclass

MOST_URL = 2048
PENDING, DELIVERED, GIVEN_UP = "pending", "delivered", "given_up"
"""The states of a callback."""
PAUSES_S = (5.0, 30.0, 120.0, 600.0, 3600.0, 6 * 3600.0)
"""How long the next try waits; the last one stands for all later ones."""
_PREFIX = "whsec_"
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """A checked URL. ``host`` is a name or a strict address; ``path`` begins with ``/`` and has the query."""

    secure: bool
    host: str
    port: int
    path: str

    @property
    def address(self) -> Address | None:
        return parse_address(self.host)

    @property
    def name(self) -> str | None:
        """Returns the host's name; None for an address."""
        return None if self.address is not None else self.host

    @property
    def authority(self) -> str:
        """Returns host and port as requests name them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Callback:
    """How far the callback of a task is. ``next_at`` (UTC seconds) is None for one that is over.

    ``told`` says how the last try ended; ``host`` is that of its URL, with the port.
    """

    run_id: str
    state: str = PENDING
    tries: int = 0
    next_at: float | None = None
    told: str = ""
    host: str = ""


def parse_url(text: str) -> Target:
    """Returns what a callback's URL means. Raises InvalidInput."""
    where = "callback_url"
    plain = len(text) <= MOST_URL and text.isascii() and text.isprintable() and not set(text) & set(' "<>\\^`{|}')
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        plain, parts, host, port = False, urlsplit(""), "", None
    if not plain or parts.scheme not in _PORTS or "@" in parts.netloc or parts.fragment or port == 0:
        rule = f"must be an http or https URL of at most {MOST_URL} characters, without user, password and fragment"
        raise InvalidInput(where, rule, shape(text))
    known = canonical_name(host) if parse_address(host) is None else host
    if known is None:
        raise InvalidInput(where, "must have a host that is a name in ASCII or an address", shape(text))
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme == "https", known, port or _PORTS[parts.scheme], path)


def signed(secret: str, id: str, at: float, body: bytes) -> Mapping[str, str]:
    """Returns the header fields of one try."""
    stamp = str(int(at))
    mac = hmac.new(_key(secret), f"{id}.{stamp}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
    }


def _key(secret: str) -> bytes:
    """Returns the bytes of a secret: those behind ``whsec_`` in base64, or else its text."""
    if secret.startswith(_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


def after(callback: Callback, at: float, told: str, *, most: int) -> Callback:
    """Returns the callback behind a try that failed.

    It is tried again later, and given up after ``most`` tries.
    """
    tries = callback.tries + 1
    over = tries >= most
    pause = PAUSES_S[min(tries, len(PAUSES_S)) - 1]
    state = GIVEN_UP if over else PENDING
    return replace(callback, state=state, tries=tries, next_at=None if over else at + pause, told=told)
