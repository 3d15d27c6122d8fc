"""Every rule that a finding can name: its meaning, the level of a breach, and the remedy."""

from __future__ import annotations

from types import MappingProxyType

from skillyard.domain.rules.bundle import ARCHIVES, CATALOGUE, FILES, PACKAGES, SOURCES
from skillyard.domain.rules.review import REVIEW
from skillyard.domain.rules.rule import Rule
from skillyard.domain.rules.skill import EXAMPLES, MANIFEST, SKILL_MD

__all__ = ["RULES", "SECTIONS", "Rule", "mend_of"]

SECTIONS: dict[str, tuple[Rule, ...]] = {
    "Files": FILES,
    "skill.toml": MANIFEST,
    "SKILL.md": SKILL_MD,
    "Examples": EXAMPLES,
    "Review": REVIEW,
    "Packages": PACKAGES,
    "Archives": ARCHIVES,
    "Sources": SOURCES,
    "Catalogue": CATALOGUE,
}
"""The rules by subject, in the order of the documentation."""

RULES = MappingProxyType({rule.id: rule for section in SECTIONS.values() for rule in section})


def mend_of(rule: str) -> str:
    """Returns the remedy of a breach; empty for a rule that is not in the table."""
    return RULES[rule].mend if rule in RULES else ""
