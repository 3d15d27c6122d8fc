"""What uploads of bytes have in common, whatever they become."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

from skillyard.faces.http.errors import BadRequest


def refuse_query(scope: Scope) -> None:
    """Raises BadRequest."""
    if scope["query_string"]:
        raise BadRequest("this path takes no query parameters")


def upload_type(headers: Headers, what: str) -> str:
    """The Content-Type of ``what``, empty without one. Raises BadRequest unless all of it comes, as it is."""
    encodings = set(headers.getlist("content-encoding"))
    if "content-range" in headers or not encodings <= {"identity"}:
        raise BadRequest(f"Content-Range and Content-Encoding: send the whole {what} as it is")
    kinds = headers.getlist("content-type")
    if len(kinds) > 1:
        raise BadRequest("Content-Type: came more than once")
    return next(iter(kinds), "")
