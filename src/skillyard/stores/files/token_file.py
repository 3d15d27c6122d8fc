"""The file of tokens as a value, and back."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from skillyard.domain.errors import StoreFault
from skillyard.domain.principal import DEFAULT_PROJECT, Principal, Scope
from skillyard.ports.tokens import TokenInfo

FORMAT = 2
PLAIN_FORMAT = 1
"""Without projects: still written while every token is of the default one, so that an older skillyard can read it; it
would take a token of another project for one of the default project, and so must not read that."""


@dataclass(frozen=True, slots=True)
class Held:
    """One token: the keyed digest of its text, and what it stands for."""

    digest: bytes
    info: TokenInfo


@dataclass(frozen=True, slots=True)
class TokenTable:
    """``key`` is the HMAC key of all digests; ``by_start`` finds them by their first eight bytes."""

    key: bytes
    held: Mapping[str, Held]
    by_start: dict[bytes, list[Held]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for held in self.held.values():
            self.by_start.setdefault(held.digest[:8], []).append(held)

    def digest(self, token: str) -> bytes:
        return hmac.digest(self.key, token.encode(), "sha256")

    def find(self, token: str) -> Held | None:
        """In a time that does not depend on how much of ``token`` is right: its digest cannot be steered
        by someone without the key, and what agrees in eight bytes of it is compared in constant time."""
        digest = self.digest(token)
        for held in self.by_start.get(digest[:8], ()):
            if hmac.compare_digest(held.digest, digest):
                return held
        return None

    def with_tokens(self, changed: Iterable[Held]) -> TokenTable:
        """A table in which these take the place of the tokens of the same names."""
        return TokenTable(self.key, {**self.held, **{held.info.principal.name: held for held in changed}})


def dump(table: TokenTable) -> bytes:
    tokens = [_entry(held) for _, held in sorted(table.held.items())]
    plain = all(held.info.principal.project == DEFAULT_PROJECT for held in table.held.values())
    version = PLAIN_FORMAT if plain else FORMAT
    return json.dumps({"v": version, "key": table.key.hex(), "tokens": tokens}, indent=1).encode() + b"\n"


def load(data: bytes, name: str) -> TokenTable:
    """Raises StoreFault when the file is damaged or of another format."""
    try:
        document = json.loads(data)
        if document["v"] not in (PLAIN_FORMAT, FORMAT):
            raise StoreFault(f"{name} was written by another version of skillyard; upgrade skillyard")
        held = [_held(entry) for entry in document["tokens"]]
        key = bytes.fromhex(document["key"])
        if len(key) < 32:
            raise ValueError("short key")
    except (ValueError, KeyError, TypeError):
        raise StoreFault(f"{name} is damaged; restore it from a backup") from None
    return TokenTable(key, {one.info.principal.name: one for one in held})


def _entry(held: Held) -> dict[str, Any]:
    info = held.info
    project = info.principal.project
    return {
        "name": info.principal.name,
        **({} if project == DEFAULT_PROJECT else {"project": project}),
        "digest": held.digest.hex(),
        "scopes": sorted(info.principal.scopes),
        "skills": list(info.principal.skills),
        "created_at": info.created_at,
        "last_used_at": info.last_used_at,
        "revoked": info.revoked,
    }


def _held(entry: Mapping[str, Any]) -> Held:
    scopes = frozenset(Scope(scope) for scope in entry["scopes"])
    skills = tuple(str(pattern) for pattern in entry["skills"])
    principal = Principal(str(entry["name"]), scopes, skills, str(entry.get("project", DEFAULT_PROJECT)))
    used = entry["last_used_at"]
    info = TokenInfo(
        principal, float(entry["created_at"]), None if used is None else float(used), entry["revoked"] is not False
    )
    return Held(bytes.fromhex(entry["digest"]), info)
