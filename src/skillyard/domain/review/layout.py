"""Text that is arranged so that a reader does not come to it: encoded, minified, far to the right, far below."""

from __future__ import annotations

import re
from binascii import Error, a2b_base64

from skillyard.domain.review.file import File, Text
from skillyard.domain.review.kinds import kind_of
from skillyard.domain.review.notes import Notes

LONG_LINE = 2000
CODE = frozenset(
    {
        *(".py", ".pyi", ".js", ".mjs", ".cjs", ".ts", ".jsx", ".tsx", ".sh", ".bash", ".zsh", ".ps1", ".bat", ".rb"),
        *(
            ".pl",
            ".lua",
            ".php",
            ".go",
            ".rs",
            ".c",
            ".h",
            ".cpp",
            ".java",
            ".r",
            ".jl",
            ".swift",
            ".kt",
            ".sql",
            ".md",
        ),
    }
)
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{200,}={0,2}")
_HEX = re.compile(r"(?:\\x[0-9a-fA-F]{2}){60,}|\b[0-9a-fA-F]{400,}\b")
_FAR_RIGHT = re.compile(r"(?<![ \t])[ \t]{160,}(?=\S)")
_FAR_BELOW = re.compile(r"\n(?:[ \t\r]*\n){80,}(?=[ \t\r]*[^ \t\r\n])")


def check_layout(file: File, text: Text, notes: Notes) -> None:
    _encoded(file, text, notes)
    if file.suffix not in CODE:
        return
    for number, line in text.numbered():
        if len(line) > LONG_LINE:
            level = "note" if file.suffix == ".md" else "warning"  # a paragraph in one line is usual there
            notes.add(level, file.path, number, "long-line", f"a line of {len(line)} characters, which nobody reads")
    for found in text.all(_FAR_RIGHT):
        message = f"text stands {len(found[0])} blanks to the right, where an editor does not show it"
        notes.danger(file.path, text.line_of(found.start()), "far-away", message)
    for found in _FAR_BELOW.finditer(text.rstrip(" \t\r\n")):
        notes.danger(file.path, text.line_of(found.end()), "far-away", "text stands below scores of empty lines")


def _encoded(file: File, text: Text, notes: Notes) -> None:
    for found in _BASE64.finditer(text):
        run = found[0]
        kind = kind_of(_decoded(run[:400]))
        if kind is None and _is_pattern(run[:200]):
            continue
        if text.endswith("base64,", max(0, found.start() - 60), found.start()) and (
            kind is None or kind.sort == "image"
        ):
            continue  # an image that is shown
        line = text.line_of(found.start())
        if kind is not None and kind.sort in ("program", "archive"):
            notes.danger(file.path, line, "encoded", f"{len(run)} characters of base64 that hold {kind.name}")
        else:
            notes.warn(file.path, line, "encoded", f"{len(run)} characters that look like base64")
    for found in text.all(_HEX):
        notes.warn(
            file.path, text.line_of(found.start()), "encoded", f"{len(found[0])} characters of hexadecimal bytes"
        )


def _is_pattern(run: str) -> bool:
    """A rule of dashes, a long word: nothing that carries bytes."""
    return run.isalpha() or len(set(run)) < 16


def _decoded(run: str) -> bytes:
    plain = run.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return a2b_base64(plain[: len(plain) // 4 * 4])
    except Error:
        return b""
