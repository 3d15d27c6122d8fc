"""Which lines of Markdown are in fenced blocks of code, and so shown as they are (CommonMark §4.5, §4.6).

Where it is not sure, a line is not code: what is hidden must not pass as shown.
"""

from __future__ import annotations

import re

from skillyard.domain.review.file import Text

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_HTML = re.compile(r" {0,3}<(?:(!--)|(!\[CDATA\[)|([!?])|(script|pre|style|textarea)\b|[A-Za-z/])", re.IGNORECASE)


def code_lines(text: Text) -> frozenset[int]:
    inside: set[int] = set()
    fence, html_until = "", ""
    for number, line in text.numbered():
        found = _FENCE.match(line)
        if fence:
            inside.add(number)
            if found and found[1].startswith(fence) and not line.strip("`~ \t\r"):
                fence = ""
        elif html_until or (html_until := _end_of_html(line)):
            html_until = "" if _ends(line, html_until) else html_until
        elif found:
            fence = found[1]
    return frozenset(inside)


def _end_of_html(line: str) -> str:
    """Returns what ends the block of HTML that a line begins, a blank line as ``\\n``; empty when it begins none."""
    found = _HTML.match(line)
    if found is None:
        return ""
    comment, data, declaration, raw = found.groups()
    if raw:
        return f"</{raw.lower()}"
    return "-->" if comment else "]]>" if data else ">" if declaration == "!" else "?>" if declaration else "\n"


def _ends(line: str, mark: str) -> bool:
    return not line.strip() if mark == "\n" else mark in line.lower()
