"""Every rule that a finding can name: what it means, how grave a breach is, what mends it."""

from __future__ import annotations

from types import MappingProxyType

from skillyard.domain.rules import (
    archives,
    catalogue,
    dependencies,
    examples,
    files,
    manifest,
    review,
    skill_md,
    sources,
)
from skillyard.domain.rules.rule import Rule

__all__ = ["RULES", "SECTIONS", "Rule", "mend_of"]

SECTIONS: dict[str, tuple[Rule, ...]] = {
    "Files": files.RULES,
    "skill.toml": manifest.RULES,
    "SKILL.md": skill_md.RULES,
    "Examples": examples.RULES,
    "Review": review.RULES,
    "Packages": dependencies.RULES,
    "Archives": archives.RULES,
    "Sources": sources.RULES,
    "Catalogue": catalogue.RULES,
}
"""The rules by what they are about, in the order of the documentation."""

RULES = MappingProxyType({rule.id: rule for section in SECTIONS.values() for rule in section})


def mend_of(rule: str) -> str:
    """What mends a breach of the rule; empty for a rule that nobody wrote down."""
    return RULES[rule].mend if rule in RULES else ""
