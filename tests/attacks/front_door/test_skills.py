"""``/skills`` under abuse: bodies, types, paths, conditions, other people's tokens."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import quote

import pytest

from skillyard.engine.skills.publishing import UPLOADS
from tests.attacks.front_door.conftest import Door, _skillyard, until
from tests.attacks.front_door.wire import Response
from tests.bundles import a_skill, skill_files, tar, unpacked, zipped

PUBLISHER = "discover,execute,publish"
NAME = "acme.words.say"
MIB = 1024 * 1024
UPLOAD = 32 * MIB


@pytest.fixture(scope="module", autouse=True)
def publishers(door: Door) -> None:
    """ann and adam of one project, eve of another, and bea, whose pattern admits other names."""
    for name, project, skills in (
        ("ann", "crm", "*"),
        ("adam", "crm", "*"),
        ("eve", "hr", "*"),
        ("bea", "crm", "bea.*"),
    ):
        words = ("token", "create", name, "--scopes", PUBLISHER, "--project", project, "--skills", skills)
        door.tokens[name] = _skillyard(door.data_dir, *words)


def put(door: Door, data: bytes, *headers: str, who: str = "ann") -> Response:
    return door.ask(door.head("PUT /skills", f"Content-Length: {len(data)}", *headers, who=who) + data)


def get(door: Door, path: str, *headers: str, who: str = "ann", method: str = "GET") -> Response:
    return door.ask(door.head(f"{method} /skills/{path}", *headers, who=who), method)


def nothing_is_spooled(door: Door) -> bool:
    """Neither on the disk nor held open."""
    return list((door.data_dir / "uploads").iterdir()) == []


@pytest.fixture(scope="module")
def digest(door: Door, publishers: None) -> str:
    """Of acme.words.say 1.0.0, which is published."""
    made = put(door, a_skill(), "Content-Type: application/gzip")
    assert made.status in (200, 201)
    return str(made.json["digest"])


def test_a_version_is_made_once(door: Door) -> None:
    archive = tar(skill_files("acme.made.once"))
    made = put(door, archive)
    assert made.status == 201
    assert made.headers["location"] == "/skills/acme.made.once/1.0.0"
    told = made.json
    assert (told["name"], told["version"], told["created"], told["files"]) == ("acme.made.once", "1.0.0", True, 3)
    assert (told["project"], told["published_by"], told["findings"]) == ("crm", "ann", [])
    again = put(door, zipped(skill_files("acme.made.once")), who="adam")
    assert again.status == 200
    assert again.json == {**told, "created": False}
    run = door.result("execute_skill", {"name": "acme.made.once", "args": {}})
    assert run["output"] == {"said": "hello"}


def test_other_content_is_a_conflict(door: Door, digest: str) -> None:
    refused = put(door, a_skill(word="other"))
    assert refused.status == 409
    data = refused.error["data"]
    assert (data["type"], data["stored_digest"]) == ("VersionTaken", digest)
    assert data["offered_digest"] != digest


def test_what_is_no_skill_is_told_with_file_and_line(door: Door) -> None:
    refused = put(door, tar({"SKILL.md": b"---\nname: Bad_Name\ndescription: x\n---\n"}))
    assert refused.status == 422
    data = refused.error["data"]
    assert data["type"] == "BundleRefused"
    assert [(f["file"], f["line"], f["rule"]) for f in data["findings"] if f["level"] == "error"] == [
        ("SKILL.md", 2, "name-alphabet")
    ]


BODIES = {
    "nothing": b"",
    "text": b"<html></html>",
    "half a zip": zipped(skill_files())[:200],
    "half a tar.gz": a_skill()[:100],
    "a tar of nothing": bytes(10240),
    "a file that goes up": tar({"../SKILL.md": b"x"}),
}


@pytest.mark.parametrize("what", BODIES)
def test_what_is_no_archive_is_refused(door: Door, what: str) -> None:
    refused = put(door, BODIES[what])
    assert refused.status == 422
    assert refused.error["data"]["findings"][0]["rule"].startswith("archive-")
    assert nothing_is_spooled(door)


HEADERS: dict[tuple[str, ...], int] = {
    ("Content-Type: text/html",): 415,
    ("Content-Type: application/json",): 415,
    ("Content-Type: multipart/form-data; boundary=x",): 415,
    ("Content-Type: application/zip", "Content-Type: application/zip"): 400,
    ("Content-Range: bytes 0-1/2",): 400,
    ("Content-Encoding: gzip",): 400,
}


@pytest.mark.parametrize("headers", HEADERS, ids=str)
def test_bodies_that_are_called_something_else(door: Door, headers: tuple[str, ...]) -> None:
    assert put(door, a_skill(version="9.0.0"), *headers).status == HEADERS[headers]


@pytest.mark.parametrize(
    "kind", ["application/zip", "application/x-tar", "Application/GZip; x=y", "application/octet-stream", ""]
)
def test_the_content_says_what_it_is(door: Door, digest: str, kind: str) -> None:
    headers = (f"Content-Type: {kind}",) if kind else ()
    assert put(door, a_skill(), *headers).json["digest"] == digest


def test_other_methods_and_query_parameters(door: Door, digest: str) -> None:
    for line, allowed in (
        ("GET /skills", "PUT"),
        ("POST /skills", "PUT"),
        (f"PUT /skills/{NAME}/1.0.0", "GET, HEAD"),
        (f"DELETE /skills/{NAME}/1.0.0", "GET, HEAD"),
    ):
        refused = door.ask(door.head(line, "Content-Length: 0", who="ann"))
        assert (refused.status, refused.headers["allow"]) == (405, allowed)
    for line in ("PUT /skills?x=1", f"GET /skills/{NAME}/1.0.0?x=1"):
        assert door.ask(door.head(line, "Content-Length: 0", who="ann")).status == 400


def test_who_may_not_publish_is_told_before_the_body(door: Door) -> None:
    """Not one byte of it is sent here, and the answer comes."""
    for who, status in (("alice", 403), ("reader", 403)):
        with door.wire() as wire:
            refused = wire.send(door.head("PUT /skills", f"Content-Length: {10 * MIB}", who=who)).response()
        assert refused.status == status
        assert refused.error["data"]["scope"] == "publish"
    with door.wire() as wire:
        head = f"PUT /skills HTTP/1.1\r\nHost: 127.0.0.1:{door.port}\r\nContent-Length: {10 * MIB}\r\n\r\n"
        assert wire.send(head.encode()).response().status == 401


def test_what_is_too_large_is_refused_before_it_comes(door: Door) -> None:
    with door.wire() as wire:
        refused = wire.send(door.head("PUT /skills", f"Content-Length: {UPLOAD + 1}", who="ann")).response()
    assert refused.status == 413


def test_what_grows_too_large_is_cut_off(door: Door) -> None:
    """Chunked, so that nobody knows before."""
    chunk = b"100000\r\n" + bytes(MIB) + b"\r\n"
    with door.wire() as wire:
        wire.send(door.head("PUT /skills", "Transfer-Encoding: chunked", who="ann"))
        for _ in range(UPLOAD // MIB + 2):
            wire.send(chunk)
        assert wire.response().status == 413
    until(lambda: nothing_is_spooled(door))


def test_a_body_that_breaks_off_leaves_nothing(door: Door) -> None:
    archive = tar(skill_files("acme.broken.off"))
    with door.wire() as wire:
        head = door.head("PUT /skills", f"Content-Length: {len(archive)}", who="ann")
        assert wire.send(head + archive[:-1]).end().closed()
    with door.wire() as wire:
        head = door.head("PUT /skills", "Transfer-Encoding: chunked", who="ann")
        assert wire.send(head + b"5\r\nabcde\r\nZZ\r\n").response().status == 400
    assert nothing_is_spooled(door)
    assert get(door, "acme.broken.off/latest").status == 404


@contextmanager
def arriving(door: Door, count: int, who: str) -> Iterator[None]:
    """Uploads that began and do not go on."""
    with ExitStack() as stack:
        for _ in range(count):
            made = stack.enter_context(socket.create_connection(("127.0.0.1", door.port), 10))
            made.sendall(door.head("PUT /skills", "Content-Length: 1000", who=who) + b"x")
        yield


def test_those_who_send_slowly_keep_nobody_else_out(door: Door, digest: str) -> None:
    each = UPLOADS[1]
    with arriving(door, each, "ann"):
        until(lambda: put(door, a_skill()).status == 429)
        assert put(door, a_skill()).headers["retry-after"]
        assert put(door, a_skill(), who="adam").json["digest"] == digest
    until(lambda: put(door, a_skill()).status == 200)


@pytest.mark.parametrize("version", ["1.0.0", "latest"])
@pytest.mark.parametrize(("accept", "kind"), [("*/*", "application/gzip"), ("application/zip", "application/zip")])
def test_an_export_is_the_exact_bundle(door: Door, digest: str, version: str, accept: str, kind: str) -> None:
    got = get(door, f"{NAME}/{version}", f"Accept: {accept}")
    assert got.status == 200
    assert got.headers["content-type"] == kind
    assert digest in got.headers["etag"]
    assert got.headers["content-location"] == f"/skills/{NAME}/1.0.0"
    assert got.headers["content-disposition"].startswith("attachment")
    assert got.headers["x-content-type-options"] == "nosniff"
    assert unpacked(got.body) == skill_files()
    assert get(door, f"{NAME}/1.0.0", f"Accept: {accept}").body == got.body
    assert put(door, got.body).json["digest"] == digest


ACCEPT = {
    "": "application/gzip",
    "text/html": "application/gzip",
    "application/zip;q=0": "application/gzip",
    "application/gzip, application/zip": "application/gzip",
    "application/gzip;q=0.5, application/zip": "application/zip",
    "application/zip;q=nonsense": "application/gzip",
    "APPLICATION/ZIP ; q=0.1": "application/zip",
    ",;,;q=1" * 100: "application/gzip",
}


@pytest.mark.parametrize("accept", ACCEPT, ids=lambda text: text[:30])
def test_which_form_is_sent(door: Door, digest: str, accept: str) -> None:
    answer = get(door, f"{NAME}/latest", f"Accept: {accept}", method="HEAD")
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"", ACCEPT[accept])


def test_what_one_has_is_not_sent_again(door: Door, digest: str) -> None:
    for accept in ("*/*", "application/zip"):
        tag = get(door, f"{NAME}/latest", f"Accept: {accept}", method="HEAD").headers["etag"]
        for given in (tag, tag.removeprefix("W/"), f'"x", {tag}', "*"):
            answer = get(door, f"{NAME}/latest", f"Accept: {accept}", f"If-None-Match: {given}")
            assert (answer.status, answer.body) == (304, b"")
        other = get(door, f"{NAME}/latest", f"Accept: {accept}", 'If-None-Match: "x"')
        assert other.status == 200


PATHS = (
    "..", "../..", "%2e%2e/%2e%2e", f"{NAME}/..", f"{NAME}/../../rpc", f"{NAME}/..%2f..%2fetc%2fpasswd",
    f"..%2f{NAME}/1.0.0", f"{NAME}/", f"{NAME}/1.0.0/", f"{NAME}/1.0.0/x", "/", f"/{NAME}/1.0.0", f"{NAME}%00/1.0.0",
    f"{NAME}/1.0.0%00", f"{NAME}/1.0.0%0d%0aX:1", f"{NAME}/1.0", f"{NAME}/%6catest%20", f"{NAME}/LATEST", "x" * 5000,
    f"{NAME}/" + "1" * 5000, "%ff%fe/1.0.0", "%ed%a0%80/1.0.0", f"{NAME.upper()}/1.0.0", f"{NAME}/1.0.0+x", "*/latest",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:24])
def test_paths_lead_nowhere_else(door: Door, digest: str, path: str) -> None:
    answer = get(door, path)
    assert answer.status in (400, 404)
    assert "etag" not in answer.headers


def test_a_withdrawn_version_is_gone_with_the_reason(door: Door) -> None:
    name = "acme.soon.gone"
    put(door, tar(skill_files(name)))
    door.result("catalogue.withdraw", {"name": name, "version": "1.0.0", "reason": "it leaks"}, "ann")
    for path in (f"{name}/1.0.0", f"{name}/latest"):
        gone = get(door, path)
        assert gone.status == 404
        assert "it leaks" in gone.error["message"]
    taken = put(door, tar(skill_files(name)))
    assert taken.status == 409
    door.result("catalogue.restore", {"name": name, "version": "1.0.0"}, "adam")
    assert get(door, f"{name}/latest").status == 200


def test_another_projects_token_changes_nothing(door: Door, digest: str) -> None:
    for archive in (a_skill(), a_skill(version="2.0.0")):
        refused = put(door, archive, who="eve")
        assert refused.status == 403
        assert digest not in refused.body.decode()
    for method, params in (
        ("withdraw", {"version": "1.0.0"}),
        ("restore", {"version": "1.0.0"}),
        ("pin", {"version": "1.0.0"}),
        ("unpin", {}),
    ):
        error = door.call(f"catalogue.{method}", {"name": NAME, **params}, "eve").error
        assert error["data"]["type"] == "Forbidden"
    assert get(door, f"{NAME}/latest", who="eve").status == 200


def test_patterns_of_tokens_hold(door: Door, digest: str) -> None:
    assert put(door, a_skill(version="2.0.0"), who="bea").status == 403
    hidden, absent = (get(door, f"{name}/latest", who="bea") for name in (NAME, "acme.words.not"))
    assert hidden.status == absent.status == 404
    assert hidden.body.replace(NAME.encode(), b"") == absent.body.replace(b"acme.words.not", b"")
    assert put(door, tar(skill_files("bea.own.one")), who="bea").status == 201


def test_what_the_operator_serves_is_the_operators(door: Door) -> None:
    refused = put(door, tar(skill_files("demo.length", "9.0.0")))
    assert refused.status == 403
    assert put(door, tar(skill_files("skills.protocol.guide", "9.0.0")), who="owner").status == 403


def test_a_name_of_other_letters_goes_both_ways(door: Door) -> None:
    name, path = "some-note", quote("some-note")
    files = {"SKILL.md": f"---\nname: {name}\ndescription: A note.\n---\nText\n".encode()}
    made = put(door, tar(files))
    assert made.status == 201
    assert get(door, made.headers["location"].removeprefix("/skills/")).status == 200
    assert unpacked(get(door, f"{path}/latest").body) == files
