"""Promises of sealed states beyond their ports: nothing without the key, and the same after its change."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from skillyard.domain.errors import StoreFault
from skillyard.stores.seal.keys import GivenKeys, KeySource, key_source
from skillyard.stores.seal.secrets import SealedSecrets
from skillyard.stores.seal.sessions import SealedSessions
from tests.unit.stores.seal.sealed import fresh_key, own_keys

pytestmark = pytest.mark.anyio
STATE = b'{"value": "hunter2-hunter2", "placeholder": "skillyard-secret-0123"}'


def sessions(home: Path, keys: KeySource | None = None) -> SealedSessions:
    return SealedSessions(home / "sessions", keys or own_keys(home))


async def test_a_stolen_directory_tells_nothing(tmp_path: Path) -> None:
    key = fresh_key()
    store = sessions(tmp_path, GivenKeys(key))
    await store.put("run_1", STATE)
    for path in (tmp_path / "sessions").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert not any(word in path.read_bytes() for word in (b"hunter2", b"placeholder", b"skillyard-secret"))
    assert stat.S_IMODE((tmp_path / "sessions").stat().st_mode) == 0o700
    thief = sessions(tmp_path, GivenKeys(fresh_key()))
    with pytest.raises(StoreFault, match="key that is not at hand"):
        await thief.get("run_1")
    assert list(await thief.keys()) == ["run_1"]
    assert await store.get("run_1") == STATE


async def test_a_changed_state_is_refused(tmp_path: Path) -> None:
    store = sessions(tmp_path)
    await store.put("run_1", STATE)
    path = tmp_path / "sessions" / "run_1.sealed"
    whole = path.read_bytes()
    for at in (0, 25, 40, len(whole) // 2, len(whole) - 1):
        changed = bytearray(whole)
        changed[at] ^= 1
        path.write_bytes(changed)
        with pytest.raises(StoreFault):
            await store.get("run_1")
    for short in (b"", whole[:10], whole[:36], whole[:-1]):
        path.write_bytes(short)
        with pytest.raises(StoreFault):
            await store.get("run_1")


async def test_states_cannot_change_places(tmp_path: Path) -> None:
    store = sessions(tmp_path)
    await store.put("run_1", STATE)
    shutil.copy(tmp_path / "sessions" / "run_1.sealed", tmp_path / "sessions" / "run_2.sealed")
    with pytest.raises(StoreFault, match="changed without its key"):
        await store.get("run_2")
    assert await store.get("run_1") == STATE


async def test_without_a_key_nothing_is_kept(tmp_path: Path) -> None:
    keys = key_source(tmp_path, variable=None, file=tmp_path / "missing", keyring="")
    store = sessions(tmp_path, keys)
    with pytest.raises(StoreFault, match=r"key file .* is missing"):
        await store.put("run_1", STATE)
    assert list(await store.keys()) == []
    await sessions(tmp_path).put("run_2", STATE)
    with pytest.raises(StoreFault, match=r"key file .* is missing"):
        await store.get("run_2")
    await store.erase("run_2")
    assert list(await store.keys()) == []


async def test_a_new_key_seals_sessions_too(tmp_path: Path) -> None:
    keys = own_keys(tmp_path)
    store = sessions(tmp_path, keys)
    secrets = SealedSecrets(tmp_path, keys, sessions=store)
    await secrets.set("API_KEY", "value-value")
    await store.put("run_1", STATE)
    before = keys.read()
    await secrets.rotate()
    assert keys.read() != before
    assert await store.get("run_1") == STATE
    assert await sessions(tmp_path, GivenKeys(keys.read()[0].text())).get("run_1") == STATE


async def test_values_of_a_run_are_sealed_and_erased(tmp_path: Path) -> None:
    store = SealedSecrets(tmp_path, own_keys(tmp_path))
    await store.keep("run_1", ["hunter2-hunter2"])
    [path] = (tmp_path / "run" / "secrets").glob("*.sealed")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"hunter2" not in path.read_bytes()
    with pytest.raises(StoreFault, match="key that is not at hand"):
        await SealedSecrets(tmp_path, GivenKeys(fresh_key())).kept("run_1")
    await store.forget("run_1")
    assert not path.exists()


async def test_a_state_of_another_kind_is_refused(tmp_path: Path) -> None:
    keys = own_keys(tmp_path)
    store = SealedSecrets(tmp_path, keys)
    await store.keep("run_1", [])
    await sessions(tmp_path, keys).put("run_1", b'["from a session"]')
    shutil.copy(tmp_path / "sessions" / "run_1.sealed", tmp_path / "run" / "secrets" / "run_1.sealed")
    with pytest.raises(StoreFault, match="damaged"):
        await store.kept("run_1")
