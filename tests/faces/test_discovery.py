"""The files by which others find a server and its token."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from skillyard.client.discovery import find_server, recorded_url
from skillyard.domain.errors import InvalidInput
from skillyard.domain.principal import OWNER
from skillyard.faces.serve import ensure_owner_token, recorded_server, write_private
from skillyard.stores.clock import SystemClock
from skillyard.testing.memory import MemoryTokens

pytestmark = pytest.mark.anyio

URL = "http://127.0.0.1:4711"


@pytest.fixture
def tokens() -> MemoryTokens:
    return MemoryTokens(SystemClock())


async def test_the_first_start_makes_a_token_that_only_we_can_read(tokens: MemoryTokens, tmp_path: Path) -> None:
    file = tmp_path / "token"
    await ensure_owner_token(tokens, file)
    assert file.stat().st_mode & 0o777 == 0o600
    principal = await tokens.verify(file.read_text().strip())
    assert principal == OWNER


async def test_later_starts_leave_it_alone(tokens: MemoryTokens, tmp_path: Path) -> None:
    file = tmp_path / "token"
    await ensure_owner_token(tokens, file)
    before = file.read_bytes()
    await ensure_owner_token(tokens, file)
    assert file.read_bytes() == before
    assert len(await tokens.list()) == 1


async def test_an_interrupted_first_start_is_completed(tokens: MemoryTokens, tmp_path: Path) -> None:
    write_private(tmp_path / "token", "sky_" + "x" * 43 + "\n")
    await ensure_owner_token(tokens, tmp_path / "token")
    assert await tokens.verify("sky_" + "x" * 43) == OWNER


async def test_a_revoked_token_does_not_come_back(
    tokens: MemoryTokens, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    await ensure_owner_token(tokens, file)
    await tokens.revoke("owner")
    for _ in range(2):
        await ensure_owner_token(tokens, file)
        assert [info.revoked for info in await tokens.list()] == [True]
        file.unlink(missing_ok=True)
    assert not file.exists()
    assert len(caplog.records) == 2


async def test_a_file_that_holds_no_token_is_an_error(tokens: MemoryTokens, tmp_path: Path) -> None:
    write_private(tmp_path / "token", "short\n")
    with pytest.raises(InvalidInput):
        await ensure_owner_token(tokens, tmp_path / "token")


def test_the_client_finds_the_server_while_it_runs(tmp_path: Path) -> None:
    write_private(tmp_path / "token", "sky_abc\n")
    with recorded_server(tmp_path, URL):
        assert (tmp_path / "server.json").stat().st_mode & 0o777 == 0o600
        found = find_server(data_dir=tmp_path, environ={})
        assert (str(found.url), found.token) == (URL, "sky_abc")
    assert recorded_url(tmp_path) is None
    assert not (tmp_path / "server.json").exists()


def test_another_servers_record_is_left(tmp_path: Path) -> None:
    file = tmp_path / "server.json"
    other = {"url": URL, "pid": os.getpid() + 1}
    with recorded_server(tmp_path, URL):
        file.write_text(json.dumps(other))
    assert json.loads(file.read_text()) == other


def test_a_private_file_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "token").symlink_to(tmp_path / "target")
    write_private(tmp_path / "token", "new")
    assert (tmp_path / "target").read_text() == "old"
    assert not (tmp_path / "token").is_symlink()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
