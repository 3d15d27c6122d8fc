"""Finds characters that people do not see or take for others (agent-skills-format §5)."""

from __future__ import annotations

import re

from skillyard.domain.review.file import File, Text
from skillyard.domain.review.notes import Notes, quoted

_TAGS = re.compile("[\U000e0000-\U000e007f]+")
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{3,}")
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_OVERRIDES = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_WIDTHLESS = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b\u2060-\u2064\u206a-\u206f\u3164\ufeff\uffa0]"
)
_JOINERS = re.compile("(?:(?<=[ -~])[\u200c\u200d])|(?:[\u200c\u200d](?=[ -~]))")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\x80-\x84\x86-\x9f]|\r(?!\n)")
_LOOKALIKE = (  # Greek capitals and three small letters, Cyrillic, Cherokee
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7"
    "\u03bf\u03bd\u0400-\u052f\u13a0-\u13ff"
)
_MIXED = re.compile(f"[A-Za-z][{_LOOKALIKE}]|[{_LOOKALIKE}][A-Za-z]")
_WORD = re.compile(r"\w{1,64}")


def check_characters(file: File, text: Text, notes: Notes) -> None:
    for found in text.all(_CONTROL):
        message = f"the control character U+{ord(found[0]):04X}, which can change what a terminal shows"
        notes.warn(file.path, text.line_of(found.start()), "control-characters", message)
    if text.isascii():
        return
    _tags(file, text, notes)
    _directions(file, text, notes)
    for found in text.all(_SELECTORS):
        message = f"{len(found[0])} variation selectors in a row, which show as nothing and can carry any bytes"
        notes.danger(file.path, text.line_of(found.start()), "hidden-characters", message)
    body = text.removeprefix("\ufeff")
    shift = len(text) - len(body)
    for pattern in (_WIDTHLESS, _JOINERS):
        for found in pattern.finditer(body):
            message = f"the invisible character U+{ord(found[0]):04X}"
            notes.warn(file.path, text.line_of(found.start() + shift), "invisible-characters", message)
    _mixed(file, text, notes)


def _tags(file: File, text: Text, notes: Notes) -> None:
    """Finds tag characters, which mirror ASCII: models read them and nobody sees them."""
    for found in _TAGS.finditer(text):
        if found.start() and text[found.start() - 1] == "\U0001f3f4":  # flags of England, Scotland and Wales
            continue
        spelt = "".join(chr(ord(c) - 0xE0000) for c in found[0][:400] if 0x20 <= ord(c) - 0xE0000 < 0x7F)
        message = f"{len(found[0])} tag characters, which nobody sees and models read; they spell {quoted(spelt)}"
        notes.danger(file.path, text.line_of(found.start()), "hidden-characters", message)


def _directions(file: File, text: Text, notes: Notes) -> None:
    for found in text.all(_DIRECTION):
        line = text.line_of(found.start())
        if found[0] in _OVERRIDES:
            message = f"U+{ord(found[0]):04X} changes the writing direction: what follows is shown in another order"
            notes.danger(file.path, line, "writing-direction", message)
        else:
            notes.warn(file.path, line, "invisible-characters", f"the invisible mark U+{ord(found[0]):04X}")


def _mixed(file: File, text: Text, notes: Notes) -> None:
    told = set()
    for found in text.all(_MIXED):
        start = found.start()
        while start > 0 and found.start() - start < 32 and (text[start - 1].isalnum() or text[start - 1] == "_"):
            start -= 1
        word = _WORD.match(text, start)
        if word and word[0] not in told:
            told.add(word[0])
            message = f"the word {quoted(word[0])} mixes alphabets whose letters look alike"
            notes.warn(file.path, text.line_of(found.start()), "mixed-alphabets", message)
