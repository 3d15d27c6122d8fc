"""Makes results of tools from answers of methods: structure, text, images and links."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from mcp_types import CallToolResult, ContentBlock, ImageContent, ResourceLink, TextContent

from skillyard.domain.errors import SkillyardError
from skillyard.faces.rpc.wire import dumps, error_object
from skillyard.values import dataclass

MOST_IMAGES = 4
MOST_IMAGE_BYTES = 1024 * 1024
MOST_LINKS = 32
LINKS_SINCE = "2025-06-18"
"""The first revision that has links to resources."""
_FAILED = frozenset({"failed", "canceled"})
_IMAGES: tuple[tuple[str, bytes, int], ...] = (
    ("image/png", b"\x89PNG\r\n\x1a\n", 0),
    ("image/jpeg", b"\xff\xd8\xff", 0),
    ("image/gif", b"GIF8", 0),
    ("image/webp", b"WEBP", 8),
)
"""Types of images that models are shown, with bytes that are in each file of the type, and where."""

Read = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Reads a whole blob, as read_blob does. Raises SkillyardError."""


@dataclass(frozen=True, slots=True)
class _File:
    blob_id: str
    name: str
    mime: str
    size: int


async def result_of(value: Mapping[str, Any], *, runs: bool, revision: str, read: Read) -> CallToolResult:
    """Returns the result for what a method answered.

    A run that failed is an error with its run object. Files come as images where a model can see them, else as links.
    """
    failed = runs and value.get("status") in _FAILED
    content: list[ContentBlock] = [TextContent(type="text", text=dumps(value).decode())]
    if runs:
        content += await _shown(list(_files(value)), revision, read)
    return CallToolResult(content=content, structured_content=dict(value), is_error=failed)


def failed(value: Mapping[str, Any]) -> CallToolResult:
    """Returns the result for a run that failed, with its run object."""
    text = TextContent(type="text", text=dumps(value).decode())
    return CallToolResult(content=[text], structured_content=dict(value), is_error=True)


def refusal_of(error: Exception) -> CallToolResult:
    """Returns the result for a call that was refused: the model reads the reason."""
    told = error_object(error)
    hint = ""
    if isinstance(error, SkillyardError) and "retry_after_ms" in error.details:
        hint = f" (try again after {error.details['retry_after_ms']} ms)"
    text = f"{told['data']['type']}: {told['message']}{hint}"
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content={"error": told}, is_error=True
    )


def _files(value: Mapping[str, Any]) -> Iterator[_File]:
    for file in value.get("files") or ():
        yield _File(file["blob_id"], file["path"], file["mime"], file["size"])
    for file in value.get("created_artifacts") or ():
        yield _File(file["artifact_id"], file["filename"], file["mime"], file["size"])


async def _shown(files: list[_File], revision: str, read: Read) -> list[ContentBlock]:
    images: list[ContentBlock] = []
    for file in files:
        if len(images) < MOST_IMAGES and file.size <= MOST_IMAGE_BYTES and file.mime.startswith("image/"):
            image = await _image(file, read)
            images += [] if image is None else [image]
    if revision < LINKS_SINCE:
        return images
    return images + [
        ResourceLink(type="resource_link", uri=f"blob://{_bare(f.blob_id)}", name=f.name, mime_type=f.mime, size=f.size)
        for f in files[:MOST_LINKS]
    ]


def _bare(blob_id: str) -> str:
    return blob_id.removeprefix("blob:")


async def _image(file: _File, read: Read) -> ImageContent | None:
    """Returns an image that is what its type says; None for bytes that only claim it."""
    try:
        blob = await read(file.blob_id)
    except SkillyardError:
        return None
    if blob["encoding"] != "base64" or blob["truncated"]:
        return None
    head = base64.b64decode(blob["preview"][:64])
    kind = next((mime for mime, mark, at in _IMAGES if head[at : at + len(mark)] == mark), None)
    return None if kind is None else ImageContent(type="image", data=blob["preview"], mime_type=kind)
