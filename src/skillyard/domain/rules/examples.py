"""Rules on tests/examples.toml."""

from __future__ import annotations

from skillyard.domain.rules.rule import Rule, form

RULES: tuple[Rule, ...] = (
    form("example-many", "There are too many examples.", "keep those that show something of their own"),
    form("example-duplicate", "Two examples have the same name.", "name each after what it shows"),
    form("example-file", "An example names a file that the skill has not.", "write its path from the skill's root"),
    Rule(
        "example-way",
        "error or warning",
        "warning",
        "An example says twice, or not at all, what is to be run or expected.",
        "see docs/skill-tests.md for what goes together",
    ),
    form("example-bytes", "The expected bytes are not hexadecimal.", "write them like 89504e47"),
)
