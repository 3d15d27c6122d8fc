"""The request that the host gives to the guest (the protocol is in :mod:`skillyard.guest`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skillyard.domain.checks import is_blob_id
from skillyard.domain.errors import InvalidInput, shape
from skillyard.domain.sandbox.frames import DEFAULT_LIMITS, FrameLimits

VERSION = 1
_PREFIX = re.compile(r"blob:[A-Za-z0-9._-]{1,100}-")


@dataclass(frozen=True, slots=True)
class SkillMount:
    """Where a skill shows inside. ``entry`` is relative to ``root``; None for an instruction skill."""

    root: str
    entry: str | None = None


@dataclass(frozen=True, slots=True)
class BlobMount:
    kind: str
    size: int


@dataclass(frozen=True, slots=True)
class GuestCall:
    """One call: of ``code``, or of the mounted skill ``skill``. ``args`` can be sent as JSON.

    ``entrypoint`` is what was asked for by name; without one it is ``main``, and code that has none is a script.
    ``skills`` are by the name they are imported by, ``blobs`` by id, ``env`` holds the declared secrets.
    ``limits`` are those of the :class:`~skillyard.domain.sandbox.frames.FrameReader`, so that honest code meets a clear
    error before it breaks them.
    """

    blob_prefix: str
    entrypoint: str | None = None
    code: str | None = None
    skill: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    skills: Mapping[str, SkillMount] = field(default_factory=dict)
    blobs: Mapping[str, BlobMount] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    limits: FrameLimits = DEFAULT_LIMITS

    def request(self) -> dict[str, Any]:
        """For :class:`~skillyard.domain.sandbox.spec.Guest`. Raises InvalidInput."""
        self._check()
        return {
            "v": VERSION,
            "op": "call",
            "code": self.code,
            "skill": self.skill,
            "entrypoint": self.entrypoint,
            "args": self.args,
            "skills": {name: {"root": s.root, "entry": s.entry} for name, s in self.skills.items()},
            "blobs": {blob_id: {"kind": b.kind, "size": b.size} for blob_id, b in self.blobs.items()},
            "blob_prefix": self.blob_prefix,
            "env": dict(self.env),
            "max_blobs": self.limits.blobs,
            "max_blob_bytes": self.limits.blob_bytes,
            "max_open_blobs": self.limits.open_blobs,
            "max_result_bytes": self.limits.result_bytes,
            "files": {
                "count": self.limits.files,
                "each_bytes": self.limits.file_bytes,
                "bytes": self.limits.files_bytes,
            },
        }

    def collect(self) -> dict[str, Any]:
        """Returns the request for a second program in the sandbox. It sends the files that the first left."""
        return self.request() | {"op": "collect", "code": None, "skill": None, "args": {}, "skills": {}, "env": {}}

    def _check(self) -> None:
        if (self.code is None) == (self.skill is None):
            raise InvalidInput("code", "either code or a skill is called, not both")
        if self.skill is not None and getattr(self.skills.get(self.skill), "entry", None) is None:
            raise InvalidInput("skill", "must be mounted and have an entrypoint", shape(self.skill))
        if not _PREFIX.fullmatch(self.blob_prefix):
            raise InvalidInput("blob_prefix", "must be 'blob:', an id and '-'", shape(self.blob_prefix))
        for blob_id in self.blobs:
            if not is_blob_id(blob_id):
                raise InvalidInput("blobs", "every key must be a blob id", shape(blob_id))


def encode_request(request: Mapping[str, Any]) -> bytes:
    """The bytes that the guest reads. Raises InvalidInput for what JSON does not have."""
    try:
        return json.dumps(request, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput("args", f"must be JSON-serializable: {str(error)[:200]}", shape(request)) from None
