"""Replaces secret values in everything that a run hands out (skills-protocol §10).

These forms are replaced: the exact value, its JSON, ``repr`` and percent-encoded forms, its base64 forms at each of the
three alignments in both alphabets, and the long lines of a value that has several. Other encodings that code may choose
on purpose are beyond any filter. Blobs are the run's own data and stay as they are.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote

from skillyard.domain.work.record import LogPlace

MARK = b"[redacted]"
MIN_DERIVED = 4
MIN_LINE = 16


class Redactor:
    """Replaces secrets in a stream of bytes. Bytes that may begin one are held back until it is decided."""

    __slots__ = ("_covered", "_hold", "_pending", "_search")

    def __init__(self, pattern: re.Pattern[bytes] | None, longest: int, covered: int = 0) -> None:
        self._search = pattern
        self._hold = longest - 1
        self._pending = b""
        self._covered = covered

    @property
    def idle(self) -> bool:
        """Returns whether there are no secrets: the stream stays as it is."""
        return self._search is None

    @property
    def held(self) -> int:
        """Returns the number of bytes that are held back."""
        return len(self._pending)

    @property
    def covered(self) -> int:
        """Returns the number of bytes, from the held ones on, that belong to a secret taken out."""
        return self._covered

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes that are safe to hand on after ``data`` came."""
        if self._search is None:
            return data
        self._pending += data
        return self._emit(self._search, len(self._pending) - self._hold)

    def flush(self) -> bytes:
        """Returns the rest, at the end of the stream."""
        return self._emit(self._search, len(self._pending)) if self._search else b""

    def place(self, read: int) -> LogPlace:
        """Returns the place from which another reading goes on. So far ``read`` bytes of the log came."""
        return LogPlace(read - self.held, self._covered)

    def aside(self, text: bytes) -> bytes:
        """Returns ``text``, which is not of the log, as it is handed on within it."""
        return text

    def mark(self) -> None:
        """Has the next bytes begin with a mark of their stream, in a log with marks."""

    def shown(self, data: bytes) -> bytes:
        """Returns the text of ``data``, the next bytes that were handed on, without what marks it."""
        return data

    def break_off(self) -> int:
        """Goes on behind a gap; returns the number of bytes that were held back, and are dropped.

        The first bytes behind it are left out too, as far as they may be the end of a secret.
        """
        held = len(self._pending)
        self._pending, self._covered = b"", self._hold
        return held

    def _emit(self, search: re.Pattern[bytes], end: int) -> bytes:
        """Returns everything before ``end``; a secret that starts there is in the buffer as a whole.

        Secrets that overlap make one span, whose part behind ``end`` is remembered as covered."""
        if end <= 0:
            return b""
        out, cursor = bytearray(), self._covered
        for match in search.finditer(self._pending):
            start, stop = match.start(), match.end(match.lastindex or 0)
            if start >= end:
                break
            if start >= cursor:
                out += self._pending[cursor:start]
                out += MARK
            cursor = max(cursor, stop)
        if cursor < end:
            out += self._pending[cursor:end]
            cursor = end
        self._pending = self._pending[end:]
        self._covered = cursor - end
        return bytes(out)


