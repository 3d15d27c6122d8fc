"""Which server is talked to, and that a token reaches no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.client import errors
from skillyard.client.discovery import ServerUrl, default_data_dir, find_server, recorded_url


def record(data_dir: Path, url: str, pid: int | None = None) -> None:
    (data_dir / "server.json").write_text(json.dumps({"url": url, "pid": pid or os.getpid()}))
    (data_dir / "token").write_text("own-token\n")


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_arguments_go_before_the_environment_and_that_before_the_data_directory(tmp_path: Path) -> None:
    record(tmp_path, "http://127.0.0.1:1")
    environ = {"SKILLYARD_URL": "http://env:2", "SKILLYARD_TOKEN": "env-token"}
    by_argument = find_server("http://arg:3", "arg-token", tmp_path, environ)
    assert (str(by_argument.url), by_argument.token) == ("http://arg:3", "arg-token")
    by_environment = find_server(None, None, tmp_path, environ)
    assert (str(by_environment.url), by_environment.token) == ("http://env:2", "env-token")
    by_directory = find_server(None, None, tmp_path, {})
    assert (str(by_directory.url), by_directory.token) == ("http://127.0.0.1:1", "own-token")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://localhost:1", "HTTP://127.0.0.1:1"])
def test_the_own_token_goes_to_the_own_server_however_it_is_written(tmp_path: Path, url: str) -> None:
    record(tmp_path, "http://127.0.0.1:1")
    assert find_server(url, None, tmp_path, {}).token == "own-token"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:2", "https://127.0.0.1:1", "http://evil:1", "http://127.0.0.1:1/other"]
)
def test_the_own_token_goes_to_no_other_server(tmp_path: Path, url: str) -> None:
    record(tmp_path, "http://127.0.0.1:1")
    assert find_server(url, None, tmp_path, {}).token is None


def test_a_dead_server_is_no_server(tmp_path: Path) -> None:
    record(tmp_path, "http://127.0.0.1:1", dead_pid())
    with pytest.raises(errors.Unreachable, match="skillyard serve"):
        find_server(None, None, tmp_path, {})
    assert find_server("http://127.0.0.1:1", None, tmp_path, {}).token is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"url": 5, "pid": 1}',
        '{"url": "http://x", "pid": "no"}',
        '{"url": "ftp://x", "pid": 1}',
    ],
)
def test_a_damaged_record_is_no_server(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.json").write_text(text)
    assert recorded_url(tmp_path) is None


def test_a_server_on_every_address_is_reached_over_loopback(tmp_path: Path) -> None:
    record(tmp_path, "http://0.0.0.0:1")
    server = find_server(None, None, tmp_path, {})
    assert (str(server.url), server.token) == ("http://127.0.0.1:1", "own-token")


def test_the_data_directory() -> None:
    assert default_data_dir({"SKILLYARD_DATA_DIR": "/d"}) == Path("/d")
    assert default_data_dir({"XDG_DATA_HOME": "/x"}) == Path("/x/skillyard")
    assert default_data_dir({}) == Path.home() / ".local/share/skillyard"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:80",
        "ftp://x",
        "http://",
        "http://u:p@x",
        "http://x?q",
        "http://x#f",
        "http://x:99999",
        "http://[x",
    ],
)
def test_other_urls_are_refused(text: str) -> None:
    with pytest.raises(errors.BadArgument, match="url: "):
        ServerUrl.parse(text)


@given(
    st.sampled_from(["http", "https"]),
    st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True) | st.ip_addresses(v=6).map(str),
    st.integers(1, 65535),
    st.sampled_from(["", "/a", "/a/b"]),
)
def test_a_url_survives_being_written_down(scheme: str, host: str, port: int, prefix: str) -> None:
    url = ServerUrl(scheme, host.lower(), port, prefix)
    assert ServerUrl.parse(str(url)) == url


@pytest.mark.parametrize("token", ["a b", "a\r\nX-Evil: 1", "é"])
def test_a_token_that_cannot_stand_in_a_header_is_refused(token: str) -> None:
    with pytest.raises(errors.BadArgument, match="token: "):
        find_server("http://x", token, environ={})


def test_a_token_is_not_shown() -> None:
    assert "hidden" not in repr(find_server("http://x", "hidden-token", environ={}))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start a process of another user")
@pytest.mark.parametrize("owner", [0, 64321])
def test_the_number_of_a_dead_server_that_another_user_took_is_no_server(tmp_path: Path, owner: int) -> None:
    """The port may be theirs too: they would be given the token."""
    taken = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=64322, group=64322, extra_groups=[])
    own = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=owner, group=owner, extra_groups=[])
    try:
        for process, known in ((taken, False), (own, True)):
            record(tmp_path, "http://127.0.0.1:1", process.pid)
            os.chown(tmp_path / "server.json", owner, owner)
            assert (recorded_url(tmp_path) is not None) is known
    finally:
        for process in (taken, own):
            process.communicate(timeout=60)
