"""Callbacks: their URLs, their signature by the example of Standard Webhooks, and the pauses between tries."""

from __future__ import annotations

import pytest

from skillyard.domain.errors import InvalidInput
from skillyard.domain.work.callback import GIVEN_UP, PENDING, Callback, after, parse_url, signed


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("https://x.org", (True, "x.org", 443, "/")),
        ("http://X.org:8080/a/b?c=d", (False, "x.org", 8080, "/a/b?c=d")),
        ("https://[2001:db8::1]/", (True, "2001:db8::1", 443, "/")),
    ],
)
def test_a_url_says_where_to(url: str, wanted: tuple[bool, str, int, str]) -> None:
    target = parse_url(url)
    assert (target.secure, target.host, target.port, target.path) == wanted


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x.org/", "//x.org/", "x.org", "https://", "https://u:p@x.org/", "https://x.org/#f", "https://x.org:0/",
        "https://x.org:70000/", "https://0x7f.1/", "https://2130706433/", "https://x.org/a b", "https://x.org/\r\nA: b",
        "https://ü.org/", "https://x.org/" + "a" * 2048, "https://[::1", "https://x.org\\@y.org/",
    ],
)  # fmt: skip
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="callback_url"):
        parse_url(url)


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The vector of the reference libraries."""
    secret, id, at = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
    fields = signed(secret, id, at, b'{"test": 2432232314}')
    assert fields["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert (fields["webhook-id"], fields["webhook-timestamp"]) == (id, str(at))
    assert signed("plain", id, at, b"")["webhook-signature"] != fields["webhook-signature"]


def test_pauses_grow_and_end() -> None:
    callback, waits = Callback("run_1"), []
    while (callback := after(callback, 100.0, "HTTP 500", most=8)).state == PENDING:
        assert callback.next_at is not None
        waits.append(callback.next_at - 100.0)
    assert waits == [5, 30, 120, 600, 3600, 21600, 21600]
    assert (callback.state, callback.tries, callback.next_at) == (GIVEN_UP, 8, None)
