"""Files of a sandbox, by the unmodified SDK of E2B."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from e2b import FileType
from e2b.exceptions import FileNotFoundException, InvalidArgumentException, NotEnoughSpaceException
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType

from tests.faces.e2b.conftest import Yard

Until = Callable[[Callable[[], object]], None]


def test_files_are_written_and_read_in_every_form(sandbox: Any) -> None:
    told = sandbox.files.write("dir/one.txt", "text é")
    assert (told.name, told.path, told.type) == ("one.txt", "/home/user/dir/one.txt", FileType.FILE)
    assert sandbox.files.read("/home/user/dir/one.txt") == "text é"
    assert sandbox.files.read("dir/one.txt", format="bytes") == "text é".encode()
    assert b"".join(sandbox.files.read("dir/one.txt", format="stream")) == "text é".encode()
    data = bytes(range(256)) * 4096
    sandbox.files.write("/tmp/data", io.BytesIO(data))
    assert sandbox.files.read("/tmp/data", format="bytes") == data
    sandbox.files.write("zipped", data, gzip=True)
    assert sandbox.files.read("zipped", format="bytes", gzip=True) == data
    sandbox.files.write("parts", data, use_octet_stream=False)
    assert sandbox.files.read("parts", format="bytes") == data
    several = sandbox.files.write_files([{"path": "m/1", "data": "a"}, {"path": "/tmp/m 2 é", "data": b"\r\n--x"}])
    assert [each.path for each in several] == ["/home/user/m/1", "/tmp/m 2 é"]
    assert sandbox.files.read("/tmp/m 2 é") == "\r\n--x"
    sandbox.files.write("empty", "")
    assert sandbox.files.read("empty") == ""


def test_commands_and_files_see_the_same(sandbox: Any) -> None:
    sandbox.files.write("/home/user/seen.sh", "echo seen from $PWD")
    assert sandbox.commands.run("sh /home/user/seen.sh && cd / && cat ~/seen.sh").stdout == (
        "seen from /home/user\necho seen from $PWD"
    )


def test_names_are_told_listed_moved_and_removed(sandbox: Any) -> None:
    files = sandbox.files
    files.write("tree/a/b.txt", "12345")
    sandbox.commands.run("ln -s b.txt tree/a/link && ln -s nowhere tree/a/broken && chmod 640 tree/a/b.txt")
    told = files.get_info("tree/a/b.txt")
    assert (told.size, oct(told.mode), told.permissions, told.owner) == (5, "0o640", "-rw-r-----", "user")
    link = files.get_info("tree/a/link")
    assert (link.type, link.symlink_target) == (FileType.SYMLINK, "/home/user/tree/a/b.txt")
    assert files.read("tree/a/link") == "12345"
    assert [each.path for each in files.list("tree")] == ["/home/user/tree/a"]
    assert [each.name for each in files.list("tree", depth=3)] == ["a", "b.txt", "link"]
    assert files.make_dir("tree/c/d")
    assert not files.make_dir("tree/c/d")
    assert files.rename("tree/a/b.txt", "tree/c/d/e.txt").path == "/home/user/tree/c/d/e.txt"
    assert files.exists("tree/c/d/e.txt")
    assert not files.exists("tree/a/b.txt")
    files.remove("tree")
    assert not files.exists("tree")
    for look in (files.read, files.list, files.get_info):
        with pytest.raises(FileNotFoundException):
            look("none")
    with pytest.raises(InvalidArgumentException):
        files.read("/tmp")
    with pytest.raises(InvalidArgumentException, match="not a directory"):
        files.list("empty" if files.exists("empty") else files.write("empty", "").path)


def test_a_directory_is_watched(sandbox: Any, until: Until) -> None:
    files = sandbox.files
    files.make_dir("watched/below")
    handle = files.watch_dir("watched", recursive=True, include_entry=True)
    seen: list[Any] = []

    def has(*wanted: tuple[str, FilesystemEventType]) -> bool:
        seen.extend(handle.get_new_events())
        return set(wanted) <= {(each.name, each.type) for each in seen}

    files.write("watched/new.txt", "x")
    until(lambda: has(("new.txt", FilesystemEventType.CREATE), ("new.txt", FilesystemEventType.WRITE)))
    files.write("watched/below/deep", "y")
    until(lambda: has(("below/deep", FilesystemEventType.CREATE)))
    files.rename("watched/new.txt", "watched/moved.txt")
    until(lambda: has(("new.txt", FilesystemEventType.RENAME), ("moved.txt", FilesystemEventType.CREATE)))
    files.remove("watched/moved.txt")
    until(lambda: has(("moved.txt", FilesystemEventType.REMOVE)))
    assert next(each.entry.path for each in seen if each.entry) == "/home/user/watched/new.txt"
    handle.stop()
    with pytest.raises(Exception, match=r"stopped|not found"):
        handle.get_new_events()
    with pytest.raises(FileNotFoundException):
        files.watch_dir("nothing/here")


def test_a_disk_that_is_full_is_told(yard: Yard) -> None:
    made = yard.create()
    try:
        with pytest.raises(NotEnoughSpaceException):
            made.files.write("big", (b"\0" * 2**20 for _ in range(600)))
        made.files.write("small", "fits")
    finally:
        made.kill()


@pytest.fixture
def plain(yard: Yard) -> Iterator[httpx2.Client]:
    with httpx2.Client(trust_env=False, timeout=60) as client:
        yield client


def test_signed_urls_open_one_path_for_one_use(sandbox: Any, plain: httpx2.Client) -> None:
    sandbox.files.write("open.txt", "for all with the URL")
    url = sandbox.download_url("open.txt")
    assert plain.get(url).text == "for all with the URL"
    assert plain.get(sandbox.download_url("open.txt", use_signature_expiration=60)).status_code == 200
    part = plain.get(url, headers={"Range": "bytes=4-6"})
    assert (part.status_code, part.text) == (206, "all")
    up = sandbox.upload_url("uploaded.txt")
    assert plain.post(up, files={"file": ("any.txt", b"by form")}).status_code == 200
    assert sandbox.files.read("uploaded.txt") == "by form"
    for wrong in (
        url.replace("open.txt", "other.txt"),
        url.replace("signature=v1_", "signature=v1_A"),
        url + "&signature_expiration=99999999999",
        url + "&username=user",
        up,  # reading by what is for writing
        url.partition("&signature")[0],
        sandbox.download_url("open.txt", use_signature_expiration=-5),
    ):
        assert plain.get(wrong).status_code == 401, wrong
    assert plain.post(url, files={"file": ("x", b"y")}).status_code == 401


def test_broken_bodies_are_refused(yard: Yard, sandbox: Any) -> None:
    def post(data: bytes, kind: str, **headers: str) -> int:
        told = {
            "E2b-Sandbox-Id": sandbox.sandbox_id,
            "X-Access-Token": sandbox._envd_access_token,
            "Content-Type": kind,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        return yard.ask("POST", "/files?path=broken", told, content=data).status_code

    octets, form = "application/octet-stream", "multipart/form-data; boundary=x"
    whole = gzip.compress(b"0" * 1000)
    assert post(whole[:-5], octets, Content_Encoding="gzip") == 400
    assert post(whole + b"more", octets, Content_Encoding="gzip") == 400
    assert post(b"no gzip", octets, Content_Encoding="gzip") == 400
    assert post(b"x", octets, Content_Encoding="br") == 415
    assert post(b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nno end', form) == 400
    assert post(b"not a form", form) == 400
    assert post(b"--x--\r\n", form) == 400
    assert post(b"x", "multipart/form-data") == 400
    assert post(b"x", "text/plain") == 415
    assert post(b"x", octets, X_Metadata_Owner="me") == 400
    assert not sandbox.files.exists("broken")
