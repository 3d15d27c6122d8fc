"""Splitting text into words and sentences."""

import re

_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
_END = re.compile(r"[.!?]+(?=\s|$)")
MAX_LENGTH = 60


def tokens(text):
    """The words in lower case, in their order; what is longer than a word can be is left out."""
    for match in _WORD.finditer(text):
        if len(match[0]) <= MAX_LENGTH:
            yield match[0].lower().replace("\u2019", "'")


def sentences(text):
    """The parts between full stops, exclamation and question marks that hold a word."""
    for part in _END.split(text):
        if _WORD.search(part):
            yield part.strip()
