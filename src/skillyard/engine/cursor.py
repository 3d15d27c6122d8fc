"""Pages of lists: the owner whose objects a page shows, and the cursor of the next page."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from skillyard.domain.errors import InvalidInput, shape
from skillyard.domain.principal import Principal, Scope

_TAG = 16


@contextmanager
def continuing(cursor: str | None) -> Iterator[None]:
    """Replaces a store's refusal of ``after`` by a refusal of the cursor that named it."""
    try:
        yield
    except InvalidInput as error:
        if cursor is None or error.field != "after":
            raise
        raise InvalidInput("cursor", "must be a next_cursor of this method", shape(cursor)) from None


def whose(principal: Principal, params: Mapping[str, Any]) -> str | None:
    """Returns the owner whose objects a list shows; None for all. Raises Forbidden for ``all`` without ADMIN."""
    if not params["all"]:
        return principal.name
    principal.require(Scope.ADMIN)
    return None


def seal(key: bytes, revision: str, last: str) -> str:
    """Returns an opaque cursor that continues after ``last``, signed and bound to ``revision``."""
    text = last.encode()
    return base64.urlsafe_b64encode(_tag(key, revision, text) + text).decode().rstrip("=")


def unseal(key: bytes, revision: str, cursor: str) -> str:
    """Returns the name that :func:`seal` was given. Raises InvalidInput for a forged cursor or another revision."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    tag, text = raw[:_TAG], raw[_TAG:]
    if not hmac.compare_digest(tag, _tag(key, revision, text)):
        rule = "must be a next_cursor of this catalogue as it is now; start again without one"
        raise InvalidInput("cursor", rule, shape(cursor))
    return text.decode()


def _tag(key: bytes, revision: str, text: bytes) -> bytes:
    return hmac.digest(key, revision.encode() + b"\0" + text, hashlib.sha256)[:_TAG]
