"""Log previews, and text that is cut between characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.engine.runs.log import HEAD, MAX, Preview
from skillyard.engine.text import cut_head, cut_tail, shorten
from tests.unit.engine.conftest import Rig, playing
from tests.unit.engine.fakes import result


def previewed(*pieces: bytes) -> str:
    preview = Preview()
    for piece in pieces:
        preview.feed(piece)
    return preview.text()


def test_a_short_log_is_shown_whole() -> None:
    assert previewed(b"a" * MAX) == "a" * MAX
    assert previewed() == ""


def test_a_long_log_keeps_its_start_and_its_end() -> None:
    log = b"".join(f"line {number}\n".encode() for number in range(10_000))
    text = previewed(log)
    assert len(text.encode()) <= MAX
    assert text.encode()[:HEAD] == log[:HEAD]
    head, marker, tail = text.rpartition(" bytes left out ...]\n")
    assert marker
    assert log.endswith(tail.encode())
    left_out = int(head.rpartition("[... ")[2])
    assert left_out == len(log) - HEAD - len(tail.encode())


@given(st.lists(st.binary(max_size=700) | st.text(max_size=700).map(str.encode), max_size=12))
def test_any_bytes_give_a_valid_preview_however_they_are_cut(pieces: list[bytes]) -> None:
    text = previewed(*pieces)
    assert len(text.encode()) <= MAX
    assert text == previewed(b"".join(pieces))


@given(st.text(), st.integers(0, 60))
def test_cuts_fall_between_characters(text: str, size: int) -> None:
    data = text.encode("utf-8", "replace")
    cut_head(data[:size]).decode()
    cut_tail(data[-size:] if size else b"").decode()
    short = shorten(text, size)
    assert len(short.encode()) <= size
    assert text.encode("utf-8", "replace").decode().startswith(short)


@pytest.mark.anyio
async def test_the_full_log_is_a_blob_and_not_among_the_outputs(rig: Rig) -> None:
    log = b"x" * 700_000
    run = await rig.run(playing(result({}), log=log))
    assert await rig.content(run["logs_blob"]) == log
    assert run["logs_blob"] not in run["output_blobs"]
    assert len(run["logs_preview"].encode()) <= MAX
    info = await rig.app.ports.blobs.stat(run["logs_blob"])
    assert info is not None
    assert (info.kind, info.owner, info.run_id) == ("text/plain", "local", run["run_id"])


@pytest.mark.anyio
async def test_no_log_makes_no_blob(rig: Rig) -> None:
    run = await rig.run(playing(result({})))
    assert (run["logs_preview"], "logs_blob" in run) == ("", False)


@pytest.mark.anyio
async def test_logs_come_in_pages_that_end_between_characters(rig: Rig) -> None:
    text = "aé漢😀\n" * 50
    run = await rig.run(playing(result({}), log=text.encode()))
    seen, offset, complete = "", 0, False
    while not complete:
        page = await rig.call("runs.logs", run_id=run["run_id"], offset=offset, max_bytes=9)
        seen, offset, complete = seen + page["content"], page["next_offset"], page["complete"]
    assert seen == text
