"""Headers of uploads and downloads: content types, byte ranges and entity tags (RFC 9110 §8, §13, §14)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Scope

from skillyard.faces.http.errors import BadRequest, RangeNotSatisfiable


def refuse_query(scope: Scope) -> None:
    """Raises BadRequest."""
    if scope["query_string"]:
        raise BadRequest("this path takes no query parameters")


def upload_type(headers: Headers, what: str) -> str:
    """Returns the Content-Type of ``what``, empty without one. Raises BadRequest unless all of it comes, as it is."""
    encodings = set(headers.getlist("content-encoding"))
    if "content-range" in headers or not encodings <= {"identity"}:
        raise BadRequest(f"Content-Range and Content-Encoding: send the whole {what} as it is")
    kinds = headers.getlist("content-type")
    if len(kinds) > 1:
        raise BadRequest("Content-Type: came more than once")
    return next(iter(kinds), "")


_SINGLE = re.compile(r"bytes\s*=\s*(\d{0,19})\s*-\s*(\d{0,19})\s*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Range:
    """``length`` bytes from ``start`` on; never empty."""

    start: int
    length: int

    def content_range(self, size: int) -> str:
        return f"bytes {self.start}-{self.start + self.length - 1}/{size}"


def read_range(header: str | None, size: int) -> Range | None:
    """Returns the part that is asked for; None for the whole: no header, several ranges, or no range that we know.

    Raises RangeNotSatisfiable when it begins behind the end.
    """
    match = _SINGLE.fullmatch(header.strip()) if header else None
    if match is None:
        return None
    first, last = match.groups()
    if first:
        return _from_to(int(first), int(last) if last else size - 1, size)
    return _suffix(int(last), size) if last else None


def _from_to(first: int, last: int, size: int) -> Range | None:
    if last < first < size:
        return None
    if first >= size:
        raise RangeNotSatisfiable(size)
    return Range(first, min(last, size - 1) - first + 1)


def _suffix(length: int, size: int) -> Range:
    length = min(length, size)
    if length == 0:
        raise RangeNotSatisfiable(size)
    return Range(size - length, length)


def etag(sha256: str) -> str:
    return f'"{sha256}"'


def matches(header: str | None, tag: str) -> bool:
    """Returns whether ``If-None-Match`` names the tag; comparison is weak (RFC 9110 §13.1.2)."""
    if header is None:
        return False
    listed = {part.strip().removeprefix("W/") for part in header.split(",")}
    return "*" in listed or tag in listed
