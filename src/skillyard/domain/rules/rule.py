"""One rule that a finding can name."""

from __future__ import annotations

from skillyard.values import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """``strict`` and ``lenient`` are the levels that a breach has in each profile: ``error``, ``danger``, ``warning``,
    ``note``, empty when the profile does not look; ``review`` the level in a review. Several are joined by `` or ``.
    ``meaning`` says what is found, ``mend`` what to do about it."""

    id: str
    strict: str
    lenient: str
    meaning: str
    mend: str
    review: str = ""


def always(id: str, meaning: str, mend: str) -> Rule:
    """An error in both profiles."""
    return Rule(id, "error", "error", meaning, mend)


def form(id: str, meaning: str, mend: str) -> Rule:
    """A breach of form: an error when strict, a warning when lenient."""
    return Rule(id, "error", "warning", meaning, mend)


def advice(id: str, meaning: str, mend: str) -> Rule:
    """A warning in both profiles."""
    return Rule(id, "warning", "warning", meaning, mend)


def seen(id: str, level: str, meaning: str, mend: str) -> Rule:
    """Of a review only."""
    return Rule(id, "", "", meaning, mend, level)
