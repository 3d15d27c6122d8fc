"""The host's reader of the channel: whatever comes, it gives checked frames or one clear fault."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.foreign_json import MAX_DEPTH
from skillyard.domain.sandbox.frames import (
    PIECE,
    BlobAbandon,
    BlobBegin,
    BlobData,
    BlobEnd,
    Failure,
    Frame,
    FrameFault,
    FrameLimits,
    FrameReader,
    Result,
    ResultFault,
)


def frame(kind: str, payload: bytes | dict[str, Any]) -> bytes:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return kind.encode() + len(data).to_bytes(4, "big") + data


def begin(n: int, kind: str = "text/plain") -> bytes:
    return frame("B", {"n": n, "kind": kind})


def piece(n: int, data: bytes) -> bytes:
    return frame("D", n.to_bytes(4, "big") + data)


def end(n: int, size: int) -> bytes:
    return frame("E", {"n": n, "size": size})


def read(data: bytes, limits: FrameLimits | None = None, *, size: int | None = None) -> tuple[list[Frame], str | None]:
    """The frames and the fault, fed in pieces of ``size``."""
    reader = FrameReader(limits or FrameLimits())
    frames: list[Frame] = []
    try:
        for start in range(0, len(data), size or len(data) or 1):
            frames += reader.feed(data[start : start + (size or len(data))])
        reader.finish()
    except FrameFault as fault:
        return frames, str(fault)
    return frames, None


WHOLE = begin(1) + piece(1, b"ab") + begin(2, "text/csv; header=present") + piece(2, b"x") + piece(1, b"c") + end(1, 3)
WHOLE += frame("A", {"n": 2}) + begin(5) + end(5, 0) + frame("R", b'{"a": 1}')


@pytest.mark.parametrize("size", [None, 1, 2, 7, 64])
def test_an_honest_channel(size: int | None) -> None:
    assert read(WHOLE, size=size) == (
        [
            BlobBegin(1, "text/plain"),
            BlobData(1, b"ab"),
            BlobBegin(2, "text/csv; header=present"),
            BlobData(2, b"x"),
            BlobData(1, b"c"),
            BlobEnd(1, 3),
            BlobAbandon(2),
            BlobBegin(5, "text/plain"),
            BlobEnd(5, 0),
            Result(b'{"a": 1}'),
        ],
        None,
    )


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_another_reader_goes_on_from_the_last_place(length: int) -> None:
    """As a server that attaches does: what the first reader gave before the place, and the second behind it."""
    first = FrameReader()
    given = first.feed(WHOLE[:length])
    place = first.place
    second = FrameReader(place=place)
    rest = second.feed(WHOLE[place.offset :])
    whole, _ = read(WHOLE)
    assert whole[len(whole) - len(rest) :] == rest
    assert given[: len(whole) - len(rest)] == whole[: len(whole) - len(rest)]
    ended = [frame for frame in whole[: len(whole) - len(rest)] if isinstance(frame, BlobEnd)]
    assert place.ended == len(ended)
    assert second.finish() == Result(b'{"a": 1}')


def test_limits_count_on_behind_a_place() -> None:
    limits = FrameLimits(blobs=2, blob_bytes=5)
    first = FrameReader(limits)
    first.feed(begin(1) + piece(1, b"abc") + end(1, 3))
    for more, sentence in [
        (begin(1), "blob 1 begins after blob 1"),
        (begin(2) + piece(2, b"abc"), "together larger than 5 bytes"),
        (begin(2) + end(2, 0) + begin(3), "more than 2 blobs"),
    ]:
        second = FrameReader(limits, first.place)
        second.feed(more)
        with pytest.raises(FrameFault, match=sentence):
            second.finish()


def test_there_is_no_place_behind_a_file() -> None:
    reader = FrameReader()
    reader.feed(begin(1) + end(1, 0))
    place = reader.place
    reader.feed(frame("B", {"n": 2, "kind": "a/b", "path": "a.txt"}) + end(2, 0) + begin(3) + end(3, 0))
    assert place.offset
    assert reader.place is place


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_killed_guest_has_said_nothing_more(length: int) -> None:
    reader = FrameReader()
    reader.feed(WHOLE[:length])
    assert reader.finish() is None


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"Z", "unknown type 0x5a"),
        (b"\0\0\0\0\0", "unknown type 0x00"),
        (b"R\xff\xff\xff\xff", "a frame R is 4294967295 bytes long, and 16777216 is the limit"),
        (b"B\0\0\x20\x00", "a frame B is 8192 bytes long, and 4096 is the limit"),
        (b"D\0\x10\x00\x05", "a frame D is 1048581 bytes long"),
        (b"X\x01\0\0\0", "a frame X is"),
        (frame("R", b"{}") + b"R", "after the last frame"),
        (frame("X", {"type": "E"}) + begin(1), "after the last frame"),
        (begin(0), "blob 0 begins after blob 0"),
        (begin(1) + begin(1), "blob 1 begins after blob 1"),
        (begin(3) + begin(2), "blob 2 begins after blob 3"),
        (begin(2**31), "begins after blob 0"),
        (frame("B", {"n": True, "kind": "a/b"}), "'n' of a frame B is not a count"),
        (frame("B", {"n": 1.0, "kind": "a/b"}), "'n' of a frame B is not a count"),
        (frame("B", {"n": "1", "kind": "a/b"}), "'n' of a frame B is not a count"),
        (frame("B", {"kind": "a/b"}), "'n' of a frame B is not a count"),
        (frame("B", b'{"n": 1' + b"0" * 4000 + b"}"), "is not a count"),
        (frame("B", {"n": 1}), "the kind of blob 1 is not a MIME type"),
        (begin(1, "text"), "the kind of blob 1 is not a MIME type"),
        (begin(1, "text/plain\nX: y"), "the kind of blob 1 is not a MIME type"),
        (begin(1, "text/plain\n"), "the kind of blob 1 is not a MIME type"),
        (begin(1, "a/" + "b" * 300), "the kind of blob 1 is not a MIME type"),
        (frame("B", b"[]"), "is not a JSON object"),
        (frame("B", b"\xff"), "cannot be read: it is not UTF-8"),
        (frame("B", '{"n": 1}'.encode("utf-16")), "it is not UTF-8"),
        (frame("B", b"{" * 4096), "cannot be read"),
        (frame("X", b"[" * 200_000), "nested too deep"),
        (frame("B", b'{"n": NaN}'), "JSON has no NaN"),
        (piece(1, b"x"), "data for blob 1, which is not open"),
        (begin(1) + end(1, 0) + piece(1, b"x"), "data for blob 1, which is not open"),
        (begin(1) + piece(1, b""), "a frame D holds no data"),
        (begin(1) + frame("D", b"\0\0"), "a frame D holds no data"),
        (end(1, 0), "an end of blob 1, which is not open"),
        (frame("A", {"n": 4}), "an end of blob 4, which is not open"),
        (begin(1) + piece(1, b"abc") + end(1, 4), "blob 1 ends as 4 bytes, and 3 came"),
        (begin(1) + frame("E", {"n": 1, "size": -1}), "'size' of a frame E is not a count"),
        (begin(1) + frame("E", {"n": 1, "size": 10**30}), "'size' of a frame E is not a count"),
    ],
)
def test_what_breaks_the_protocol(data: bytes, sentence: str) -> None:
    fault = read(data)[1]
    assert fault is not None
    assert sentence in fault
    assert read(data, size=1) == read(data)


@pytest.mark.parametrize(
    ("limits", "data", "sentence"),
    [
        (FrameLimits(blobs=1), begin(1) + end(1, 0) + begin(2), "more than 1 blobs"),
        (FrameLimits(open_blobs=1), begin(1) + begin(2), "more than 1 blobs at once"),
        (FrameLimits(blob_bytes=3), begin(1) + piece(1, b"ab") + begin(2) + piece(2, b"ab"), "larger than 3 bytes"),
        (FrameLimits(result_bytes=3), frame("R", b"null"), "4 bytes long, and 3 is the limit"),
    ],
)
def test_limits(limits: FrameLimits, data: bytes, sentence: str) -> None:
    fault = read(data, limits)[1]
    assert fault is not None
    assert sentence in fault


def test_a_fault_stays() -> None:
    reader = FrameReader()
    assert reader.feed(begin(1) + b"Z" + frame("R", b"{}")) == [BlobBegin(1, "text/plain")]
    for again in (lambda: reader.feed(b""), reader.finish, lambda: reader.feed(frame("R", b"{}"))):
        with pytest.raises(FrameFault, match="unknown type"):
            again()


def test_a_frame_that_is_too_long_is_refused_before_it_comes() -> None:
    reader = FrameReader()
    reader.feed(b"R" + (2**31).to_bytes(4, "big"))
    with pytest.raises(FrameFault):
        reader.finish()


@pytest.mark.parametrize(
    ("report", "failure"),
    [
        ({"type": "ValueError", "message": "m", "traceback": "t"}, Failure("ValueError", "m", "t")),
        ({"type": "OSError", "message": "m", "errno": 28}, Failure("OSError", "m", errno=28)),
        ({"type": "Ünïcode", "message": ""}, Failure("Ünïcode", "")),
        ({}, Failure("Exception", "")),
        ({"type": "two words", "message": 3, "traceback": []}, Failure("Exception", "")),
        ({"type": "x" * 129, "message": "a\ud800b"}, Failure("Exception", "a\ufffdb")),
        ({"type": "E", "message": "m", "errno": True}, Failure("E", "m")),
        ({"type": "E", "message": "m", "errno": -1}, Failure("E", "m")),
    ],
)
def test_reports_are_made_safe(report: dict[str, Any], failure: Failure) -> None:
    assert read(frame("X", report)) == ([failure], None)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"{}", {}),
        ('{"é": [1, 2.5, null, true, "ü"]}'.encode(), {"é": [1, 2.5, None, True, "ü"]}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'{"\\ud800": ["\\udfff", "\\ud83d\\ude00"]}', {"\ufffd": ["\ufffd", "😀"]}),
        (b'{"deep": ' + b"[" * 255 + b"]" * 255 + b"}", None),
        (b'{"brackets": "' + b"[" * 1000 + b'\\"' + b"{" * 1000 + b'"}', None),
    ],
)
def test_results_that_can_be_passed_on(raw: bytes, value: object) -> None:
    found = Result(raw).value()
    assert value is None or found == value
    json.dumps(found, allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b'"text"',
        b"{",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"[" * (MAX_DEPTH) + b"]" * MAX_DEPTH + b"}",
        b'{"a":' * 100_000,
        b"[" * 1_000_000,
        b'{"a": "\xff"}',
        '{"a": 1}'.encode("utf-16"),
        b'{"a": 1} {"b": 2}',
    ],
)
def test_results_that_cannot(raw: bytes) -> None:
    with pytest.raises(ResultFault):
        Result(raw).value()


frames = st.one_of(
    st.builds(begin, st.integers(-1, 6), st.sampled_from(["text/plain", "a/b", "none"])),
    st.builds(piece, st.integers(0, 6), st.binary(max_size=20)),
    st.builds(end, st.integers(0, 6), st.integers(-1, 40)),
    st.builds(lambda n: frame("A", {"n": n}), st.integers(0, 6)),
    st.builds(frame, st.sampled_from("BDEARX"), st.binary(max_size=12)),
    st.builds(lambda text: frame("X", {"type": text, "message": text}), st.text(max_size=8)),
    st.just(frame("R", b"{}")),
    st.binary(max_size=8),
)


@given(st.lists(frames, max_size=12).map(b"".join), st.integers(1, 50))
def test_cutting_changes_nothing_and_only_faults_are_raised(data: bytes, size: int) -> None:
    assert read(data, size=size) == read(data)


@given(st.lists(frames, max_size=16).map(b"".join))
def test_what_is_given_is_consistent(data: bytes) -> None:
    found, _ = read(data)
    sizes: dict[int, int] = {}
    seen = 0
    for event in found:
        match event:
            case BlobBegin(n):
                assert n > seen
                seen, sizes[n] = n, 0
            case BlobData(n, piece_):
                assert 0 < len(piece_) <= PIECE
                sizes[n] += len(piece_)
            case BlobEnd(n, size):
                assert sizes.pop(n) == size
            case BlobAbandon(n):
                del sizes[n]
            case Result() | Failure():
                assert event is found[-1]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
        lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
    )
)
def test_any_result_is_a_clean_object_or_a_fault(value: Any) -> None:
    try:
        found = Result(json.dumps(value).encode()).value()
    except ResultFault:
        return
    json.dumps(found, allow_nan=False, ensure_ascii=False).encode()


@given(st.binary(max_size=200))
def test_any_bytes_as_a_result(raw: bytes) -> None:
    with contextlib.suppress(ResultFault):
        assert isinstance(Result(raw).value(), dict)
