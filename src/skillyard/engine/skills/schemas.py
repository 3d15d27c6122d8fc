"""Messages about arguments or outputs that do not fit a skill's schema (skills-protocol §8)."""

from __future__ import annotations

import re

from skillyard.domain.skill.schema import SchemaVerdict
from skillyard.engine.secrets.redact import NOTHING, Redaction
from skillyard.engine.text import ends, first

_SHORT = ends(200, 30)
_KEY = first(64)
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def complaint(verdict: SchemaVerdict, where: str, redaction: Redaction = NOTHING) -> str | None:
    """Returns the message, or None when nothing is wrong. ``where`` names the value."""
    if verdict.unfit:
        why = redaction.cut(verdict.unfit, _SHORT)
        return f"{where}: the skill's schema cannot be applied: {why}"
    told = [f"{where}{_path(path, redaction)}: {redaction.cut(message, _SHORT)}" for path, message in verdict.errors]
    return "; ".join(told) or None


def _path(path: tuple[str | int, ...], redaction: Redaction) -> str:
    return redaction.cut("".join(_step(part, redaction) for part in path), _SHORT)


def _step(part: str | int, redaction: Redaction) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    key = redaction.cut(part, _KEY)
    return f".{key}" if _PLAIN.fullmatch(key) else f"[{key!r}]"
