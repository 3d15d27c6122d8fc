"""create_blob, read_blob and the operator's blob methods (skills-protocol §5)."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from skillyard.domain.checks import is_blob_id
from skillyard.domain.errors import BlobNotFound, InvalidInput, QuotaExceeded
from skillyard.domain.principal import Principal, Scope
from skillyard.engine.blobs.service import MAX_READ
from tests.unit.engine.conftest import Rig

pytestmark = pytest.mark.anyio


async def made(rig: Rig, content: str | bytes, kind: str = "text/plain") -> str:
    if isinstance(content, bytes):
        encoded = base64.b64encode(content).decode()
        answer = await rig.call("create_blob", content=encoded, kind=kind, encoding="base64")
    else:
        answer = await rig.call("create_blob", content=content, kind=kind)
    return str(answer["blob_id"])


async def test_create_counts_the_stored_bytes(rig: Rig) -> None:
    answer = await rig.call("create_blob", content="é", kind="text/plain")
    assert answer["size_bytes"] == 2
    assert is_blob_id(answer["blob_id"])
    assert set(answer) == {"blob_id", "size_bytes"}
    answer = await rig.call("create_blob", content="AAAA", kind="application/pdf", encoding="base64")
    assert answer["size_bytes"] == 3
    assert (await rig.call("create_blob", content="AAAA", kind="application/pdf"))["size_bytes"] == 4


async def test_empty_content_is_allowed(rig: Rig) -> None:
    blob_id = await made(rig, "")
    assert await rig.call("read_blob", blob_id=blob_id) == {
        "blob_id": blob_id,
        "kind": "text/plain",
        "preview": "",
        "size_bytes": 0,
        "truncated": False,
        "encoding": "utf-8",
    }


async def test_too_large_for_json_leaves_nothing(rig: Rig) -> None:
    rig.configure(blobs={"json_bytes": 10})
    with pytest.raises(QuotaExceeded) as caught:
        await rig.call("create_blob", content="x" * 11, kind="text/plain")
    assert caught.value.code == -32602
    assert (await rig.call("blobs.list"))["blobs"] == []


@pytest.mark.parametrize(
    ("mode", "max_bytes", "preview", "truncated"),
    [
        ("sample_head", 3, "aé", True),
        ("sample_head", 4, "aé", True),
        ("sample_head", 2, "a", True),
        ("sample_head", 100, "aé漢z", False),
        ("sample_tail", 1, "z", True),
        ("sample_tail", 3, "z", True),
        ("sample_tail", 4, "漢z", True),
        ("sample_tail", 7, "aé漢z", False),
        ("full", 1, "aé漢z", False),
    ],
)
async def test_text_is_cut_between_characters(
    rig: Rig, mode: str, max_bytes: int, preview: str, truncated: bool
) -> None:
    blob_id = await made(rig, "aé漢z")
    answer = await rig.call("read_blob", blob_id=blob_id, mode=mode, max_bytes=max_bytes)
    assert (answer["preview"], answer["truncated"], answer["encoding"]) == (preview, truncated, "utf-8")
    assert answer["size_bytes"] == 7


async def test_the_default_is_the_first_2000_bytes(rig: Rig) -> None:
    answer = await rig.call("read_blob", blob_id=await made(rig, "x" * 3000))
    assert (len(answer["preview"]), answer["truncated"], answer["size_bytes"]) == (2000, True, 3000)


@pytest.mark.parametrize(
    ("data", "kind", "encoding"),
    [
        (b"\xff\x00", "text/plain", "base64"),
        (b"%PDF", "application/pdf", "base64"),
        (b"{}", "application/json", "utf-8"),
        (b"<a/>", "application/xml", "utf-8"),
        (b"<a/>", "image/svg+xml", "utf-8"),
        (b"a,b", "text/csv; charset=utf-8", "utf-8"),
    ],
)
async def test_what_is_no_text_comes_as_base64(rig: Rig, data: bytes, kind: str, encoding: str) -> None:
    answer = await rig.call("read_blob", blob_id=await made(rig, data, kind), mode="full")
    assert answer["encoding"] == encoding
    shown = answer["preview"]
    assert (base64.b64decode(shown) if encoding == "base64" else shown.encode()) == data


async def test_full_has_a_cap_and_says_what_to_do(rig: Rig) -> None:
    info = await rig.app.ports.blobs.create("local", "text/plain", b"x" * (MAX_READ + 1))
    with pytest.raises(InvalidInput, match=rf"{MAX_READ} bytes and this one has {MAX_READ + 1}.*sample") as caught:
        await rig.call("read_blob", blob_id=info.blob_id, mode="full")
    assert caught.value.data["size_bytes"] == MAX_READ + 1
    assert (await rig.call("read_blob", blob_id=info.blob_id, mode="sample_tail"))["preview"] == "x" * 2000


async def test_blobs_belong_to_their_maker(rig: Rig) -> None:
    blob_id = await made(rig, "mine")
    other = Principal("other", frozenset({Scope.BLOBS}))
    for method in ("read_blob", "blobs.stat", "blobs.delete"):
        errors: list[Any] = []
        for asked in (blob_id, "blob:never-was"):
            with pytest.raises(BlobNotFound) as caught:
                await rig.call(method, other, blob_id=asked)
            errors.append(str(caught.value).replace(asked, "X"))
        assert errors[0] == errors[1]
    assert (await rig.call("blobs.list", other))["blobs"] == []
    admin = Principal("root", frozenset({Scope.ADMIN}))
    assert (await rig.call("read_blob", admin, blob_id=blob_id))["preview"] == "mine"
    assert len((await rig.call("blobs.list", admin, all=True))["blobs"]) == 1


async def test_list_stat_delete(rig: Rig) -> None:
    ids = [await made(rig, f"{number}") for number in range(5)]
    seen, cursor = [], None
    while True:
        page = await rig.call("blobs.list", limit=2, cursor=cursor)
        seen += [blob["blob_id"] for blob in page["blobs"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ids[::-1]
    blob = (await rig.call("blobs.stat", blob_id=ids[0]))["blob"]
    assert (blob["kind"], blob["size_bytes"], blob["owner"], len(blob["sha256"])) == ("text/plain", 1, "local", 64)
    assert await rig.call("blobs.delete", blob_id=ids[0]) == {"deleted": True}
    with pytest.raises(BlobNotFound):
        await rig.call("blobs.delete", blob_id=ids[0])


async def test_blobs_expire(rig: Rig) -> None:
    blob_id = await made(rig, "x")
    rig.clock.time += 8 * 86400
    with pytest.raises(BlobNotFound):
        await rig.call("read_blob", blob_id=blob_id)
