"""The guest for backends that only start programs: one file, a request, a channel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import skillyard.guest.blobs
import skillyard.guest.frames
import skillyard.guest.main
from skillyard.domain.errors import InvalidInput
from skillyard.domain.sandbox import frames
from skillyard.domain.sandbox.frames import DEFAULT_LIMITS, FrameLimits, FrameReader, Result
from skillyard.domain.sandbox.spec import Argv, BlobMount, GuestCall, SkillMount, encode_request
from skillyard.sandbox.guest_argv import descriptor, files_argv, guest_argv, guest_bundle
from tests.conformance.guest.conftest import PREFIX, PYTHON, GuestBox
from tests.conformance.guest.test_files import answers, asked


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    path = tmp_path / "guest.pyz"
    path.write_bytes(guest_bundle())
    return str(path)


def run(command: Argv, stdin: bytes = b"", **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command.args, input=stdin, capture_output=True, timeout=30, **options)


def test_the_bundle_is_the_same_bytes_every_time(bundle: str) -> None:
    guest_bundle.cache_clear()
    assert guest_bundle() == Path(bundle).read_bytes()
    infos = zipfile.ZipFile(bundle).infolist()
    assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}
    assert [info.filename for info in infos] == sorted(info.filename for info in infos)


def test_the_bundle_runs_without_compiling(box: GuestBox, bundle: str, tmp_path: Path) -> None:
    _rewrite(bundle, lambda name, data: b"(" if name.endswith(".py") and name != "__main__.py" else data)
    request = tmp_path / "request.json"
    request.write_bytes(encode_request(box.request("def main(args): return args['n']", args={"n": 5})))
    ran = run(guest_argv(PYTHON, bundle, str(request), str(tmp_path / "frames.bin")))
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_another_python_takes_the_sources(box: GuestBox, bundle: str, tmp_path: Path) -> None:
    _rewrite(bundle, lambda name, data: b"\0\0" + data[2:] if name.endswith(".pyc") else data)
    request, channel = tmp_path / "request.json", tmp_path / "frames.bin"
    request.write_bytes(encode_request(box.request("def main(args): return args['n']", args={"n": 5})))
    ran = run(guest_argv(PYTHON, bundle, str(request), str(channel)))
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert box.ran(channel.read_bytes(), b"", 0).value == {"result": 5}


def _rewrite(bundle: str, change: Callable[[str, bytes], bytes]) -> None:
    with zipfile.ZipFile(bundle) as before:
        files = {name: change(name, before.read(name)) for name in before.namelist()}
    with zipfile.ZipFile(bundle, "w") as after:
        for name, data in files.items():
            after.writestr(name, data)


def test_a_call_through_files(box: GuestBox, bundle: str, tmp_path: Path) -> None:
    request, channel = tmp_path / "request.json", tmp_path / "frames.bin"
    request.write_bytes(encode_request(box.request("def main(args): print('out'); return args['n']", args={"n": 5})))
    ran = run(guest_argv(PYTHON, bundle, str(request), str(channel)))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"out\n", b"")
    assert box.ran(channel.read_bytes(), b"", 0).value == {"result": 5}
    assert not request.exists()
    assert channel.stat().st_mode & 0o777 == 0o600


def test_a_call_through_descriptors(box: GuestBox, bundle: str) -> None:
    request, channel = os.pipe(), os.pipe()
    os.write(request[1], encode_request(box.request("def main(args): return 1 / 0")))
    os.close(request[1])
    command = guest_argv(PYTHON, bundle, descriptor(request[0]), descriptor(channel[1]))
    run(command, pass_fds=(request[0], channel[1]))
    os.close(channel[1])
    with os.fdopen(channel[0], "rb") as told:
        failure = box.ran(told.read(), b"", 0).failure
    assert failure.type == "ZeroDivisionError"
    assert bundle not in failure.traceback


def test_files_through_the_bundle(bundle: str, tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "file")
    command = files_argv(PYTHON, bundle)
    assert command.stdin
    write, read = asked("write", path, b"0123456789", mode=0o600), asked("read", path, offset=2, length=3)
    told = answers(run(command, write + read + asked("entries", str(tmp_path / "new"))).stdout)
    assert told[:3] == [(b"O", b'{"size": 10}'), (b"D", b"234"), (b"O", b"{}")]
    assert json.loads(told[3][1]).items() >= {"name": "file", "kind": "file", "size": 10}.items()


def test_the_bundle_is_not_importable_by_the_code(box: GuestBox, bundle: str, tmp_path: Path) -> None:
    code = "import sys\ndef main(args): return [p for p in sys.path if p.endswith('.pyz')]"
    (tmp_path / "r").write_bytes(encode_request(box.request(code)))
    run(guest_argv(PYTHON, bundle, str(tmp_path / "r"), str(tmp_path / "f")))
    assert box.ran((tmp_path / "f").read_bytes(), b"", 0).value == {"result": []}


def test_the_guest_imports_little_of_the_standard_library_and_nothing_else(drive: Callable[[str], str]) -> None:
    script = (
        "before = set(sys.modules)\n"
        "import inside.main, inside.command, inside.files\n"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(names - set(sys.stdlib_module_names)))\n"
        "print(sorted(names & {'typing', 'asyncio', 'random', 'threading', 'tempfile', 'inspect'}))"
    )
    assert drive(script) == "['inside']\n[]\n"


def test_both_ends_agree_on_their_limits() -> None:
    assert skillyard.guest.frames.PIECE <= frames.PIECE
    assert DEFAULT_LIMITS.blobs == skillyard.guest.blobs.MAX_BLOBS
    assert DEFAULT_LIMITS.blob_bytes == skillyard.guest.blobs.MAX_BLOB_BYTES
    assert DEFAULT_LIMITS.open_blobs == skillyard.guest.blobs.MAX_OPEN
    assert DEFAULT_LIMITS.result_bytes == skillyard.guest.main.MAX_RESULT_BYTES


@given(st.one_of(st.text(), st.from_regex(frames.KIND), st.text("a/;!~ é\n", max_size=12)))
@example("a/b;")
@example("text/csv;" + "~" * 200)
@example("text/csv;" + "~" * 201)
@example("a" * 126 + "/b")
@example("a" * 127 + "/b")
@example("a/b/c")
def test_both_ends_agree_on_the_kinds_of_blobs(kind: str) -> None:
    assert skillyard.guest.blobs._is_kind(kind) is (frames.KIND.fullmatch(kind) is not None)


def test_a_built_request_runs(box: GuestBox) -> None:
    box.mount_skill("pdf-tools.fill", {"code/main.py": "def fill(args): return args\n"})
    box.mount_blob("blob:x", b"abc")
    call = GuestCall(
        blob_prefix=PREFIX,
        entrypoint="fill",
        skill="pdf_tools.fill",
        args={"é": "\ud800"},
        skills={"pdf_tools.fill": SkillMount(str(box.root / "skills/pdf-tools.fill"), "code/main.py")},
        blobs={"blob:x": BlobMount("text/plain", 3)},
        env={"A": "b"},
        limits=FrameLimits(blobs=7, result_bytes=100),
    )
    request = call.request()
    assert (request["max_blobs"], request["max_result_bytes"], request["v"], request["op"]) == (7, 100, 1, "call")
    ran = box.send(encode_request({**request, "workspace": str(box.workspace)}))
    assert ran.value == {"é": "\ufffd"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, "code"),
        ({"code": "x", "skill": "a.b"}, "code"),
        ({"skill": "a.b"}, "skill"),
        ({"skill": "a.b", "skills": {"a.b": SkillMount("/skills/a.b")}}, "skill"),
        ({"code": "x", "blob_prefix": "blob:-"}, "blob_prefix"),
        ({"code": "x", "blob_prefix": "x"}, "blob_prefix"),
        ({"code": "x", "blobs": {"../x": BlobMount("a/b", 1)}}, "blobs"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        GuestCall(**{"blob_prefix": PREFIX, **changes}).request()
    assert caught.value.field == field


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [float("nan"), object(), nested(10_000)])
def test_arguments_that_are_not_json_are_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="JSON-serializable"):
        encode_request({"args": value})


def test_a_result_has_room_for_what_the_guest_allows(box: GuestBox) -> None:
    ran = box.call("def main(args): return 'x' * (16 * 1024 * 1024 - 20)")
    assert isinstance(ran.final, Result)
    assert FrameReader().feed(b"") == []
    assert len(ran.final.raw) <= DEFAULT_LIMITS.result_bytes
    assert sys.getsizeof(ran.final.value()["result"]) > 16_000_000
