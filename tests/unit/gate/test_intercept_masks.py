"""Placeholders and values are found however a stream is cut."""

from __future__ import annotations

import base64
import gc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.network.rule import parse_rule
from skillyard.domain.network.session import PLACEHOLDER_PREFIX, GateSecret, new_placeholder
from skillyard.gate.http.mask import Masker, Masks
from skillyard.gate.http.placeholder import Placeholders
from skillyard.gate.relay.guard import Refused

VALUE = "s3cr3t/+value=with ~odd\\chars"
SECRET = GateSecret("KEY", new_placeholder(), VALUE, (parse_rule("api.test"),))
MASKS = Masks([SECRET])
LONG_FORMS = [form for form, _ in MASKS.forms]

text = st.lists(
    st.one_of(
        st.sampled_from(
            [VALUE.encode(), base64.b64encode(b"u:" + VALUE.encode()), VALUE[:9].encode(), VALUE[:2].encode()]
        ),
        st.binary(max_size=12),
    ),
    max_size=8,
).map(b"".join)
cuts = st.lists(st.integers(0, 400), max_size=20)


def pieces(data: bytes, at: list[int]) -> list[bytes]:
    ends = [0, *sorted(min(end, len(data)) for end in at), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


@given(text, cuts)
def test_no_cut_lets_a_value_through(data: bytes, at: list[int]) -> None:
    masker = Masker(MASKS)
    out = b"".join(map(masker.feed, pieces(data, at))) + masker.flush()
    assert not any(form in out for form in LONG_FORMS)
    assert out.count(SECRET.placeholder.encode()) == MASKS.once(data).count(SECRET.placeholder.encode())


@given(text, cuts)
def test_a_mask_that_fits_keeps_every_length(data: bytes, at: list[int]) -> None:
    masker = Masker(MASKS, fit=True)
    out = b"".join(map(masker.feed, pieces(data, at))) + masker.flush()
    assert len(out) == len(data)
    assert not any(form in out for form in LONG_FORMS)


@given(st.binary(max_size=400), cuts)
def test_all_else_is_as_it_was(data: bytes, at: list[int]) -> None:
    masker = Masker(MASKS)
    assert b"".join(map(masker.feed, pieces(data, at))) + masker.flush() == data


@given(text, st.sampled_from(LONG_FORMS), st.data())
def test_what_waits_says_nothing_of_a_value(before: bytes, form: bytes, drawn: st.DataObject) -> None:
    """Who has a server repeat a guess sees as much of a right one as of a wrong one."""
    right = form[: drawn.draw(st.integers(1, len(form) - 1))]
    wrong = bytes(255 - byte for byte in right)
    few = len(right) <= min(len(form) // 2 for form in LONG_FORMS if form.startswith(right))
    shown = []
    for guess in (right, wrong):
        masker = Masker(MASKS)
        shown.append((len(masker.feed(before + b"\0" + guess)), few and len(masker.pause())))
    assert shown[0] == shown[1]


@given(text, cuts)
def test_a_pause_lets_go_all_but_what_nobody_guesses(data: bytes, at: list[int]) -> None:
    masker = Masker(MASKS)
    out = b""
    for piece in pieces(data, at):
        out += masker.feed(piece) + masker.pause()
        assert not masker.holding
        assert not masker.pause()
    kept = masker.flush()
    shortest = min(map(len, LONG_FORMS))
    assert not any(out.endswith(form[: len(form) // 2 + 1]) for form in LONG_FORMS)
    assert not kept or any(kept in form for form in LONG_FORMS)
    assert len(kept) <= max(map(len, LONG_FORMS)) - shortest // 2
    assert not any(form in out + kept for form in LONG_FORMS)


@given(st.binary(max_size=60), st.integers(0, 3), cuts)
def test_no_cut_hides_a_placeholder(around: bytes, before: int, at: list[int]) -> None:
    placeholders = Placeholders([SECRET])
    for form in (SECRET.placeholder.encode(), base64.b64encode(b"x" * before + SECRET.placeholder.encode() + b"y")):
        scanner = placeholders.scanner()
        assert "KEY" in [scanner.feed(piece) for piece in pieces(around + form + around, at)]


def test_short_values_are_masked_too() -> None:
    masks = Masks([GateSecret("KEY", "placeholder", "pw1")])
    assert masks.once(b"<pw1>") == b"<placeholder>"


SHOWN = "a&<>\"'/+=` é𝄞\\z"
"""Whatever some writer shows otherwise than it is. What each makes of it is written out here."""
WRITTEN = {
    "as it is": SHOWN,
    "JSON": r"""a&<>\"'/+=` \u00e9\ud834\udd1e\\z""",
    "JSON in UTF-8": r"""a&<>\"'/+=` é𝄞\\z""",
    "JSON with slashes escaped, as PHP": r"""a&<>\"'\/+=` \u00e9\ud834\udd1e\\z""",
    "JSON of Go and of Rails": r"""a\u0026\u003c\u003e\"'/+=` é𝄞\\z""",
    "JSON of .NET": r"""a\u0026\u003C\u003E\u0022\u0027/\u002B=\u0060 \u00E9\uD834\uDD1E\\z""",
    "HTML text": """a&amp;&lt;&gt;"'/+=` é𝄞\\z""",
    "HTML of Python and React": "a&amp;&lt;&gt;&quot;&#x27;/+=` é𝄞\\z",
    "HTML of Rails": "a&amp;&lt;&gt;&quot;&#39;/+=` é𝄞\\z",
    "HTML of PHP": "a&amp;&lt;&gt;&quot;&#039;/+=` é𝄞\\z",
    "HTML of Go and Jinja": "a&amp;&lt;&gt;&#34;&#39;/+=` é𝄞\\z",
    "HTML of Go's templates": "a&amp;&lt;&gt;&#34;&#39;/&#43;=` é𝄞\\z",
    "HTML of .NET": "a&amp;&lt;&gt;&quot;&#x27;/&#x2B;=&#x60; &#xE9;&#x1D11E;\\z",
    "HTML of Handlebars": "a&amp;&lt;&gt;&quot;&#x27;/+&#x3D;&#x60; é𝄞\\z",
    "HTML of Mustache": "a&amp;&lt;&gt;&quot;&#39;&#x2F;+&#x3D;&#x60; é𝄞\\z",
    "percent": "a%26%3C%3E%22%27%2F%2B%3D%60%20%C3%A9%F0%9D%84%9E%5Cz",
    "percent in small letters": "a%26%3c%3e%22%27%2f%2b%3d%60%20%c3%a9%f0%9d%84%9e%5cz",
    "percent in a path": "a%26%3C%3E%22%27/%2B%3D%60%20%C3%A9%F0%9D%84%9E%5Cz",
    "a form": "a%26%3C%3E%22%27%2F%2B%3D%60+%C3%A9%F0%9D%84%9E%5Cz",
    "base64": base64.b64encode(SHOWN.encode()).decode(),
    "base64 behind a name": base64.b64encode(b"user:" + SHOWN.encode() + b";").decode(),
    "base64 for URLs": base64.urlsafe_b64encode(b"\xff" + SHOWN.encode()).decode(),
}


@pytest.mark.parametrize("writer", WRITTEN)
def test_what_is_promised_is_masked_however_it_is_cut(writer: str) -> None:
    masks = Masks([GateSecret("KEY", "placeholder", SHOWN)])
    said = f"<{WRITTEN[writer]}>".encode()
    for cut in range(len(said)):
        masker = Masker(masks)
        shown = masker.feed(said[:cut]) + masker.feed(said[cut:]) + masker.flush()
        assert b"placeholder" in shown
        if not writer.startswith("base64"):  # whose ends are mixed with what stands beside
            assert shown == b"<placeholder>"


def test_lines_of_a_long_value_are_masked() -> None:
    value = "-----BEGIN KEY-----\nMIGHAgEAMBMGByqGSM49AgEG\nCCqGSM49AwEHBG0wawIBAQQg\n-----END KEY-----\n"
    masks = Masks([GateSecret("KEY", "placeholder", value)])
    assert b"CCqGSM49AwEHBG0w" not in masks.once(b"x CCqGSM49AwEHBG0wawIBAQQg y")


def test_placeholders_differ_and_need_no_quoting() -> None:
    first, second = new_placeholder(), new_placeholder()
    assert first != second
    assert first.startswith(PLACEHOLDER_PREFIX)
    assert first.replace("-", "").isalnum()


def test_too_much_in_one_request_is_refused() -> None:
    large = GateSecret("KEY", new_placeholder(), "x" * 60_000, (parse_rule("api.test"),))
    fields = [(b"Cookie", large.placeholder.encode() * 5)]
    with pytest.raises(Refused, match="more than"):
        Placeholders([large]).substitute(b"/", fields, [large])


def test_nothing_shows_a_value() -> None:
    placeholders = Placeholders([SECRET])
    shown = (SECRET, placeholders, MASKS, placeholders.scanner(), Masker(MASKS))
    assert not any(VALUE in repr(each) for each in shown)


def test_what_is_forgotten_is_gone() -> None:
    value = new_placeholder()  # any string that is only here
    secret = GateSecret("KEY", new_placeholder(), value, (parse_rule("api.test"),))
    placeholders = Placeholders([secret])
    placeholders.forget()
    del secret
    gc.collect()
    assert not any(isinstance(each, GateSecret) and each.value == value for each in gc.get_objects())
    assert not placeholders.bound("api.test", 443)
