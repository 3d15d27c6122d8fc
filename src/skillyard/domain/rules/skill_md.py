"""Rules on SKILL.md: the Agent Skills specification, and what stands beside a skill.toml."""

from __future__ import annotations

from skillyard.domain.rules.rule import Rule, advice, always, form

RULES: tuple[Rule, ...] = (
    form("encoding", "SKILL.md is not UTF-8.", "save it as UTF-8"),
    Rule(
        "front-matter",
        "error",
        "error or warning",
        "SKILL.md has no front matter, or it is never closed.",
        "put name and description between two lines '---' at the start",
    ),
    Rule(
        "yaml",
        "error",
        "error or warning",
        "The front matter is no YAML, or uses anchors, tags or duplicate keys.",
        "mend the line named; a value that holds ': ' stands in quotes",
    ),
    always(
        "name-unusable",
        "Neither the front matter nor the directory has a name that can be served.",
        "name both alike, with lowercase letters, digits and hyphens",
    ),
    form("description-length", "The description is too long.", "keep what it does and when to use it"),
    form(
        "compatibility-length", "`compatibility` is empty or too long.", "say in a line what it needs, or leave it out"
    ),
    advice("hooks", "The front matter asks hosts to run commands by themselves.", "take it away: nothing runs here"),
    advice(
        "body-length",
        "The instructions are longer than the specification advises.",
        "move parts into references/, and say when to read them",
    ),
    advice("invisible", "A character is invisible to people and read by models.", "delete it"),
    Rule(
        "front-matter-name",
        "warning",
        "",
        "The name in SKILL.md is a title, which Agent Skills hosts refuse.",
        "write the last part of the skill's name, and the title as metadata.title",
    ),
)
