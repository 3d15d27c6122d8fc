"""The log of a command: streams told apart, their true ends, secrets taken out of each."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.work.record import LogPlace
from skillyard.engine.commands.output import MARK_EVERY, STDERR, STDOUT, Marked, Marker, Unmarker
from skillyard.engine.commands.tails import Live, Silence, Tail, tails_at_end, tails_of
from skillyard.engine.secrets.redact import NOTHING, Redaction
from skillyard.engine.tasks import Tasks

PIECES = st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=40)))
SECRET = "tok-0123456789"


def marked(pieces: list[tuple[str, bytes]]) -> bytes:
    out, marker = bytearray(), Marker()
    for stream, data in pieces:
        marker.add(out, stream, data)
    return bytes(out)


def streams(log: bytes, cut: int = 1 << 20) -> dict[str, bytes]:
    reader, found = Unmarker(), {STDOUT: b"", STDERR: b""}
    for at in range(0, len(log), cut):
        for stream, data in reader.feed(log[at : at + cut]):
            found[stream] += data
    return found


def joined(pieces: list[tuple[str, bytes]]) -> dict[str, bytes]:
    return {stream: b"".join(data for name, data in pieces if name == stream) for stream in (STDOUT, STDERR)}


@given(PIECES, st.integers(1, 7))
def test_streams_come_back_however_the_log_is_cut(pieces: list[tuple[str, bytes]], cut: int) -> None:
    assert streams(marked(pieces), cut) == joined(pieces)


@given(st.binary(max_size=200), st.integers(1, 7))
def test_any_bytes_are_a_log(log: bytes, cut: int) -> None:
    assert streams(log, cut) == streams(log)
    assert len(Unmarker().plain(log)) <= len(log)


def test_a_log_has_a_mark_within_reach_of_every_byte() -> None:
    log = marked([(STDERR, b"x" * (3 * MARK_EVERY))])
    assert max(map(len, log.split(b"\0"))) < MARK_EVERY


@given(st.integers(0, len(SECRET)), st.integers(1, 9))
def test_a_secret_is_found_across_pieces_and_output_of_the_other_stream(split: int, cut: int) -> None:
    raw = SECRET.encode()
    log = marked([(STDOUT, b"a" + raw[:split]), (STDERR, b"between"), (STDOUT, raw[split:] + b"z")])
    redactor = Marked(Redaction([SECRET])).stream()
    out = b"".join(redactor.feed(log[at : at + cut]) for at in range(0, len(log), cut)) + redactor.flush()
    assert streams(out) == {STDOUT: b"a[redacted]z", STDERR: b"between"}


@given(PIECES)
def test_without_secrets_nothing_changes(pieces: list[tuple[str, bytes]]) -> None:
    redactor = Marked(NOTHING).stream()
    assert streams(redactor.feed(marked(pieces)) + redactor.flush()) == joined(pieces)


def test_a_tail_is_the_true_end_and_says_so() -> None:
    tail = Tail(10)
    for _ in range(1000):
        tail.feed(b"0123456789abc")
    assert (tail.text(), tail.truncated, tail.size) == ("3456789abc", True, 13_000)
    exact = Tail(5)
    exact.feed(b"12345")
    assert (exact.text(), exact.truncated) == ("12345", False)


def test_limits_count_bytes_and_cut_no_character() -> None:
    tail = Tail(5)
    tail.feed("xéé€".encode())
    assert tail.text() == "é€"
    assert tail.truncated


@pytest.mark.anyio
async def test_both_tails_are_read_in_one_pass() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        log = marked([(STDOUT, b"a" * 100), (STDERR, b"first"), (STDOUT, b"end")])
        for at in range(0, len(log), 3):
            yield log[at : at + 3]

    tails = await tails_of(pieces(), {STDOUT: 6, STDERR: 100})
    assert {name: (tail.text(), tail.truncated) for name, tail in tails.items()} == {
        STDOUT: ("aaaend", True), STDERR: ("first", False),
    }  # fmt: skip


@given(PIECES, st.lists(st.integers(1, 60), min_size=1), st.integers(0, 400))
def test_a_log_is_the_same_however_its_output_is_cut(
    pieces: list[tuple[str, bytes]], cuts: list[int], longer: int
) -> None:
    log = marked([*pieces, (STDERR, b"y" * longer * 100)])
    whole = Marked(Redaction([SECRET])).stream()
    cut = Marked(Redaction([SECRET])).stream()
    out, at = b"", 0
    for size in itertools.cycle(cuts):
        out, at = out + cut.feed(log[at : at + size * 50]), at + size * 50
        if at >= len(log):
            break
    assert out + cut.flush() == whole.feed(log) + whole.flush()


TOLD = st.lists(
    st.tuples(st.sampled_from([STDOUT, STDERR]), st.sampled_from([SECRET[:5], SECRET[5:], SECRET, "x", "\0", "\0001"]))
)


@given(TOLD, st.integers(0, 200), st.integers(0, 200), st.integers(0, 70_000))
def test_a_reading_goes_on_where_another_was(
    told: list[tuple[str, str]], first: int, second: int, silence: int
) -> None:
    pieces = [(stream, text.encode()) for stream, text in told]
    log = marked([*pieces[:3], (STDOUT, b"s" * silence), *pieces[3:]])
    redaction = Marked(Redaction([SECRET]))
    undisturbed = redaction.stream()
    wanted = undisturbed.feed(log) + undisturbed.flush()
    place, out = LogPlace(), b""
    for read in sorted((min(first + silence, len(log)), min(second + silence, len(log)))):
        redactor = redaction.resumed(place)
        out += redactor.feed(log[place.offset : read])
        place = redactor.place(read)
    last = redaction.resumed(place)
    out += last.feed(log[place.offset :]) + last.flush()
    assert out == wanted
    assert all(SECRET.encode() not in text for text in streams(out).values())


def test_a_reading_without_secrets_reads_nothing_again() -> None:
    log = marked([(STDOUT, b"a" * 300_000), (STDERR, b"b" * 300_000)])
    redactor = Marked(NOTHING).stream()
    for at in range(0, len(log), 10_000):
        redactor.feed(log[at : at + 10_000])
    assert redactor.place(len(log)).offset == len(log)


def test_a_gap_leaves_the_streams_apart() -> None:
    redactor = Marked(Redaction([SECRET])).stream()
    out = redactor.feed(b"\x002" + b"e" * 50)
    held = redactor.break_off()
    assert held >= len(SECRET) - 1
    out += redactor.aside(b"[gap]") + redactor.feed(b"?" * 100 + b"\x002" + b"f" * 100 + b"\x001" + b"." * 100)
    place = redactor.place(1000)
    assert streams(out + redactor.flush()) == {
        STDERR: b"e" * (50 - held) + b"[gap]" + b"f" * (100 - held),
        STDOUT: b"?" * (100 - held) + b"." * 100,
    }
    assert 1000 - 304 <= place.offset <= 1000


@pytest.mark.anyio
@pytest.mark.parametrize(("aside", "reads"), [(10, 1), (40_000, 1), (3 * MARK_EVERY, 2)])
async def test_tails_are_read_from_the_end_as_far_as_they_need(aside: int, reads: int) -> None:
    log = marked([(STDOUT, b"f" * 2_000_000), (STDERR, b"error"), (STDOUT, b"o" * aside), (STDERR, b"last")])
    begun = []

    async def read(offset: int) -> AsyncIterator[bytes]:
        begun.append(offset)
        for at in range(offset, len(log), 5000):
            yield log[at : at + 5000]

    tails = await tails_at_end(read, len(log), {STDOUT: 6, STDERR: 7})
    assert {name: (tail.text(), tail.truncated) for name, tail in tails.items()} == {
        STDOUT: ("oooooo", True), STDERR: ("rorlast", True),
    }  # fmt: skip
    assert len(begun) == reads
    whole = await tails_at_end(read, len(log), {STDOUT: 6, STDERR: 100})
    assert (whole[STDERR].text(), whole[STDERR].truncated) == ("errorlast", False)


async def _nobody(_kind: str, _data: object) -> None:
    return


def test_the_end_of_a_command_at_work_is_at_hand() -> None:
    live = Live(lambda: 5.0, Silence(Tasks(), _nobody, None))
    log = marked([(STDERR, b"e"), (STDOUT, b"out")])
    live.before(log, first=True)
    assert [live.heard_at] == [None]
    live.hear(b"put\x002!")
    told = {name: (tail.text(), tail.truncated) for name, tail in live.tails.items()}
    assert told == {STDOUT: ("output", False), STDERR: ("e!", False)}
    assert live.heard_at is not None
    later = Live(lambda: 5.0, Silence(Tasks(), _nobody, None))
    later.before(b"whose is it?" + log, first=False)
    assert {name: (tail.text(), tail.truncated) for name, tail in later.tails.items()} == {
        STDOUT: ("out", True), STDERR: ("e", True),
    }  # fmt: skip
