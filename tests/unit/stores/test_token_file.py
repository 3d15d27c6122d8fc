"""What the file of tokens promises beyond the port."""

from __future__ import annotations

import asyncio
import hashlib
import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from skillyard.domain.errors import StoreFault
from skillyard.domain.principal import Principal, Scope
from skillyard.stores.files.state_file import StateFile
from skillyard.stores.files.tokens import USED_EVERY_S, FileTokens
from skillyard.testing.memory import ManualClock

pytestmark = pytest.mark.anyio

CI = Principal("ci", frozenset({Scope.DISCOVER}), ("sales.*",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "tokens.json"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tokens(path: Path, clock: ManualClock) -> FileTokens:
    return FileTokens(path, clock)


async def test_tokens_are_hashed_in_a_private_file(tokens: FileTokens, path: Path) -> None:
    token = await tokens.create(CI)
    content = path.read_text()
    assert token not in content
    assert token[4:] not in content
    assert hashlib.sha256(token.encode()).hexdigest() not in content
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_digests_are_keyed_per_file(tmp_path: Path, clock: ManualClock) -> None:
    value = "the-same-value-in-two-places"
    digests = []
    for name in "ab":
        await FileTokens(tmp_path / name, clock).create(CI, value)
        digests.append(json.loads((tmp_path / name).read_text())["tokens"][0]["digest"])
    assert digests[0] != digests[1]


async def test_another_process_changes_count_at_once(tokens: FileTokens, path: Path, clock: ManualClock) -> None:
    other = FileTokens(path, clock)
    for number in range(20):
        principal = Principal(f"p{number}")
        token = await other.create(principal)
        assert await tokens.verify(token) == principal
        await other.revoke(principal.name)
        assert await tokens.verify(token) is None


async def test_a_file_that_is_gone_lets_nobody_in(tokens: FileTokens, path: Path) -> None:
    token = await tokens.create(CI)
    assert await tokens.verify(token) == CI
    path.unlink()
    assert await tokens.verify(token) is None
    assert not path.exists()


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"v": 1, "key": "00", "tokens": []}', '{"v": 1, "key": "zz", "tokens": [{}]}']
)
async def test_a_damaged_file_is_a_fault_and_is_not_overwritten(tokens: FileTokens, path: Path, content: str) -> None:
    token = await tokens.create(CI)
    path.write_text(content)
    for asked in (tokens.verify(token), tokens.list(), tokens.create(Principal("b")), tokens.revoke("ci")):
        with pytest.raises(StoreFault, match="is damaged"):
            await asked
    assert path.read_text() == content


async def test_a_file_of_a_newer_version_is_a_fault(tokens: FileTokens, path: Path) -> None:
    token = await tokens.create(CI)
    path.write_text(json.dumps({**json.loads(path.read_text()), "v": 4}))
    with pytest.raises(StoreFault, match="another version"):
        await tokens.verify(token)


async def test_projects_are_kept_and_files_without_them_read(tokens: FileTokens, path: Path) -> None:
    token = await tokens.create(CI)
    document = json.loads(path.read_text())
    assert document["v"] == 1, "what an older skillyard reads rightly it may read"
    assert "project" not in document["tokens"][0]
    other = await tokens.create(Principal("other", project="crm"))
    assert json.loads(path.read_text())["v"] == 2, "and what it would read wrongly not"
    fresh = FileTokens(path, ManualClock())
    seen = [await fresh.verify(text) for text in (token, other)]
    assert [principal and principal.project for principal in seen] == ["default", "crm"]
    await fresh.revoke("ci")
    assert await fresh.verify(other) == Principal("other", project="crm")


async def test_agents_are_kept_in_a_format_of_their_own(tokens: FileTokens, path: Path) -> None:
    crm, bot = (
        Principal("ann", project="crm"),
        Principal("bot", agent="crawler", agents=("crawler-*",), profile="bounded"),
    )
    texts = [await tokens.create(crm)]
    assert json.loads(path.read_text())["v"] == 2, "an older skillyard reads it rightly"
    texts.append(await tokens.create(bot))
    document = json.loads(path.read_text())
    assert document["v"] == 3, "an older skillyard would take it for a token without bounds"
    assert [set(entry) & {"agent", "agents", "profile"} for entry in document["tokens"]] == [
        set(),
        {"agent", "agents", "profile"},
    ]
    fresh = FileTokens(path, ManualClock())
    assert [await fresh.verify(text) for text in texts] == [crm, bot]


async def test_a_file_open_to_others_is_refused(tokens: FileTokens, path: Path, clock: ManualClock) -> None:
    token = await tokens.create(CI)
    path.chmod(0o620)
    with pytest.raises(StoreFault, match="chmod 600"):
        await FileTokens(path, clock).verify(token)


async def test_last_use_is_written_now_and_then(tokens: FileTokens, path: Path, clock: ManualClock) -> None:
    def written() -> float | None:
        used: float | None = json.loads(path.read_text())["tokens"][0]["last_used_at"]
        return used

    token = await tokens.create(CI)
    clock.advance(5)
    await tokens.verify(token)
    assert written() == clock.now()
    clock.advance(USED_EVERY_S / 2)
    before = path.stat().st_ino
    await tokens.verify(token)
    assert path.stat().st_ino == before, "not at every use"
    assert (await tokens.list())[0].last_used_at == clock.now(), "but a list knows"
    clock.advance(USED_EVERY_S)
    await tokens.verify(token)
    assert written() == clock.now()
    assert (await FileTokens(path, clock).list())[0].last_used_at == clock.now()


async def test_last_use_that_cannot_be_written_locks_nobody_out(
    tokens: FileTokens, path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    token = await tokens.create(CI)
    (path.parent / f".{path.name}.new").mkdir()
    assert await tokens.verify(token) == CI
    assert "last use" in caplog.text
    assert token not in caplog.text


async def test_last_use_waits_for_nobody(tokens: FileTokens, path: Path) -> None:
    token = await tokens.create(CI)
    before = path.read_bytes()
    with StateFile(path).locked():
        assert await tokens.verify(token) == CI
    assert path.read_bytes() == before


async def test_the_whole_digest_counts(tokens: FileTokens, path: Path) -> None:
    token = await tokens.create(CI)
    document = json.loads(path.read_text())
    entry = document["tokens"][0]
    entry["digest"] = entry["digest"][:-1] + ("1" if entry["digest"][-1] == "0" else "0")
    path.write_text(json.dumps(document))
    assert await tokens.verify(token) is None


CREATOR = """
import asyncio, sys
from pathlib import Path
from skillyard.domain.principal import Principal
from skillyard.stores.clock import SystemClock
from skillyard.stores.files.state_file import StateFile
from skillyard.stores.files.tokens import FileTokens

async def main():
    tokens = FileTokens(Path(sys.argv[1]), SystemClock())
    for number in range(10):
        print(await tokens.create(Principal(f"{sys.argv[2]}{number}")))

asyncio.run(main())
"""


async def test_concurrent_creators_lose_nothing(tokens: FileTokens, path: Path) -> None:
    command = [sys.executable, "-c", CREATOR, str(path)]
    processes = [
        subprocess.Popen([*command, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for name in "abc"
    ]
    made = [await tokens.create(Principal(f"d{number}")) for number in range(10)]
    for token in made:
        assert await tokens.verify(token)
    for process in processes:
        output, errors = await asyncio.to_thread(process.communicate, timeout=60)
        assert errors == ""
        made += output.split()
    names = {principal.name for token in made if (principal := await tokens.verify(token))}
    assert names == {f"{name}{number}" for name in "abcd" for number in range(10)}
