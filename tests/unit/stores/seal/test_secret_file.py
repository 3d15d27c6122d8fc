"""What the sealed file promises beyond the port."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import InvalidInput, StoreFault
from skillyard.domain.secret import Delivery, SecretScope
from skillyard.stores.seal import sealing
from skillyard.stores.seal.keys import GivenKeyFile, key_source
from skillyard.stores.seal.secrets import SealedSecrets
from tests.unit.stores.seal.sealed import CRM, fresh_key, given, value
from tests.watching import counted

pytestmark = pytest.mark.anyio


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(directory: Path) -> SealedSecrets:
    return SealedSecrets(directory)


async def test_names_and_values_are_sealed_in_private_files(store: SealedSecrets, directory: Path) -> None:
    await store.set("API_KEY", "hunter2-hunter2", CRM, delivery=Delivery.GATE, hosts=["api.example.org"], by="ann")
    for path in directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        content = path.read_bytes()
        for word in (b"API_KEY", b"hunter2", b"crm", b"sales", b"example", base64.b64encode(b"hunter2-hunter2")[:12]):
            assert word not in content
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


async def test_reading_makes_no_files(store: SealedSecrets, directory: Path) -> None:
    assert await value(store) is None
    assert list(await store.list()) == []
    assert not await store.delete("A")
    assert not directory.exists()


async def test_another_process_changes_are_seen_at_once(store: SealedSecrets, directory: Path) -> None:
    other = SealedSecrets(directory)
    for number in range(20):
        await other.set("A", str(number))
        assert await value(store) == str(number)
    await other.delete("A")
    assert await value(store) is None


WRITER = """
import asyncio, sys
from pathlib import Path
from skillyard.stores.seal.secrets import SealedSecrets

async def main():
    store = SealedSecrets(Path(sys.argv[1]))
    for number in range(10):
        await store.set(f"{sys.argv[2]}_{number}", "v")

