"""A secret that lies across the place where a text is cut leaves no piece of itself, whatever the text is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.network.session import MOST_REASON, Connection
from skillyard.domain.skill.skill import Needs, SecretNeed
from skillyard.domain.work.record import Ending, Outcome
from skillyard.engine.runs.failure import MAX_GUEST_MESSAGE, MAX_MESSAGE, MAX_TRACEBACK, SUMMARY_CHARACTERS
from skillyard.engine.secrets.redact import Redaction
from skillyard.gate.session import Log
from skillyard.guest import failure as guest_failure
from skillyard.guest.errors import OutputNotSerializable
from skillyard.guest.output_files import send_left
from skillyard.guest.result import encode
from skillyard.testing.twin_sandbox import Script, TwinProcess
from tests.unit.engine.conftest import Rig, playing
from tests.unit.engine.fakes import a_skill, frame, js, raises, result

pytestmark = pytest.mark.anyio

SECRET = "Qz7/Wx9+Vk3~Hj5"
PIECE = 5
"""Characters of it that must not be seen in a row."""
LONG = "".join(f"{n:04d}Qz7/" for n in range(250))
"""A secret so long that what stands in its place brings into view what was cut far behind."""

Write = Callable[[str], bytes]
Texts = Iterator[str]


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


def texts(
    boundaries: Iterable[int], behind: tuple[int, ...], secret: str = SECRET, *, all_pairs: bool
) -> Iterator[str]:
    """Yields texts with the secret at places around each boundary, and with each length of ``behind`` after it.

    These are all pairs of a place and a length, or every third place, where the lengths take turns: a cut that
    leaves a piece does so at several places in a row, as many as the secret has characters beyond a piece.
    """
    for number, boundary in enumerate(boundaries):
        for turn, at in enumerate(around(boundary, len(secret))):
            if all_pairs:
                yield from ("x" * at + secret + "y" * length for length in behind)
            elif turn % 3 == number % 3:
                yield "x" * at + secret + "y" * behind[turn // 3 % len(behind)]


ALL_PAIRS = pytest.mark.parametrize(
    "all_pairs", [False, pytest.param(True, marks=(pytest.mark.long, pytest.mark.timeout(1800)))]
)


async def kept_of(rig: Rig, **more: Any) -> Callable[..., Any]:
    """Runs a skill that has the secret, and gives everything that was kept of the run."""
    rig.skills.add(a_skill("a.b", needs=Needs(secrets=(SecretNeed("TOKEN"),)), **more))
    rig.secrets.values.setdefault("TOKEN", SECRET)

    async def run(said: bytes, *, log: bytes = b"", script: Script | None = None) -> str:
        rig.backend.script = script or playing(said, log=log)
        made = await rig.call("execute_skill", name="a.b")
        return json.dumps(made, ensure_ascii=False) + repr(await rig.record(made))

    return run


@ALL_PAIRS
@pytest.mark.parametrize("cut", CUTS)
async def test_at_each_cut_of_what_a_run_says(rig: Rig, cut: str, all_pairs: bool) -> None:
    write, boundaries = CUTS[cut]
    run = await kept_of(rig)
    for text in texts(boundaries, (0, 60, 5000), all_pairs=all_pairs):
        assert not pieces_in(await run(write(text))), text


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


@ALL_PAIRS
@pytest.mark.parametrize("place", SCHEMAS)
async def test_at_each_cut_of_what_a_schema_says(rig: Rig, place: str, all_pairs: bool) -> None:
    schema, value, boundaries = SCHEMAS[place]
    run = await kept_of(rig, outputs=schema)
    for text in texts(boundaries, (0, 12, 30, 300), all_pairs=all_pairs):
        kept = await run(result(value(text)))
        assert "ValidationError" in kept
        assert not pieces_in(kept), text


NAME = "Qz7Wx9Vk3Hj5"
"""One that can be a part of a file's name."""


def _left_by_guest(directory: Path, names: Iterable[str]) -> bytes:
    """What the guest says of files that it does not send."""
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "out").mkdir(parents=True)
    for name in names:
        (directory / name).write_text("x")
        (directory / "out" / name).symlink_to("/")
    return frame(b"N", js(send_left(str(directory), {}, None)))  # type: ignore[arg-type] # nothing is sent


@ALL_PAIRS
async def test_at_each_cut_of_a_files_name(rig: Rig, tmp_path: Path, all_pairs: bool) -> None:
    rig.secrets.values["TOKEN"] = NAME
    run = await kept_of(rig)
    for text in texts((37, 60, 100, 160), (0, 20, 40, 50, 60, 70, 100), NAME, all_pairs=all_pairs):
        name, directory = text[:255], text[: text.index(NAME)].replace("x", "d")
        said = [_left_by_guest(tmp_path / "w", [name])]
        said.append(frame(b"N", js({"others": [name], "skipped": [[f"{directory}/{name}", "kind"]]})))
        for notes in said:
            kept = await run(notes + result({}))
            assert "not kept: " in kept
            assert not pieces_in(kept, NAME), name


async def test_a_secret_that_cannot_be_shown_as_it_is_in_a_files_name(rig: Rig) -> None:
    rig.secrets.values["TOKEN"] = secret = "Qz7Wx\t9Vk3Hj5\x7fPq2Rs8"
    run = await kept_of(rig)
    kept = await run(frame(b"N", js({"others": [secret], "skipped": [[secret, "name"]]})) + result({}))
    assert "[redacted]" in kept
    assert not [piece for piece in ("Qz7Wx", "9Vk3Hj5", "Pq2Rs8") if piece in kept]


async def test_a_secret_in_the_path_of_a_file_that_comes_back(rig: Rig) -> None:
    rig.secrets.values["TOKEN"] = NAME
    run = await kept_of(rig)
    begin = frame(b"B", js({"n": 1, "kind": "text/plain", "path": f"{NAME}/a{NAME}.txt"}))
    kept = await run(begin + frame(b"E", js({"n": 1, "size": 0})) + result({}))
    assert '"[redacted]/a[redacted].txt"' in kept
    assert not pieces_in(kept, NAME)


async def test_at_each_cut_of_the_stack_of_a_timeout(rig: Rig) -> None:
    run = await kept_of(rig)

    async def time_out(process: TwinProcess) -> None:
        process.end(Ending(Outcome.TIMEOUT))

    for boundary in (300, SUMMARY_CHARACTERS - 60, MAX_MESSAGE):
        for at in around(boundary):
            line = f'  File "{"x" * at}{SECRET}", line 1, in main\n'
            notes = frame(b"N", js({"stack": f"Stack (most recent call last):\n{line}"}))
            rig.backend.left = playing(notes, result({}))
            kept = await run(b"", script=time_out)
            assert "it was at: " in kept
            assert not pieces_in(kept), (boundary, at)


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
