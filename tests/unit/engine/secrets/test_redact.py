"""Secret values in streams and JSON values."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from hypothesis import given
from hypothesis import strategies as st

from skillyard.engine.secrets.redact import MARK, Redaction, _forms

SECRET = "s3cr3t-Value/+?~"


def streamed(redaction: Redaction, data: bytes, cuts: list[int]) -> bytes:
    redactor, out, last = redaction.stream(), b"", 0
    for cut in sorted(c % (len(data) + 1) for c in cuts):
        out += redactor.feed(data[last:cut])
        last = cut
    return out + redactor.feed(data[last:]) + redactor.flush()


@given(st.binary(max_size=60), st.binary(max_size=60), st.lists(st.integers(0, 200), max_size=12))
def test_a_secret_is_replaced_wherever_the_stream_is_cut(before: bytes, after: bytes, cuts: list[int]) -> None:
    data = before + SECRET.encode() + after
    assert streamed(Redaction([SECRET]), data, cuts) == data.replace(SECRET.encode(), MARK)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=12))
def test_bytes_without_a_secret_pass_unchanged(data: bytes, cuts: list[int]) -> None:
    assert streamed(Redaction(["never there at all"]), data, cuts) == data


@given(st.text(min_size=8, max_size=40), st.binary(max_size=9), st.binary(max_size=9), st.booleans())
def test_base64_at_every_alignment_leaves_nothing_to_decode(
    secret: str, before: bytes, after: bytes, urlsafe: bool
) -> None:
    raw = secret.encode()
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    shown = Redaction([secret]).text("x " + encode(before + raw + after).decode() + " y")
    assert MARK.decode() in shown
    assert encode(raw)[:-4].decode() not in shown or len(raw) < 4


def test_the_longer_of_two_secrets_wins_across_a_cut() -> None:
    redaction = Redaction(["token", "token-and-more"])
    assert streamed(redaction, b"a token-and-more b token c", [7, 9]) == b"a [redacted] b [redacted] c"


@given(st.sets(st.text("ab\\n.", min_size=1, max_size=9), min_size=1, max_size=40), st.text("ab\\n.", max_size=60))
def test_at_each_place_the_longest_secret_is_found(secrets: set[str], text: str) -> None:
    forms = sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True)
    plain = re.compile(b"(?=(" + b"|".join(map(re.escape, forms)) + b"))")
    sorted_in = Redaction(secrets)._search
    assert sorted_in is not None
    data = text.encode()
    found = [(m.start(), m.end(m.lastindex or 0)) for m in sorted_in.finditer(data)]
    assert found == [m.span(1) for m in plain.finditer(data)]


def test_many_secrets_change_nothing_in_a_text_without_them() -> None:
    redaction = Redaction(hashlib.sha256(b"%d" % n).hexdigest() for n in range(256))
    log = b"".join(hashlib.sha512(b"%d" % n).hexdigest().encode() for n in range(512))
    assert streamed(redaction, log, [len(log) // 2]) == log


def test_overlapping_secrets_leave_no_rest() -> None:
    assert Redaction(["abcdef", "defghi"]).text("1abcdefghi2") == "1[redacted]2"


@given(st.lists(st.integers(0, 40), max_size=12))
def test_overlapping_secrets_are_one_span_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    redaction = Redaction(["aaaa", "aab-and-more"])
    assert streamed(redaction, b"xaaaaaaaaaaab-and-morex", cuts) == b"x[redacted]x"


@given(
    st.lists(st.sampled_from([b"aaaa", b"aab-and-more", b"a", b"b", b"xyz", b"aab-a"]), max_size=12), st.integers(0, 80)
)
def test_another_redactor_goes_on_where_one_was(words: list[bytes], cut: int) -> None:
    """As a server that attaches does: it reads from the first byte that was held back."""
    redaction, data = Redaction(["aaaa", "aab-and-more"]), b"".join(words)
    first = redaction.stream()
    given = first.feed(data[:cut])
    second = redaction.stream(first.covered)
    rest = second.feed(data[len(data[:cut]) - first.held :]) + second.flush()
    assert given + rest == streamed(redaction, data, [])


def test_json_values_lose_secrets_in_strings_keys_and_numbers() -> None:
    redaction = Redaction(["hunter2", "12345678"])
    value = {"a": ["xhunter2x", {"hunter2": 1}], "n": 12345678, "m": 7, "t": True, "z": None}
    assert redaction.value(value) == {
        "a": ["x[redacted]x", {"[redacted]": 1}],
        "n": "[redacted]",
        "m": 7,
        "t": True,
        "z": None,
    }


def test_escaped_forms_are_found() -> None:
    secret = 'pä"ss\nwörd'
    redaction = Redaction([secret])
    for shown in (json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret)):
        assert "ss" not in redaction.text(shown)


def test_no_secrets_cost_no_copy() -> None:
    value = {"a": 1}
    assert Redaction().value(value) is value
