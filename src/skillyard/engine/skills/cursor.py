"""Cursors of pages of the catalogue, signed so that nobody makes one up."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from skillyard.domain.errors import InvalidInput, shape

_TAG = 16


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
