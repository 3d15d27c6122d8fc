"""Where a secret stands in Vault, as the operator writes it: ``skillyard/{project}/{name}``."""

from __future__ import annotations

import string
from dataclasses import dataclass
from urllib.parse import quote

from skillyard.domain.errors import InvalidInput, StoreFault, shape

WORDS = frozenset({"project", "skill", "name"})
_MOST = 512


@dataclass(frozen=True, slots=True)
class Template:
    """``setting`` is its name for errors, ``parts`` are texts with the word that follows each, or None at the end."""

    setting: str
    parts: tuple[tuple[str, str | None], ...]

    def text(self, project: str, skill: str, name: str) -> str:
        words = {"project": project, "skill": skill, "name": name}
        return "".join(text + (words[word] if word else "") for text, word in self.parts)

    def path(self, project: str, skill: str, name: str) -> str:
        """For a URL. Raises StoreFault for what would be another path than was written."""
        segments = self.text(project, skill, name).split("/")
        if any(segment in ("", ".", "..") for segment in segments):
            raise StoreFault(f"{self.setting} gives no path for the secret '{name}' of skill '{skill}'")
        return "/".join(quote(segment, safe="") for segment in segments)


def parse_template(setting: str, text: str) -> Template:
    """Raises InvalidInput for other words in braces, and for what can be no path or field."""
    if not text or len(text) > _MOST or text != text.strip("/ ") or not text.isprintable():
        raise InvalidInput(setting, f"must be 1 to {_MOST} characters, without slashes at its ends", shape(text))
    try:
        found = [(before, word, rule, conversion) for before, word, rule, conversion in string.Formatter().parse(text)]
    except ValueError as error:
        raise InvalidInput(setting, f"is no template: {error}") from None
    if any(word is not None and (word not in WORDS or rule or conversion) for _, word, rule, conversion in found):
        raise InvalidInput(setting, f"may hold {', '.join(f'{{{word}}}' for word in sorted(WORDS))} and no other words")
    return Template(setting, tuple((before, word) for before, word, _, _ in found))
