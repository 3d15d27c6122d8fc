"""``runtime.blobs`` and ``runtime.log`` (skills-protocol §10)."""

from __future__ import annotations

import os
import subprocess

import pytest

from skillyard.domain.sandbox.frames import BlobAbandon, BlobData, FrameReader
from skillyard.domain.sandbox.spec import encode_request
from tests.conformance.guest.conftest import PREFIX, PYTHON, GuestBox

MIB = 1024 * 1024


def calling(expression: str) -> str:
    return f"from runtime import blobs, log\ndef main(args):\n    return {expression}\n"


@pytest.mark.parametrize(
    ("expression", "kind", "data"),
    [
        ("blobs.write_text('hé')", "text/plain", "hé".encode()),
        ("blobs.write_text('a,b', 'text/csv')", "text/csv", b"a,b"),
        ("blobs.write_text('x', kind='text/markdown; charset=utf-8')", "text/markdown; charset=utf-8", b"x"),
        ("blobs.write_json({'é': [1, None]})", "application/json", '{"é":[1,null]}'.encode()),
        ("blobs.write_bytes(b'\\x00\\xff')", "application/octet-stream", b"\0\xff"),
        ("blobs.write_bytes(bytearray(b'ab'), 'image/png')", "image/png", b"ab"),
        ("blobs.write_bytes(memoryview(b'abcd')[::2], 'image/png')", "image/png", b"ac"),
        ("blobs.write_bytes(b'')", "application/octet-stream", b""),
        ("blobs.write_bytes(bytes(range(256)) * 1024)", "application/octet-stream", bytes(range(256)) * 1024),
    ],
)
def test_what_is_written_arrives(box: GuestBox, expression: str, kind: str, data: bytes) -> None:
    ran = box.call(calling(expression))
    assert ran.value == {"result": PREFIX + "1"}
    assert ran.blobs == {1: (kind, data)}


def test_a_file_can_be_written_as_a_blob(box: GuestBox) -> None:
    (box.workspace / "report.pdf").write_bytes(b"%PDF" * 100_000)
    ran = box.call(calling("blobs.write_file('report.pdf', 'application/pdf')"))
    assert ran.blobs == {1: ("application/pdf", b"%PDF" * 100_000)}


def test_a_missing_file_makes_no_blob(box: GuestBox) -> None:
    ran = box.call(calling("blobs.write_file('nothing.pdf')"))
    assert (ran.failure.type, ran.blobs) == ("FileNotFoundError", {})


def test_input_blobs_can_be_read_every_way(box: GuestBox) -> None:
    box.mount_blob("blob:sheet-1", '{"é": 1}'.encode(), "application/json")
    code = calling(
        "[blobs.read_text(b), blobs.read_json(b), len(blobs.read_bytes(b)), open(blobs.path(b)).read(),"
        " list(iter(lambda f=blobs.open(b): f.read(5).decode('latin-1'), ''))]"
    ).replace("return", "b = args['blob']\n    return")
    value = box.call(code, args={"blob": "blob:sheet-1"}).value
    assert value == {"result": ['{"é": 1}', {"é": 1}, 9, '{"é": 1}', ['{"Ã©"', ": 1}"]]}


@pytest.mark.parametrize(
    ("blob_id", "message"),
    [
        ("blob:other", "blob 'blob:other' is not mounted in this run; name it in input_blobs (mounted: blob:mine)"),
        ("mine", "is not mounted"),
        ("blob:../request", "is not mounted"),
        ("/etc/passwd", "is not mounted"),
        (PREFIX + "7", "is not mounted"),
        (3, "a blob id is a str, not int"),
    ],
)
def test_other_blobs_cannot_be_read(box: GuestBox, blob_id: object, message: str) -> None:
    box.mount_blob("blob:mine", b"")
    failure = box.call(calling("blobs.read_text(args['blob'])"), args={"blob": blob_id}).failure
    assert failure.type == "BlobNotMounted"
    assert message in failure.message
    assert failure.traceback.count("File ") == 1


def test_the_error_can_be_caught_by_its_name(box: GuestBox) -> None:
    code = """
import pickle, runtime
from runtime import BlobNotMounted, blobs
def main(args):
    try:
        blobs.read_text("blob:x")
    except BlobNotMounted as error:
        assert blobs.BlobNotMounted is runtime.BlobNotMounted is type(pickle.loads(pickle.dumps(error)))
        return "caught"
"""
    assert box.call(code).value == {"result": "caught"}