class Silence(Redactor):
    """Gives nothing on, for a log whose secrets are not known."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(re.compile(b""), 1)

    def feed(self, _data: bytes) -> bytes:
        return b""

    def flush(self) -> bytes:
        return b""


class Redaction:
    """The secrets of one run. ``empty`` tells that there are none: then nothing is looked for."""

    __slots__ = ("_forms", "_longest", "_search", "empty")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True)
        self._forms = forms
        self._longest = len(forms[0]) if forms else 1
        self._search = _starts_of(forms) if forms else None
        self.empty = not forms

    def stream(self, covered: int = 0) -> Redactor:
        """Returns a redactor for one reading of a log.

        That of a reading which begins where another was has the other's ``covered``.
        """
        return Redactor(self._search, self._longest, covered)

    def resumed(self, place: LogPlace) -> Redactor:
        """Returns a redactor for a reading that goes on at ``place`` of another one."""
        return self.stream(place.covered)

    def done(self) -> Redaction:
        """Returns the redaction of a log from which these secrets were taken out before."""
        return NOTHING

    def text(self, text: str, *, whole: bool = True) -> str:
        """Returns the text without secrets. ``whole`` false: it was cut before, so its end may be the start of a
        secret."""
        if self._search is None:
            return text
        redactor = self.stream()
        data = text.encode("utf-8", "replace")
        data = redactor.feed(data) + redactor.flush()
        return (data if whole else data[: len(data) - self._begun(data)]).decode("utf-8", "replace")

    def cut(self, text: str, how: Callable[[str], str], *, whole: bool = True) -> str:
        """Returns ``text`` without secrets, shortened by ``how`` only then. All texts of a run are shortened here: a
        part of a secret cannot be found any more."""
        return how(self.text(text, whole=whole))

    def _begun(self, data: bytes) -> int:
        """Returns the number of last bytes that are the start of a secret."""
        most = min(self._longest - 1, len(data))
        return next((n for n in range(most, 0, -1) if any(form.startswith(data[-n:]) for form in self._forms)), 0)

    def value(self, value: Any) -> Any:
        """Returns a JSON value with secrets replaced in strings, keys and numbers. Raises RecursionError."""
        if self._search is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            shown = json.dumps(value)
            return value if self.text(shown) == shown else MARK.decode()
        return value


def of_hosts(secrets: Iterable[str]) -> Redaction:
    """Returns a redaction for host names, which are in lower case."""
    return Redaction({form for secret in secrets for form in (secret, secret.lower())})


class Blackout(Redaction):
    """Takes everything out, for a run whose secrets are not known any more."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.empty = False

    def stream(self, covered: int = 0) -> Redactor:  # noqa: ARG002 - nothing is given on
        return Silence()

    def text(self, _text: str, *, whole: bool = True) -> str:  # noqa: ARG002 - whatever it is
        return MARK.decode()


NOTHING = Redaction()


def _starts_of(forms: list[bytes]) -> re.Pattern[bytes]:
    """Returns a pattern that finds each byte where one of ``forms`` starts.

    Its group ends where the first that fits does. A match takes one byte, so that forms which overlap are found. It
    begins with that byte, and not with an assertion: the engine skips to it then, several times as fast.
    """
    below: dict[bytes, list[bytes]] = {}
    for form in forms:
        below.setdefault(form[:1], []).append(form[1:])
    return re.compile(b"|".join(re.escape(head) + b"(?=(" + _one_of(rest) + b"))" for head, rest in below.items()))


def _one_of(forms: list[bytes], deep: int = 2) -> bytes:
    """Returns a pattern for any of ``forms``, the first that fits.

    It is sorted by first bytes: else each form would be tried at each byte of a log, and a skill may have many
    secrets."""
    if not deep or len(forms) < 2:
        return b"|".join(map(re.escape, forms))
    below: dict[bytes, list[bytes]] = {}
    for form in forms:
        below.setdefault(form[:1], []).append(form[1:])
    ends = below.pop(b"", [])
    parts = [re.escape(head) + b"(?:" + _one_of(rest, deep - 1) + b")" for head, rest in below.items()]
    return b"|".join([*parts, *ends])


def _forms(secret: str) -> set[bytes]:
    raw = secret.encode()
    forms = {raw}
    if len(raw) < MIN_DERIVED:
        return forms
    forms |= {line for line in raw.splitlines() if len(line) >= MIN_LINE}
    shown = (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1])
    forms |= {text.encode() for text in (*shown, quote(secret, safe=""))}
    return forms | set(_base64_forms(raw))


def _base64_forms(raw: bytes) -> Iterator[bytes]:
    """Yields the characters that depend on ``raw`` alone, not on the bytes before and behind it."""
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw)
        inner = encoded[(shift * 8 + 5) // 6 : (shift + len(raw)) * 8 // 6]
        yield inner
        yield inner.translate(bytes.maketrans(b"+/", b"-_"))
