"""Text that came by JSON may hold half a surrogate pair, which no UTF-8 can carry."""

from __future__ import annotations

from skillyard.domain.errors import InvalidInput, shape


def check_unicode(field: str, text: str) -> bytes:
    """``text`` in UTF-8. Raises InvalidInput for a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(field, "must be well-formed Unicode", shape(text)) from None