def test_own_blobs_can_be_read_again(box: GuestBox) -> None:
    code = """
from runtime import blobs
def main(args):
    first, second = blobs.write_text("one"), blobs.write_json([2])
    return [blobs.read_text(first), blobs.read_json(second), blobs.open(first).read().decode()]
"""
    assert box.call(code).value == {"result": ["one", [2], "one"]}


def test_what_is_too_large_to_keep_is_written_and_says_so(box: GuestBox) -> None:
    code = """
from runtime import blobs
def main(args):
    big = blobs.write_bytes(bytes(65 << 20))
    small = blobs.write_text("still kept")
    try:
        blobs.read_bytes(big)
    except blobs.BlobNotMounted as error:
        return [str(error), blobs.read_text(small)]
"""
    ran = box.call(code)
    assert "too large to be read back" in ran.value["result"][0]
    assert ran.value["result"][1] == "still kept"
    assert len(ran.blobs[1][1]) == 65 << 20


def test_without_room_for_a_copy_the_blob_is_written_all_the_same(box: GuestBox) -> None:
    (box.root / "tmp").rmdir()
    ran = box.call(calling("blobs.write_text('x')"))
    assert ran.blobs == {1: ("text/plain", b"x")}


def test_streaming_through_text_and_csv_writers(box: GuestBox) -> None:
    code = """
import csv, io
from runtime import blobs
def main(args):
    with blobs.writer("text/csv") as writer:
        with io.TextIOWrapper(writer, newline="") as text:
            csv.writer(text).writerows([n, n * n] for n in range(3))
    return [writer.blob_id, writer.closed, blobs.read_text(writer.blob_id)]
"""
    ran = box.call(code)
    assert ran.value == {"result": [PREFIX + "1", True, "0,0\r\n1,1\r\n2,4\r\n"]}
    assert ran.blobs == {1: ("text/csv", b"0,0\r\n1,1\r\n2,4\r\n")}


def test_an_archive_can_be_streamed(box: GuestBox) -> None:
    code = """
import io, zipfile
from runtime import blobs
def main(args):
    with blobs.writer("application/zip") as writer, zipfile.ZipFile(writer, "w") as archive:
        archive.writestr("a.txt", "a" * 100_000)
    return zipfile.ZipFile(io.BytesIO(blobs.read_bytes(writer.blob_id))).read("a.txt").decode()[:3]
"""
    assert box.call(code).value == {"result": "aaa"}


def test_an_exception_in_the_with_statement_makes_no_blob(box: GuestBox) -> None:
    code = """
from runtime import blobs
def main(args):
    try:
        with blobs.writer() as writer:
            writer.write(bytes(200_000))
            raise ValueError
    except ValueError:
        pass
    try:
        blobs.read_bytes(writer.blob_id)
    except blobs.BlobNotMounted:
        return blobs.write_text("after")
"""
    ran = box.call(code)
    assert ran.value == {"result": PREFIX + "2"}
    assert BlobAbandon(1) in ran.frames
    assert list(ran.blobs) == [2]


def test_a_blob_that_is_never_closed_does_not_exist(box: GuestBox) -> None:
    ran = box.call("from runtime import blobs\nw = blobs.writer()\ndef main(args): w.write(bytes(100_000))")
    assert ran.value == {}
    assert ran.blobs == {}


def test_several_blobs_at_once_from_several_threads(box: GuestBox) -> None:
    code = """
import concurrent.futures
from runtime import blobs
def write(n):
    with blobs.writer("text/plain") as writer:
        for _ in range(20):
            writer.write(bytes([n]) * 10_000)
    return n, writer.blob_id
def main(args):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(write, range(8)))
"""
    ran = box.call(code)
    for n, blob_id in ran.value["result"]:
        assert ran.blobs[int(blob_id.rpartition("-")[2])][1] == bytes([n]) * 200_000


@pytest.mark.parametrize(
    ("expression", "type_"),
    [
        ("blobs.write_text(b'bytes')", "TypeError"),
        ("blobs.write_bytes('text')", "TypeError"),
        ("blobs.write_json(float('nan'))", "TypeError"),
        ("blobs.write_json(object())", "TypeError"),
        ("blobs.write_text('\\ud800')", "UnicodeEncodeError"),
        ("blobs.write_text('x', 'no kind')", "ValueError"),
        ("blobs.write_text('x', None)", "ValueError"),
        ("blobs.write_text('x', 'text/plain\\n')", "ValueError"),
    ],
)
def test_what_is_no_blob_is_refused_before_anything_is_sent(box: GuestBox, expression: str, type_: str) -> None:
    ran = box.call(calling(expression))
    assert ran.failure.type == type_
    assert ran.blobs == {}


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"max_blobs": 3}, "[blobs.write_text('x') for _ in range(4)]", "a run may write at most 3 blobs"),
        ({"max_blob_bytes": 1000}, "blobs.write_bytes(bytes(1001))", "larger than it may write"),
        ({"max_open_blobs": 2}, "[blobs.writer() for _ in range(3)]", "at most 2 blobs at once"),
    ],
)
def test_limits_are_clear_errors(box: GuestBox, changes: dict[str, int], code: str, message: str) -> None:
    failure = box.call(calling(code), **changes).failure
    assert failure.type == "RuntimeError"
    assert message in failure.message


