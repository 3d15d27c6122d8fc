"""Characters that a reader does not see and a model does (agent-skills-format §5)."""

from __future__ import annotations

import re
from collections.abc import Iterator

_HIDDEN = re.compile("[\u00ad\u180e\u200b\u2060-\u2064\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]")


def hidden_characters(text: str) -> Iterator[tuple[int, str]]:
    """(line, code point) of the first hidden character of each line: zero-width characters, tags, and controls of
    the writing direction."""
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        found = _HIDDEN.search(line)
        if found:
            yield number, f"U+{ord(found[0]):04X}"
