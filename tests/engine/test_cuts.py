"""A secret that lies across the place where a text is cut leaves no piece of itself, whatever the text is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from skillyard.domain.egress.session import MOST_REASON, Connection
from skillyard.domain.skill import Needs, SecretNeed
from skillyard.egress.log import Log
from skillyard.engine.failure import MAX_GUEST_MESSAGE, MAX_MESSAGE, MAX_TRACEBACK, SUMMARY_CHARACTERS
from skillyard.engine.redact import Redaction
from skillyard.guest import failure as guest_failure
from skillyard.guest.errors import OutputNotSerializable
from skillyard.guest.result import encode
from tests.engine.conftest import Rig, playing
from tests.engine.fakes import a_skill, frame, raises, result

pytestmark = pytest.mark.anyio

SECRET = "Qz7/Wx9+Vk3~Hj5"
PIECE = 5
"""Characters of it that must not be seen in a row."""
LONG = "".join(f"{n:04d}Qz7/" for n in range(250))
"""A secret so long that what stands in its place brings into view what was cut far behind."""

Write = Callable[[str], bytes]


def _raises(text: str) -> bytes:
    return frame(b"X", guest_failure.describe(ValueError(text)))


def _traceback(text: str) -> bytes:
    return raises("ValueError", "x", traceback=f"Traceback (most recent call last):\n  File\n{text}")


def _real_traceback(text: str) -> bytes:
    code = compile(f"def main():\n    raise ValueError({text!r})\nmain()\n", "main.py", "exec")
    try:
        exec(code, {})
    except ValueError as error:
        return frame(b"X", guest_failure.describe(error))
    raise AssertionError


def _key(text: str) -> bytes:
    try:
        encode({text: {1, 2}}, 1_000_000)
    except OutputNotSerializable as error:
        return frame(b"X", guest_failure.describe(error))
    raise AssertionError


def _own_summary(text: str) -> bytes:
    return result({"summary": text})


def _class_name(text: str) -> bytes:
    return frame(b"X", guest_failure.describe(type(text, (Exception,), {})("x")))


CUTS: dict[str, tuple[Write, tuple[int, ...]]] = {
    "message": (_raises, (200, SUMMARY_CHARACTERS - len("ValueError: "), 1000, MAX_MESSAGE, MAX_GUEST_MESSAGE)),
    "message of one line": (lambda text: raises("V", text), (SUMMARY_CHARACTERS - 3, 1000, MAX_MESSAGE)),
    "traceback": (_traceback, (640, MAX_TRACEBACK)),
    "traceback of the guest": (_real_traceback, (640, MAX_TRACEBACK, guest_failure.MAX_TRACEBACK)),
    "key of an output": (_key, (64, SUMMARY_CHARACTERS, MAX_MESSAGE)),
    "summary": (_own_summary, (SUMMARY_CHARACTERS,)),
}


def pieces_in(kept: str, secret: str = SECRET) -> list[str]:
    return [secret[n : n + PIECE] for n in range(len(secret) - PIECE + 1) if secret[n : n + PIECE] in kept]


def around(boundary: int, length: int = len(SECRET)) -> range:
    return range(max(0, boundary - length - 24), boundary + 4)


async def kept_of(rig: Rig, **more: Any) -> Callable[..., Any]:
    """Runs a skill that has the secret, and gives everything that was kept of the run."""
    rig.skills.add(a_skill("a.b", needs=Needs(secrets=(SecretNeed("TOKEN"),)), **more))
    rig.secrets.values.setdefault("TOKEN", SECRET)

    async def run(said: bytes, *, log: bytes = b"") -> str:
        rig.backend.script = playing(said, log=log)
        made = await rig.call("execute_skill", name="a.b")
        return json.dumps([made, (await rig.record(made)).as_dict()], ensure_ascii=False)

    return run


@pytest.mark.parametrize("cut", CUTS)
async def test_at_each_cut_of_what_a_run_says(rig: Rig, cut: str) -> None:
    write, boundaries = CUTS[cut]
    run = await kept_of(rig)
    for boundary in boundaries:
        for at in around(boundary):
            for behind in (0, 60, 5000):
                kept = await run(write("x" * at + SECRET + "y" * behind))
                assert not pieces_in(kept), (boundary, at, behind)


async def test_at_the_cut_of_the_guest_that_long_secrets_bring_into_view(rig: Rig) -> None:
    rig.secrets.values["TOKEN"] = LONG
    run = await kept_of(rig)
    for at in (0, 1, 7, 190, 191, 192, 193):
        for said in (_raises("x" * at + LONG * 6), _real_traceback("x" * at + LONG * 20)):
            kept = await run(said)
            assert not pieces_in(kept, LONG)
            assert "[redacted]" in kept


async def test_a_secret_as_the_name_of_a_class(rig: Rig) -> None:
    rig.secrets.values["TOKEN"] = name = "Qz7Wx9Vk3Hj5"
    run = await kept_of(rig)
    for at in around(128, len(name)):
        assert not pieces_in(await run(_class_name("x" * at + name)), name)
    assert not pieces_in(await run(_class_name(name)), name)


SCHEMAS: dict[str, tuple[dict[str, Any], Callable[[str], Any], tuple[int, ...]]] = {
    "a value": ({"properties": {"a": {"type": "integer"}}}, lambda text: {"a": text}, (128, 158, 170, 200)),
    "a key": ({"additionalProperties": {"type": "integer"}}, lambda text: {text: "x"}, (64, 128, 160)),
    "a key that is too many": ({"properties": {}, "additionalProperties": False}, lambda text: {text: 1}, (128, 170)),
    "a key that does not fit": ({"propertyNames": {"maxLength": 1}}, lambda text: {text: 1}, (128, 158, 170)),
    "a whole object": ({"not": {}}, lambda text: {"a": text}, (128, 158, 170)),
    "a long value": ({"properties": {"a": {"type": "integer"}}}, lambda text: {"a": text}, (16 * 1024,)),
}


@pytest.mark.parametrize("place", SCHEMAS)
async def test_at_each_cut_of_what_a_schema_says(rig: Rig, place: str) -> None:
    schema, value, boundaries = SCHEMAS[place]
    run = await kept_of(rig, outputs=schema)
    for boundary in boundaries:
        for at in around(boundary):
            for behind in (0, 12, 30, 300):
                kept = await run(result(value("x" * at + SECRET + "y" * behind)))
                assert "ValidationError" in kept
                assert not pieces_in(kept), (boundary, at, behind)


async def test_at_each_cut_of_a_log(rig: Rig) -> None:
    run = await kept_of(rig)
    for boundary in (512, 2048, 5000 - 1500):
        for at in around(boundary):
            kept = await run(result({}), log=b"x" * at + SECRET.encode() + b"y" * (5000 - at))
            assert not pieces_in(kept), at


def test_at_the_cut_of_why_a_connection_failed() -> None:
    """The gate cuts, and knows secrets of the gate only."""
    redaction = Redaction([SECRET])
    for at in around(MOST_REASON):
        log = Log()
        reason = "x" * at + SECRET + "y" * 200
        log.add(Connection(via="http", host="h", port=1, allowed=False, reason=reason))
        [connection] = log.snapshot().connections
        told = redaction.text(connection.reason, whole=len(connection.reason) < MOST_REASON)
        assert not pieces_in(told), at
