"""What the sealed file promises beyond the port."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from skillyard.domain.errors import StoreFault
from skillyard.stores.secrets import SealedSecrets

pytestmark = pytest.mark.anyio


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(directory: Path) -> SealedSecrets:
    return SealedSecrets(directory)


def fresh_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


async def test_names_and_values_are_sealed_in_private_files(store: SealedSecrets, directory: Path) -> None:
    await store.set("API_KEY", "hunter2-hunter2")
    for path in directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        content = path.read_bytes()
        assert b"API_KEY" not in content
        assert b"hunter2" not in content
        assert base64.b64encode(b"hunter2-hunter2")[:12] not in content
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


async def test_reading_makes_no_files(store: SealedSecrets, directory: Path) -> None:
    assert await store.get("A") is None
    assert list(await store.names()) == []
    assert not await store.delete("A")
    assert not directory.exists()


async def test_another_process_changes_are_seen_at_once(store: SealedSecrets, directory: Path) -> None:
    other = SealedSecrets(directory)
    for number in range(20):
        await other.set("A", str(number))
        assert await store.get("A") == str(number)
    await other.delete("A")
    assert await store.get("A") is None


WRITER = """
import asyncio, sys
from pathlib import Path
from skillyard.stores.secrets import SealedSecrets

async def main():
    store = SealedSecrets(Path(sys.argv[1]))
    for number in range(10):
        await store.set(f"{sys.argv[2]}_{number}", "v")

asyncio.run(main())
"""


async def test_concurrent_writers_lose_nothing(store: SealedSecrets, directory: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(directory)]
    processes = [subprocess.Popen([*command, name], stderr=subprocess.PIPE) for name in "ABC"]
    await asyncio.gather(*(store.set(f"D_{number}", "v") for number in range(10)))
    for process in processes:
        assert process.communicate(timeout=60)[1] == b""
    assert list(await store.names()) == sorted(f"{name}_{number}" for name in "ABCD" for number in range(10))


async def test_any_change_without_the_key_is_found_out(store: SealedSecrets, directory: Path) -> None:
    await store.set("A", "value")
    path = directory / "secrets.sealed"
    envelope = json.loads(path.read_bytes())
    sealed = base64.b64decode(envelope["sealed"])
    changed = [{**envelope, "key": "0" * 16}, {**envelope, "nonce": base64.b64encode(bytes(12)).decode()}]
    for place in range(len(sealed)):
        flipped = sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]
        changed.append({**envelope, "sealed": base64.b64encode(flipped).decode()})
    for other in changed:
        path.write_text(json.dumps(other))
        with pytest.raises(StoreFault, match=r"changed without its key|not at hand"):
            await store.get("A")


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "null", "not json", '{"v": 1, "key": 1, "nonce": "!", "sealed": 3}']
)
async def test_a_damaged_file_is_a_fault_and_is_not_overwritten(
    store: SealedSecrets, directory: Path, content: str
) -> None:
    await store.set("A", "value")
    (directory / "secrets.sealed").write_text(content)
    for asked in (store.get("A"), store.names(), store.set("B", "v"), store.delete("A")):
        with pytest.raises(StoreFault, match=r"is damaged"):
            await asked
    assert (directory / "secrets.sealed").read_text() == content


@pytest.mark.parametrize("name", ["secrets.sealed", "secrets.key"])
async def test_files_open_to_others_are_refused(store: SealedSecrets, directory: Path, name: str) -> None:
    await store.set("A", "value")
    (directory / name).chmod(0o640)
    with pytest.raises(StoreFault, match=r"chmod 600"):
        await SealedSecrets(directory).get("A")


async def test_a_missing_key_is_never_replaced_by_a_new_one(store: SealedSecrets, directory: Path) -> None:
    await store.set("A", "value")
    (directory / "secrets.key").unlink()
    other = SealedSecrets(directory)
    for asked in (other.get("A"), other.set("B", "v")):
        with pytest.raises(StoreFault, match=r"key of .* is missing"):
            await asked
    assert not (directory / "secrets.key").exists()


async def test_a_given_key_leaves_no_key_on_the_disk(directory: Path) -> None:
    key = fresh_key()
    await SealedSecrets(directory, key=key).set("A", "value")
    assert not (directory / "secrets.key").exists()
    assert await SealedSecrets(directory, key=key).get("A") == "value"
    with pytest.raises(StoreFault, match="not at hand"):
        await SealedSecrets(directory, key=fresh_key()).get("A")
    for bad in ("", "short", key[:-4], "ü" * 44):
        with pytest.raises(StoreFault, match="SKILLYARD_SECRETS_KEY") as caught:
            SealedSecrets(directory, key=bad)
        assert not bad or bad not in str(caught.value)


async def test_the_key_file_rotates(store: SealedSecrets, directory: Path) -> None:
    await store.set("A", "value")
    old = (directory / "secrets.key").read_text()
    await store.rotate()
    assert (directory / "secrets.key").read_text() != old
    assert (directory / "secrets.key").read_text().count("\n") == 1
    assert await store.get("A") == await SealedSecrets(directory).get("A") == "value"
    with pytest.raises(StoreFault, match="not at hand"):
        await SealedSecrets(directory, key=old.strip()).get("A")


async def test_given_keys_rotate_by_order(directory: Path) -> None:
    old, new = fresh_key(), fresh_key()
    await SealedSecrets(directory, key=old).set("A", "value")
    both = SealedSecrets(directory, key=f"{new},{old}")
    assert await both.get("A") == "value"
    await both.rotate()
    assert await SealedSecrets(directory, key=new).get("A") == "value"


async def test_cryptography_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, skillyard.stores.secrets; sys.exit('cryptography' in sys.modules)"
    assert (await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], check=False)).returncode == 0
