"""Identifiers. Unguessable ones carry 128 random bits; all of them are opaque to clients."""

from __future__ import annotations

import re

from skillyard.domain.errors import InvalidInput, shown

BLOB_ID = re.compile(r"blob:[A-Za-z0-9._-]{1,128}")
RUN_ID = re.compile(r"run_[A-Za-z0-9]{1,64}")


def is_blob_id(text: str) -> bool:
    """Whether ``text`` has the form of a blob id (skills-protocol §5.1)."""
    return BLOB_ID.fullmatch(text) is not None and text not in ("blob:.", "blob:..")


def is_run_id(text: str) -> bool:
    return RUN_ID.fullmatch(text) is not None


def check_blob_id(field: str, text: str) -> str:
    """``text``, a blob id. Raises InvalidInput."""
    if not is_blob_id(text):
        raise InvalidInput(field, "must be 'blob:' and 1 to 128 of A-Z a-z 0-9 . _ -", shown(text))
    return text