def test_a_child_process_reads_but_does_not_write(box: GuestBox) -> None:
    box.mount_blob("blob:in", b"input")
    code = """
import multiprocessing
from runtime import blobs
def work(n):
    try:
        blobs.write_text("x")
    except RuntimeError as error:
        return [blobs.read_text("blob:in"), str(error)]
def main(args):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.map(work, range(4))
    return [results[0], blobs.write_text("from the parent")]
"""
    ran = box.call(code)
    (text, message), blob_id = ran.value["result"]
    assert (text, blob_id) == ("input", PREFIX + "1")
    assert "only by the process that the run started in" in message
    assert list(ran.blobs) == [1]


def test_a_signal_handler_that_raises_between_pieces_leaves_whole_frames(box: GuestBox) -> None:
    code = """
import signal
from runtime import blobs
class Alarm(Exception): ...
armed = []
def ring(*args):
    if armed:
        armed.clear()
        raise Alarm
def main(args):
    signal.signal(signal.SIGALRM, ring)
    rung = 0
    for n in range(150):
        try:
            armed.append(1)
            signal.setitimer(signal.ITIMER_REAL, 0.00002 + 0.000008 * n)
            blobs.write_bytes(bytes(300_000))
            armed.clear()
        except Alarm:
            rung += 1
    return rung
"""
    ran = box.call(code, max_blobs=1000)
    assert ran.value["result"] > 0
    assert all(len(data) == 300_000 for _, data in ran.blobs.values())
    assert BlobAbandon in map(type, ran.frames)


def test_a_large_blob_is_streamed_in_constant_memory(box: GuestBox) -> None:
    code = """
import resource
from runtime import blobs
def main(args):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with blobs.writer() as writer:
        for _ in range(args["mib"]):
            writer.write(bytes(1 << 20))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
"""
    mib, request, channel = 192, os.pipe(), os.pipe()
    command = [PYTHON, "-I", "-S", str(box.tree), "call", f"fd:{request[0]}", f"fd:{channel[1]}"]
    guest = subprocess.Popen(command, pass_fds=(request[0], channel[1]), env={"TMPDIR": "/nonexistent"})
    os.close(request[0])
    os.close(channel[1])
    os.write(request[1], encode_request(box.request(code, args={"mib": mib})))
    os.close(request[1])
    reader, size = FrameReader(), 0
    with os.fdopen(channel[0], "rb", buffering=0) as frames:
        while data := frames.read(1 << 18):
            size += sum(len(frame.data) for frame in reader.feed(data) if isinstance(frame, BlobData))
    guest.wait(10)
    assert size == mib * MIB
    result = reader.finish()
    assert result is not None
    assert result.value()["result"] < 8 * 1024  # type: ignore[union-attr] # KiB; a failure has no value


def test_log_lines_go_to_stderr_in_order(box: GuestBox) -> None:
    code = """
from runtime import log
def main(args):
    print("printed", end=" ")
    log.info("read"); log.warning("odd"); log.error("bad"); log.debug({"n": 1})
"""
    assert box.call(code).logs == "printed INFO: read\nWARNING: odd\nERROR: bad\nDEBUG: {'n': 1}\n"


def test_every_way_of_importing_the_runtime(box: GuestBox) -> None:
    code = """
import runtime
import runtime.blobs as b
import runtime.log
from runtime.blobs import write_text
from runtime.log import info
def main(args): return [b is runtime.blobs, write_text("x"), info("y")]
"""
    assert box.call(code).value == {"result": [True, PREFIX + "1", None]}


def test_frames_are_whole_when_threads_write_while_the_run_ends(box: GuestBox) -> None:
    code = """
import threading
from runtime import blobs
go = threading.Event()
def forever():
    while True:
        go.set()
        blobs.write_bytes(bytes(100_000))
def main(args):
    for _ in range(4):
        threading.Thread(target=forever, daemon=True).start()
    go.wait(10)
"""
    ran = box.call(code, max_blobs=10**6)
    assert ran.value == {}
    assert all(len(data) == 100_000 for _, data in ran.blobs.values())
