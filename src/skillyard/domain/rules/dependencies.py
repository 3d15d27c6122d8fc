"""Rules on requirements files and on the inline metadata of scripts (PEP 508, PEP 723).

In an Agent Skill, whose specification says nothing of them, a breach of form is a warning in each profile.
"""

from __future__ import annotations

from skillyard.domain.rules.rule import Rule, advice, always, form

RULES: tuple[Rule, ...] = (
    form("requirement", "A line is no plain requirement.", "write a name with versions, such as numpy>=2,<3"),
    always("requirements-size", "A requirements file is too large.", "list only what the code imports"),
    always("dependencies-many", "The skill asks for too many packages.", "list only what the code imports"),
    form("script-toml", "Inline script metadata is not TOML.", "mend the line named; strings stand in quotes"),
    form("script-type", "A value of inline script metadata is of the wrong type.", "write it as PEP 723 says"),
    form("script-size", "Inline script metadata is too large.", "list only what the script imports"),
    form("script-twice", "A script has two blocks of metadata.", "keep one"),
    advice("script-unclosed", "Inline script metadata has no end.", "end it with a line '# ///'"),
    form("requires-python", "requires-python is no range of versions.", 'write it like ">=3.11"'),
    advice("python-version", "The script asks for another Python than runs have.", "run it where its Python is"),
)
