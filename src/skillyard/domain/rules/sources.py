"""Rules on what a bundle is installed from, besides those on files and archives."""

from __future__ import annotations

from skillyard.domain.rules.rule import Rule, always

_LEAVE = "nothing, unless it was meant to be there"

RULES: tuple[Rule, ...] = (
    always(
        "git-index",
        "The checkout's index cannot be read: damaged, split, sparse or of an unknown version.",
        "git update-index --no-split-index; git sparse-checkout disable",
    ),
    always("git-empty", "Nothing is tracked there.", "git add the skill's files, or name another directory by --path"),
    always(
        "git-link",
        "A tracked link leads to nothing that is tracked in the skill.",
        "put a copy of the file in the link's place",
    ),
    Rule("git-submodule", "note", "note", "A submodule is not read.", _LEAVE),
    Rule("git-missing", "note", "note", "A tracked file is not in the work tree.", _LEAVE),
    always("source-choice", "The source holds skills, and is none itself.", "choose one with --path"),
)
