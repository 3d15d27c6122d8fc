"""Sealed files of the first format: read as they are, moved on with the first change."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from skillyard.domain.errors import StoreFault
from skillyard.domain.secret import Delivery, SecretScope
from skillyard.stores.seal.keys import GivenKeys
from skillyard.stores.seal.secrets import SealedSecrets
from tests.unit.stores.seal.sealed import CRM, fresh_key, given, value

pytestmark = pytest.mark.anyio


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


def seal_old(values: dict[str, str], key: str) -> bytes:
    """The file as the first format had it: all names and values sealed as one."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    material = base64.b64decode(key)
    id_ = GivenKeys(key).read()[0].id
    nonce = os.urandom(12)
    sealed = AESGCM(material).encrypt(nonce, json.dumps(values).encode(), f"skillyard secrets 1 {id_}".encode())
    envelope = {"v": 1, "key": id_, "nonce": base64.b64encode(nonce).decode()}
    return json.dumps({**envelope, "sealed": base64.b64encode(sealed).decode()}, indent=1).encode() + b"\n"


async def test_the_first_format_is_read_and_moved_on_with_the_first_change(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    key, path = fresh_key(), directory / "secrets.sealed"
    (directory / "secrets.key").write_text(key + "\n")
    path.write_bytes(old := seal_old({"A": "one", "B": "two\n"}, key))
    for file in directory.iterdir():
        file.chmod(0o600)
    store = SealedSecrets(directory)
    assert [await value(store, name) for name in "ABC"] == ["one", "two\n", None]
    [entry, _] = await store.list()
    assert (entry.current, entry.scope, entry.delivery) == (1, SecretScope(), Delivery.ENV)
    assert abs(entry.versions[0].created_at - path.stat().st_mtime) < 1
    assert path.read_bytes() == old, "reading changes nothing"
    await store.set("C", "three", CRM)
    assert json.loads(path.read_bytes())["v"] == 2
    assert [await value(SealedSecrets(directory), name) for name in "ABC"] == ["one", "two\n", "three"]
    path.write_bytes(old)
    with pytest.raises(StoreFault, match="put back to an older state"):
        await value(store)


async def test_the_first_format_is_held_to_its_key_too(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    path, key = directory / "secrets.sealed", fresh_key()
    envelope = json.loads(seal_old({"A": "one"}, key))
    sealed = bytearray(base64.b64decode(envelope["sealed"]))
    sealed[3] ^= 1
    path.write_text(json.dumps({**envelope, "sealed": base64.b64encode(sealed).decode()}))
    path.chmod(0o600)
    with pytest.raises(StoreFault, match="changed without its key"):
        await value(given(directory, key))
