"""What a catalogue says of the directories and publications that it serves from; bundles alone have none of these."""

from __future__ import annotations

from skillyard.domain.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    Rule(
        "root-missing",
        "",
        "warning",
        "A directory of the settings is not there.",
        "create it, or take it out of skills_dirs",
    ),
    Rule(
        "scan-project",
        "",
        "note",
        "The directory is a project: only the places of its skills are searched.",
        "name a directory of skills itself to have all of it searched",
    ),
    Rule(
        "scan-depth",
        "",
        "warning",
        "Skills may lie deeper than is searched.",
        "move them nearer to the directory in skills_dirs",
    ),
    Rule(
        "scan-directories",
        "",
        "warning",
        "The search ended before it saw every directory.",
        "keep skills in a directory of their own",
    ),
    Rule(
        "snapshot",
        "",
        "error",
        "The only copy of a published version is missing or damaged.",
        "publish the same bundle again",
    ),
    Rule(
        "duplicate-version",
        "",
        "warning or error",
        "The same name and version lies in two places; one of them is served.",
        "remove one of them, or raise its version",
    ),
    Rule("guide-reserved", "", "error", "The name is the built-in guide's.", "choose another name"),
    Rule(
        "withdrawn",
        "",
        "warning",
        "A directory holds a version that was withdrawn; it is served from nowhere.",
        "restore it, or remove the directory",
    ),
    Rule(
        "published", "", "error", "A publication cannot be served any more.", "publish a version that keeps the rules"
    ),
    Rule("more-problems", "", "note", "There are more problems than are told.", "mend those that are told first"),
)