asyncio.run(main())
"""


async def test_concurrent_writers_lose_nothing(store: SealedSecrets, directory: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(directory)]
    processes = [subprocess.Popen([*command, name], stderr=subprocess.PIPE) for name in "ABC"]
    reading = asyncio.create_task(read_for_ever(SealedSecrets(directory)))
    await asyncio.gather(*(store.set(f"D_{number}", "v") for number in range(10)))
    for process in processes:
        assert (await asyncio.to_thread(process.communicate, timeout=60))[1] == b""
    assert not reading.done(), "a reader sees one state after the other, never an older one"
    reading.cancel()
    names = [entry.name for entry in await store.list()]
    assert names == sorted(f"{name}_{number}" for name in "ABCD" for number in range(10))


async def read_for_ever(store: SealedSecrets) -> None:
    while True:
        await asyncio.gather(*(store.list() for _ in range(3)))
        await asyncio.sleep(0)


def blobs_of(envelope: dict[str, Any]) -> list[Callable[[bytes], dict[str, Any]]]:
    """For each sealed piece of the file, what makes the file with another in its place."""
    pieces: list[Callable[[bytes], dict[str, Any]]] = [
        lambda data: {**envelope, "index": base64.b64encode(data).decode()}
    ]
    for id_ in envelope["values"]:
        pieces.append(
            lambda data, id_=id_: {  # type: ignore[misc]
                **envelope,
                "values": {**envelope["values"], id_: base64.b64encode(data).decode()},
            }
        )
    return pieces


async def test_any_change_without_the_key_is_found_out(store: SealedSecrets, directory: Path) -> None:
    await store.set("A", "value", CRM)
    path = directory / "secrets.sealed"
    envelope = json.loads(path.read_bytes())
    changed = [{**envelope, "key": "0" * 16}]
    sealed = [envelope["index"], *envelope["values"].values()]
    for text, piece in zip(sealed, blobs_of(envelope), strict=True):
        whole = base64.b64decode(text)
        changed += [piece(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]) for at in range(len(whole))]
        changed += [piece(b""), piece(whole[:-1]), piece(whole + b"x")]
    for other in changed:
        path.write_text(json.dumps(other))
        with pytest.raises(StoreFault, match=r"changed without its key|not at hand"):
            await value(SealedSecrets(directory))


async def faults_of(store: SealedSecrets) -> list[str]:
    """What every read of every version says that finds a fault."""
    seen = []
    for name, scope, number in (("A", CRM, 2), ("A", SecretScope(), 1), ("B", CRM, 1), ("A", CRM, 1)):
        await store.rollback(name, number, scope)
        try:
            await value(store, name, scope)
        except StoreFault as fault:
            seen.append(fault.message)
    return seen


async def test_values_cannot_change_places(store: SealedSecrets, directory: Path) -> None:
    """Between names, scopes and versions, nor be left out, added, or taken from an earlier file."""
    await store.set("A", "first", CRM)
    await store.set("A", "second", CRM)
    await store.set("A", "of everybody")
    await store.set("B", "other", CRM)
    path = directory / "secrets.sealed"
    old = json.loads(path.read_bytes())
    await store.delete("B", CRM)
    await store.set("B", "other", CRM)
    envelope = json.loads(path.read_bytes())
    values = envelope["values"]
    assert len(values) == 4
    for one, other in itertools.combinations(values, 2):
        path.write_text(json.dumps({**envelope, "values": {**values, one: values[other], other: values[one]}}))
        seen = await faults_of(SealedSecrets(directory))
        assert seen, "some read finds it out"
        assert all("changed without its key" in message for message in seen)
    [gone] = set(old["values"]) - set(values)
    [new] = set(values) - set(old["values"])
    for broken in (
        {**envelope, "values": {k: v for k, v in values.items() if k != new}},
        {**envelope, "values": {**values, gone: old["values"][gone]}},
        {**envelope, "values": {**values, new: old["values"][gone]}},
        {**envelope, "values": old["values"]},
        {**envelope, "index": old["index"]},
    ):
        path.write_text(json.dumps(broken))
        with pytest.raises(StoreFault, match="changed without its key"):
            await value(SealedSecrets(directory), "B")


async def test_who_saw_a_later_file_takes_no_earlier_one(store: SealedSecrets, directory: Path) -> None:
    await store.set("A", "old", CRM)
    path = directory / "secrets.sealed"
    old = path.read_bytes()
    await store.set("A", "new", CRM)
    new = path.read_bytes()
    assert await value(store) == "new"
    path.write_bytes(old)
    for asked in (store.find("A", "crm", "sales.x"), store.list(), store.set("B", "v"), store.rotate()):
        with pytest.raises(StoreFault, match="put back to an older state"):
            await asked
    path.unlink()
    with pytest.raises(StoreFault, match="put back to an older state"):
        await value(store)
    path.write_bytes(old)
    path.chmod(0o600)
    branch = SealedSecrets(directory)
    assert await value(branch) == "old", "who starts later cannot know: docs/secrets.md says so"
    await branch.set("A", "another", CRM)
    with pytest.raises(StoreFault, match="put back to an older state"):
        await value(store)
    path.write_bytes(new)
    assert await value(store) == "new"


async def test_one_read_opens_one_value(store: SealedSecrets, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        await store.set(f"S{number}", f"value-{number}")
    fresh = SealedSecrets(directory)
    opened: list[bytes] = []
    plain = sealing.Cipher.open

    def watched(self: sealing.Cipher, sealed: bytes, bound: bytes, name: str) -> bytes:
        opened.append(plain(self, sealed, bound, name))
        return opened[-1]

    monkeypatch.setattr(sealing.Cipher, "open", watched)
    assert await value(fresh, "S7") == "value-7"
    assert [data for data in opened if data.startswith(b"value-")] == [b"value-7"]
    assert await value(fresh, "S7") == "value-7"
    assert len(opened) == 3, "the index once, the value each time: none is kept open"


@pytest.mark.parametrize(
    "content",
    [
        *("", "{}", "[]", "null", "not json", '{"v": 1, "key": 1, "nonce": "!", "sealed": 3}'),
        *('{"v": 2, "key": 1, "index": "!", "values": {}}', '{"v": 2, "key": 1, "index": "", "values": []}'),
    ],
)
async def test_a_damaged_file_is_a_fault_and_is_not_overwritten(
    store: SealedSecrets, directory: Path, content: str
) -> None:
    await store.set("A", "value")
    key = (directory / "secrets.key").read_text()
    envelope = json.loads((directory / "secrets.sealed").read_text())
    content = content.replace('"key": 1', f'"key": "{envelope["key"]}"')
    (directory / "secrets.sealed").write_text(content)
    for asked in (store.find("A", "p", "s"), store.list(), store.set("B", "v"), store.delete("A"), store.rotate()):
        with pytest.raises(StoreFault, match=r"is damaged"):
            await asked
    assert (directory / "secrets.sealed").read_text() == content
    assert (directory / "secrets.key").read_text() == key


async def test_a_later_format_is_not_touched(store: SealedSecrets, directory: Path) -> None:
    await store.set("A", "value")
    (directory / "secrets.sealed").write_text('{"v": 3, "key": "x"}')
    with pytest.raises(StoreFault, match="upgrade skillyard"):
        await SealedSecrets(directory).set("A", "v")


@pytest.mark.parametrize("name", ["secrets.sealed", "secrets.key"])
async def test_files_open_to_others_are_refused(store: SealedSecrets, directory: Path, name: str) -> None:
    await store.set("A", "value")
    (directory / name).chmod(0o640)
    with pytest.raises(StoreFault, match=r"chmod 600"):
        await value(SealedSecrets(directory))


async def test_a_missing_key_is_never_replaced_by_a_new_one(store: SealedSecrets, directory: Path) -> None:
    await store.set("A", "value")
    (directory / "secrets.key").unlink()
    other = SealedSecrets(directory)
    for asked in (other.find("A", "p", "s"), other.set("B", "v"), other.rotate()):
        with pytest.raises(StoreFault, match=r"key of .* is missing"):
            await asked
    assert not (directory / "secrets.key").exists()


async def test_a_given_key_leaves_no_key_on_the_disk(directory: Path) -> None:
    key = fresh_key()
    await given(directory, key).set("A", "value")
    assert not (directory / "secrets.key").exists()
    assert await value(given(directory, key)) == "value"
    with pytest.raises(StoreFault, match="not at hand"):
        await value(given(directory, fresh_key()))
    for bad in ("", "short", key[:-4], "ü" * 44):
        with pytest.raises(StoreFault, match="SKILLYARD_SECRETS_KEY") as caught:
            given(directory, bad)
        assert not bad or bad not in str(caught.value)


async def test_a_key_file_of_somebody_elses(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "credential"
    store = SealedSecrets(directory, GivenKeyFile(file))
    with pytest.raises(StoreFault, match=r"key file .*credential is missing"):
        await store.set("A", "value")
    key = fresh_key()
    file.write_text(key + "\n")
    await store.set("A", "value")
    assert await value(given(directory, key)) == "value"
    file.write_text(f"{fresh_key()},{key}")
    await store.rotate()
    with pytest.raises(StoreFault, match="not at hand"):
        await value(given(directory, key))
    file.write_text("x" * 5000)
    with pytest.raises(StoreFault, match="larger than"):
        await value(SealedSecrets(directory, GivenKeyFile(file)))


def test_the_key_is_in_one_place(tmp_path: Path) -> None:
    for options in ({"file": tmp_path / "a"}, {"keyring": "a"}):
        with pytest.raises(InvalidInput, match="one place holds the key"):
            key_source(tmp_path, **{"variable": fresh_key(), "file": None, "keyring": "", **options})  # type: ignore[arg-type]


async def test_the_key_file_rotates(store: SealedSecrets, directory: Path) -> None:
    await store.set("A", "value")
    old = (directory / "secrets.key").read_text()
    before = json.loads((directory / "secrets.sealed").read_text())
    await store.rotate()
    after = json.loads((directory / "secrets.sealed").read_text())
    assert set(before["values"].values()).isdisjoint(after["values"].values())
    assert (directory / "secrets.key").read_text() != old
    assert (directory / "secrets.key").read_text().count("\n") == 1
    assert await value(store) == await value(SealedSecrets(directory)) == "value"
    with pytest.raises(StoreFault, match="not at hand"):
        await value(given(directory, old.strip()))


async def test_given_keys_rotate_by_order(directory: Path) -> None:
    old, new = fresh_key(), fresh_key()
    await given(directory, old).set("A", "value")
    both = given(directory, new, old)
    assert await value(both) == "value"
    await both.rotate()
    assert await value(given(directory, new)) == "value"


async def test_every_change_leaves_all_under_the_current_key(directory: Path) -> None:
    old, new = fresh_key(), fresh_key()
    await given(directory, old).set("A", "value")
    await given(directory, old).set("A", "later")
    await given(directory, new, old).set("B", "v")
    store = given(directory, new)
    assert await value(store) == "later"
    await store.rollback("A", 1)
    assert await value(store) == "value"


async def test_cryptography_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, skillyard.stores.seal.secrets; sys.exit('cryptography' in sys.modules)"
    assert (await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], check=False)).returncode == 0


async def test_a_get_on_a_warm_server_opens_no_file(store: SealedSecrets) -> None:
    await store.set("A", "value")
    await store.find("A", "p", "s")
    with counted() as events:
        await store.find("A", "p", "s")
    assert not events["open"]
