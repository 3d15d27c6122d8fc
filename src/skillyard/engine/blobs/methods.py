"""Blob methods: ``create_blob`` and ``read_blob`` (skills-protocol §5), and the operator's three."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from skillyard.domain.errors import BlobNotFound, InvalidInput, QuotaExceeded, shape
from skillyard.domain.principal import Principal, Scope
from skillyard.engine.blobs.service import MAX_READ, BlobService
from skillyard.engine.method import (
    BLOB_ID,
    BOOLEAN,
    CURSOR,
    INTEGER,
    STRING,
    Method,
    answer,
    continuing,
    described,
    list_of,
    obj,
    whose,
)
from skillyard.engine.shapes import BLOB, NEXT_CURSOR
from skillyard.engine.text import cut_head, cut_tail, is_text, show
from skillyard.ports.blobs import BlobInfo


async def create_blob(blobs: BlobService, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    info = await blobs.put_value(principal, params["kind"], _decoded(params["content"], params["encoding"]))
    return {"blob_id": info.blob_id, "size_bytes": info.size}


def _decoded(content: str, encoding: str) -> bytes:
    if encoding == "utf-8":
        try:
            return content.encode()
        except UnicodeEncodeError:
            rule = "must be Unicode text without lone surrogates"
            raise InvalidInput("content", rule, shape(content)) from None
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("content", "must be base64 (RFC 4648 §4)", shape(content)) from None


async def read_blob(blobs: BlobService, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    async with blobs.sample(principal, params["blob_id"], params["mode"], params["max_bytes"]) as (info, offset, data):
        text = is_text(info.kind)
        if text:
            data = _on_boundaries(data, starts=offset == 0, ends=offset + len(data) >= info.size)
        content, encoding = show(data, text=text)
    return {
        "blob_id": info.blob_id,
        "kind": info.kind,
        "preview": content,
        "size_bytes": info.size,
        "truncated": len(data) < info.size,
        "encoding": encoding,
    }


def _on_boundaries(data: bytes, *, starts: bool, ends: bool) -> bytes:
    data = data if starts else cut_tail(data)
    return data if ends else cut_head(data)


async def list_blobs(blobs: BlobService, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    limit, cursor = params["limit"], params["cursor"]
    with continuing(cursor):
        found = await blobs.list(whose(principal, params), limit=limit + 1, after=cursor)
    page = found[:limit]
    return {
        "blobs": [_view(info) for info in page],
        "next_cursor": page[-1].blob_id if len(found) > limit else None,
    }


async def stat_blob(blobs: BlobService, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"blob": _view(await blobs.stat(principal, params["blob_id"]))}


async def delete_blob(blobs: BlobService, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"deleted": await blobs.delete(principal, params["blob_id"])}


def _view(info: BlobInfo) -> dict[str, Any]:
    """A blob's JSON form, with ``size_bytes`` as the protocol calls it."""
    fields = asdict(info)
    fields["size_bytes"] = fields.pop("size")
    return fields


TABLE = (
    Method(
        name="create_blob",
        doc="Store text or base64 bytes and return the id to pass around instead of the content.",
        params=obj(
            {
                "content": described(STRING, "text, or base64 when encoding says so"),
                "kind": described(STRING, "MIME type", minLength=3, maxLength=255),
                "encoding": {
                    "type": "string",
                    "enum": ["utf-8", "base64"],
                    "default": "utf-8",
                    "description": "how content carries the bytes",
                },
            },
            "content",
            "kind",
        ),
        example={"content": "region,amount\nnorth,5\n", "kind": "text/csv"},
        result=answer({"blob_id": STRING, "size_bytes": INTEGER}),
        scope=Scope.BLOBS,
        errors=(QuotaExceeded,),
        surface="protocol",
        handler=create_blob,
        service=BlobService,
    ),
    Method(
        name="read_blob",
        doc="Read the head, the tail or the whole of a blob.",
        params=obj(
            {
                "blob_id": BLOB_ID,
                "mode": {
                    "type": "string",
                    "enum": ["sample_head", "sample_tail", "full"],
                    "default": "sample_head",
                    "description": "first max_bytes, last max_bytes, or everything",
                },
                "max_bytes": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_READ,
                    "default": 2000,
                    "description": "how much a sample holds; 'full' gives the whole blob",
                },
            },
            "blob_id",
        ),
        example={"blob_id": "blob:EXAMPLE", "mode": "sample_head"},
        result=answer(
            {
                "blob_id": STRING,
                "kind": STRING,
                "preview": STRING,
                "size_bytes": INTEGER,
                "truncated": BOOLEAN,
                "encoding": {"type": "string", "enum": ["utf-8", "base64"]},
            }
        ),
        scope=Scope.BLOBS,
        errors=(BlobNotFound,),
        surface="protocol",
        repeatable=True,
        handler=read_blob,
        service=BlobService,
    ),
    Method(
        name="blobs.list",
        doc="The caller's blobs, newest first.",
        params=obj(
            {
                "limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 50},
                "cursor": CURSOR,
                "all": described(BOOLEAN, "every principal's blobs; needs the scope 'admin'", default=False),
            }
        ),
        example={"limit": 20},
        result=answer({"blobs": list_of(BLOB, "newest first"), "next_cursor": NEXT_CURSOR}),
        scope=Scope.BLOBS,
        repeatable=True,
        handler=list_blobs,
        service=BlobService,
    ),
    Method(
        name="blobs.stat",
        doc="The size, digest, kind, owner and times of a blob.",
        params=obj({"blob_id": BLOB_ID}, "blob_id"),
        example={"blob_id": "blob:EXAMPLE"},
        result=answer({"blob": BLOB}),
        scope=Scope.BLOBS,
        errors=(BlobNotFound,),
        repeatable=True,
        handler=stat_blob,
        service=BlobService,
    ),
    Method(
        name="blobs.delete",
        doc="Remove a blob.",
        params=obj({"blob_id": BLOB_ID}, "blob_id"),
        example={"blob_id": "blob:EXAMPLE"},
        result=answer({"deleted": BOOLEAN}),
        scope=Scope.BLOBS,
        errors=(BlobNotFound,),
        repeatable=True,
        handler=delete_blob,
        service=BlobService,
    ),
)
