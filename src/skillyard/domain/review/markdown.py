"""Finds parts of Markdown that its reader does not see: comments, hidden elements, images."""

from __future__ import annotations

import re

from skillyard.domain.review.file import File, Text
from skillyard.domain.review.notes import Notes, quoted

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_HTML = re.compile(r" {0,3}<(?:(!--)|(!\[CDATA\[)|([!?])|(script|pre|style|textarea)\b|[A-Za-z/])", re.IGNORECASE)


def code_lines(text: Text) -> frozenset[int]:
    """Returns the lines in fenced blocks of code, which are shown as they are (CommonMark §4.5).

    In doubt a line is not code: hidden text must not pass as shown.
    """
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
    """Returns the end of the block of HTML that a line begins; ``\\n`` is a blank line."""
    found = _HTML.match(line)
    if found is None:
        return ""
    comment, data, declaration, raw = found.groups()
    if raw:
        return f"</{raw.lower()}"
    return "-->" if comment else "]]>" if data else ">" if declaration == "!" else "?>" if declaration else "\n"


def _ends(line: str, mark: str) -> bool:
    return not line.strip() if mark == "\n" else mark in line.lower()


INSTRUCTIONS = frozenset({".md", ".markdown", ".mdx"})
SUFFIXES = INSTRUCTIONS | {".html", ".htm", ".svg"}

_REFERENCE_COMMENT = re.compile(r"^ {0,3}\[[^\]\n]{1,80}\]:[ \t]*(?:#|<>)[ \t]*([\"'(][^\n]{0,500})", re.MULTILINE)
_TAG = re.compile(r"<([A-Za-z][A-Za-z0-9-]{0,30})((?:[^<>\"']|\"[^\"<>]*\"|'[^'<>]*'){0,500})>")
_STYLE = re.compile(r"\bstyle[ \t\n]{0,8}=[ \t\n]{0,8}(?:\"([^\"]*)\"|'([^']*)'|([^\s>]+))", re.IGNORECASE)
_HIDDEN_STYLE = re.compile(
    r"display:none|visibility:hidden|font-size:0|opacity:0(?![.1-9])|(?:^|;)(?:max-)?(?:width|height):0|color:transparent"
    r"|text-indent:-\d{3}|(?:left|top):-\d{3}|clip:rect\(0|(?<!-)color:(?:white|#fff(?:fff)?(?![0-9a-f]))"
)
_HIDDEN_ATTRIBUTE = re.compile(r"(?:^|\s)hidden(?:\s|=|$)", re.IGNORECASE)
_FETCHED = re.compile(
    r"!\[[^\]\n]{0,100}\]\(\s{0,8}<?(?:https?:)?//|<(?:img|iframe|object|embed|audio|video)\b[^<>]{0,300}\b(?:src|data)\s{0,4}=\s{0,4}[\"']?(?:https?:)?//",
    re.IGNORECASE,
)
_ACTIVE = frozenset({"script", "iframe", "object", "embed", "form", "meta"})
_COLOUR = re.compile(r"(?<![-\w])(color|background|background-color):([^;]+)")


def check_markdown(file: File, text: Text, notes: Notes) -> None:
    code = code_lines(text) if file.suffix in INSTRUCTIONS else frozenset()
    _comments(file, text, code, notes)
    for found in text.all(_REFERENCE_COMMENT):
        message = f"a link definition that shows nothing is used as a comment: {quoted(found[1])}"
        notes.warn(file.path, text.line_of(found.start()), "hidden-comment", message)
    for found in _TAG.finditer(text):
        line = text.line_of(found.start())
        if line not in code:
            _element(file, line, found[1].lower(), found[2], notes)
    for found in text.all(_FETCHED):
        message = "an image or frame that is fetched from elsewhere when this is shown, which can tell and carry things"
        notes.warn(file.path, text.line_of(found.start()), "fetched", message)


def _comments(file: File, text: Text, code: frozenset[int], notes: Notes) -> None:
    at = text.find("<!--")
    while at >= 0:
        end = text.find("-->", at + 4)
        inner = text[at + 4 : end if end >= 0 else at + 4 + 400].strip()
        if inner:
            left_open = "" if end >= 0 else ", which is never closed"
            line = text.line_of(at)
            if file.suffix not in INSTRUCTIONS or line in code:
                notes.note(file.path, line, "hidden-comment", f"a comment in code{left_open}: {quoted(inner)}")
            else:
                message = f"a comment that readers do not see and models read{left_open}: {quoted(inner)}"
                notes.warn(file.path, line, "hidden-comment", message)
        at = text.find("<!--", end + 3) if end >= 0 else -1


def _element(file: File, line: int, name: str, attributes: str, notes: Notes) -> None:
    style = _STYLE.search(attributes)
    plain = "".join((style[1] or style[2] or style[3] or "").lower().split()) if style else ""
    if _HIDDEN_STYLE.search(plain) or _same_colour(plain) or _HIDDEN_ATTRIBUTE.search(attributes):
        level = "danger" if file.suffix in INSTRUCTIONS else "warning"  # pages have parts that are shown later
        notes.add(
            level, file.path, line, "hidden-text", f"an element <{name}> whose text is not shown, and models read it"
        )
    elif name in _ACTIVE and file.suffix in INSTRUCTIONS:
        notes.warn(file.path, line, "active-element", f"an element <{name}>, which does something where it is shown")


def _same_colour(style: str) -> bool:
    colours = dict(_COLOUR.findall(style))
    ground = colours.get("background", colours.get("background-color"))
    return ground is not None and colours.get("color") == ground
