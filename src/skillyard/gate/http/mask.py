"""Masks real values in the answers of a bound host.

This is a net for servers that repeat their input, not a wall against one that means to give a value away. The
documentation lists the exact forms that it finds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from urllib.parse import quote, quote_plus

from skillyard.domain.network.session import GateSecret
from skillyard.gate.http.placeholder import encoded_forms

MIN_LINE = 16
_DERIVED = 8
"""The fewest bytes of a value whose encoded forms are masked."""
_QUICK = 16

_TEXT = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_HTML = tuple(
    str.maketrans(_TEXT | more)
    for more in (
        {},
        {'"': "&quot;", "'": "&#x27;"},  # Python, React
        {'"': "&quot;", "'": "&#39;"},  # Rails
        {'"': "&quot;", "'": "&#039;"},  # PHP
        {'"': "&#34;", "'": "&#39;"},  # Go, Jinja
        {'"': "&#34;", "'": "&#39;", "+": "&#43;"},  # Go's templates
        {'"': "&quot;", "'": "&#x27;", "=": "&#x3D;", "`": "&#x60;"},  # Handlebars
        {'"': "&quot;", "'": "&#39;", "/": "&#x2F;", "=": "&#x3D;", "`": "&#x60;"},  # Mustache
    )
)
_HTML_NET = {"'": "&#x27;", "+": "&#x2B;", "`": "&#x60;", '"': "&quot;"} | _TEXT
_JSON_GO = str.maketrans({c: f"\\u{ord(c):04x}" for c in "&<>\u2028\u2029"})
_JSON_NET = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\b": r"\b", "\f": r"\f"})
_ESCAPED_NET = "\"'&<>+`"


class Masks:
    """The forms of ``secrets`` and the placeholder of each.

    Forms are raw, base64, percent-encoded, JSON and HTML as common libraries write them, each as a whole."""

    def __init__(self, secrets: Sequence[GateSecret]) -> None:
        found: dict[bytes, bytes] = {}
        for secret in secrets:
            for form in _forms(secret.value):
                found.setdefault(form, secret.placeholder.encode())
        self.forms = sorted(found.items(), key=lambda pair: len(pair[0]), reverse=True)
        self.longest = max((len(form) for form in found), default=1)

    def once(self, data: bytes) -> bytes:
        """Returns a whole text with its values masked."""
        if not any(form in data for form, _ in self.forms):
            return data
        masker = Masker(self)
        return masker.feed(data) + masker.flush()


class Masker:
    """Masks the values in a stream: each becomes its placeholder.

    With ``fit`` the placeholder is cut or filled up to the length of the value. As many of the last bytes as a value
    may need wait for the next ones, whatever they are: if only beginnings of values waited, a client that has a
    server repeat its guesses would learn a value letter by letter. When nothing follows for a while, :meth:`pause`
    lets them go, but for more than half of a value, which nobody guesses."""

    def __init__(self, masks: Masks, *, fit: bool = False) -> None:
        self._masks = masks
        self._fit = fit
        self._kept = b""
        self._told = 0
        """Bytes of ``_kept`` that went out."""
        self.holding = False
        """Whether :meth:`pause` may have something."""

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes to hand on after ``data`` came."""
        pending = self._kept + data if self._kept else data
        out, after = self._masked(pending)
        begins = max(after if after > self._told else 0, len(pending) - self._masks.longest + 1, 0)
        told = max(after, begins)
        out += pending[after:told]
        self._kept, self._told = pending[begins:], told - begins
        self.holding = self._told < len(self._kept)
        return bytes(out)

    def pause(self) -> bytes:
        """Returns waiting bytes because nothing follows for now; more than half of a value waits on."""
        kept, told = self._kept, self._told
        begins = self._begins(kept)
        self._told = max(told, begins + self._may_tell(kept[begins:]))
        self.holding = False
        return kept[told : self._told]

    def flush(self) -> bytes:
        """Returns the rest, at the end."""
        rest = self._kept[self._told :]
        self._kept, self._told, self.holding = b"", 0, False
        return rest

    def _masked(self, pending: bytes) -> tuple[bytearray, int]:
        """Returns masked bytes, and the position in ``pending`` up to which they reach.

        That is the end of the last value, or of the bytes that went out."""
        out, cursor = bytearray(), self._told
        for start, form, mask in sorted(self._found(pending), key=lambda f: (f[0], -len(f[1]))):
            stop = start + len(form)
            if stop <= cursor:
                continue
            out += pending[cursor:start]
            hidden = stop - max(start, cursor)
            out += mask[:hidden].ljust(hidden, b"*") if self._fit else mask
            cursor = stop
        return out, cursor

    def _found(self, pending: bytes) -> Iterator[tuple[int, bytes, bytes]]:
        for form, mask in self._masks.forms:
            at = pending.find(form)
            while at >= 0:
                yield at, form, mask
                at = pending.find(form, at + 1)

    def _begins(self, kept: bytes) -> int:
        """Returns where the longest end of ``kept`` that could begin a value begins, or its length."""
        first = len(kept)
        for form, _ in self._masks.forms:
            at = kept.find(form[:1], max(0, len(kept) - len(form) + 1))
            while 0 <= at < first:
                if _could_begin(form, kept, at):
                    first = at
                    break
                at = kept.find(form[:1], at + 1)
        return first

    def _may_tell(self, kept: bytes) -> int:
        """Returns how many of ``kept``'s bytes may be seen.

        They are half of the shortest value that they may begin."""
        return min([len(kept), *(len(form) // 2 for form, _ in self._masks.forms if form.startswith(kept))])


def _could_begin(form: bytes, data: bytes, at: int) -> bool:
    """Returns whether ``form`` begins with ``data`` from ``at`` on.

    A cheap look comes first, since a hostile server may send beginnings only."""
    return data.startswith(form[: min(_QUICK, len(data) - at)], at) and form.startswith(data[at:])


def _forms(value: str) -> set[bytes]:
    texts = {value, value.rstrip("\r\n")}
    raws = {text.encode() for text in texts} | {
        line.encode() for line in value.splitlines() if len(line.encode()) >= MIN_LINE
    }
    forms = {raw for raw in raws if raw}
    if len(value.encode()) < _DERIVED:
        return forms
    for text in texts:
        shown = (*_in_json(text), *_in_html(text))
        encoded = (quote(text, safe=""), quote(text), quote_plus(text))
        forms |= {each.encode() for each in (*shown, *encoded, *(lower_hex(each) for each in encoded))}
        forms |= {form for form in encoded_forms(text.encode()) if form}
    return forms | {form.replace(b"/", b"\\/") for form in forms}  # as some write JSON


def _in_json(text: str) -> Iterator[str]:
    plain = json.dumps(text, ensure_ascii=False)[1:-1]
    yield json.dumps(text)[1:-1]
    yield plain
    yield plain.translate(_JSON_GO)  # Rails too
    yield "".join(_utf16(c) if c in _ESCAPED_NET or not c.isascii() else c.translate(_JSON_NET) for c in text)


def _utf16(character: str) -> str:
    point = ord(character)
    if point < 0x10000:
        return f"\\u{point:04X}"
    high, low = divmod(point - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04X}\\u{0xDC00 + low:04X}"


def _in_html(text: str) -> Iterator[str]:
    for table in _HTML:
        yield text.translate(table)
    yield "".join(_HTML_NET.get(c, c) if c.isascii() else f"&#x{ord(c):X};" for c in text)


def lower_hex(text: str) -> str:
    """Returns percent-encoded text with small hexadecimal digits (RFC 3986 §2.1 allows both)."""
    parts = text.split("%")
    return parts[0] + "".join("%" + part[:2].lower() + part[2:] for part in parts[1:])
