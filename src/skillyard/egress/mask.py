"""Real values masked in what comes back from a bound host: a net for servers that repeat what they were sent, not a
wall against one that means to give a value away."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from urllib.parse import quote, quote_plus

from skillyard.domain.egress.session import GateSecret
from skillyard.egress.placeholder import encoded_forms

MIN_LINE = 16
_DERIVED = 8
"""Bytes from which on encoded forms are looked for."""
_TOLD = 4
"""Fewer bytes that could begin a value are told at once, so that a message's last bytes do not wait for the next
message; no more than half of a form."""
_QUICK = 16


class Masks:
    """What ``secrets`` look like raw, in base64, percent-encoded, in JSON and in HTML, and what stands for each."""

    def __init__(self, secrets: Sequence[GateSecret]) -> None:
        found: dict[bytes, bytes] = {}
        for secret in secrets:
            for form in _forms(secret.value):
                found.setdefault(form, secret.placeholder.encode())
        self.forms = sorted(found.items(), key=lambda pair: len(pair[0]), reverse=True)
        self.longest = max((len(form) for form in found), default=1)

    def once(self, data: bytes) -> bytes:
        """A whole text."""
        if not any(form in data for form, _ in self.forms):
            return data
        masker = Masker(self)
        return masker.feed(data) + masker.flush()


class Masker:
    """A stream with its values masked: each becomes its placeholder, or with ``fit`` as much of it, filled up, as
    takes exactly the value's place. What could be the beginning of a value waits until it is known."""

    def __init__(self, masks: Masks, *, fit: bool = False) -> None:
        self._masks = masks
        self._fit = fit
        self._kept = b""
        self._told = 0
        """Bytes of ``_kept`` that went out."""

    def feed(self, data: bytes) -> bytes:
        """What may be handed on after ``data`` came."""
        pending = self._kept + data if self._kept else data
        out, after = self._masked(pending)
        begins = self._begins(pending, after)
        kept = pending[begins:]
        told = max(0, after - begins, min(len(kept), self._may_tell(kept)))
        out += pending[after : begins + told]
        self._kept, self._told = kept, told
        return bytes(out)

    def flush(self) -> bytes:
        """The rest, at the end."""
        rest = self._kept[self._told :]
        self._kept, self._told = b"", 0
        return rest

    def _masked(self, pending: bytes) -> tuple[bytearray, int]:
        """What comes of ``pending`` up to the end of the last value in it, or to what was told; and where that is."""
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

    def _begins(self, pending: bytes, after: int) -> int:
        """Where the longest end of ``pending`` that could begin a value begins, not before ``after`` or what was told
        but could still; the length of ``pending`` when there is none."""
        first = len(pending)
        low = max(after if after > self._told else 0, len(pending) - self._masks.longest + 1, 0)
        for form, _ in self._masks.forms:
            at = pending.find(form[:1], max(low, len(pending) - len(form) + 1))
            while 0 <= at < first:
                if _could_begin(form, pending, at):
                    first = at
                    break
                at = pending.find(form[:1], at + 1)
        return first

    def _may_tell(self, kept: bytes) -> int:
        """How many of ``kept``'s bytes do not matter: few, and at most half of the shortest value they may begin."""
        halves = [len(form) // 2 for form, _ in self._masks.forms if kept and form.startswith(kept)]
        return min([_TOLD - 1, *halves])


def _could_begin(form: bytes, data: bytes, at: int) -> bool:
    """Whether ``data`` from ``at`` to its end is how ``form`` begins; a cheap look first, since a hostile server may
    send beginnings only."""
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
        shown = (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], html.escape(text))
        encoded = (quote(text, safe=""), quote(text), quote_plus(text))
        forms |= {each.encode() for each in (*shown, *encoded, *(lower_hex(each) for each in encoded))}
        forms |= {form for form in encoded_forms(text.encode()) if form}
    return forms | {form.replace(b"/", b"\\/") for form in forms}  # as some write JSON


def lower_hex(text: str) -> str:
    """Percent-encoded text with small hexadecimal digits (RFC 3986 §2.1 allows both)."""
    parts = text.split("%")
    return parts[0] + "".join("%" + part[:2].lower() + part[2:] for part in parts[1:])
