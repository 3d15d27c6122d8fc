"""The needs that a skill declares, and the demands of its front matter on a host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from skillyard.domain.errors import InvalidInput
from skillyard.domain.network.policy import is_open
from skillyard.domain.network.rule import parse_rule
from skillyard.domain.review.file import File, Text
from skillyard.domain.review.notes import Notes, quoted
from skillyard.domain.secret import Delivery
from skillyard.domain.skill.skill import SecretNeed, Skill, SkillFormat

MANIFEST = "skill.toml"
SKILL_MD = "SKILL.md"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def declared(skill: Skill) -> dict[str, Any]:
    """The declared needs as JSON values."""
    needs = skill.needs
    return {
        "network": list(needs.network),
        "secrets": [
            {"name": s.name, "optional": s.optional, "delivery": s.delivery.value, "hosts": list(s.hosts)}
            for s in needs.secrets
        ],
        "dependencies": list(needs.dependencies),
        "requires": list(needs.requires),
        "tools": list(needs.tools),
        "limits": dict(needs.limits),
        "environment": skill.runtime.environment if skill.runtime else None,
        "image": (skill.runtime.image or None) if skill.runtime else None,
        "allowed_tools": _tools(skill.frontmatter),
    }


def check_needs(skill: Skill, files: Mapping[str, File], notes: Notes) -> None:
    where = _Where(files)
    for rule in skill.needs.network:
        level = "warning" if _opens(rule) else "note"
        notes.add(
            level, MANIFEST, where.manifest(f'"{rule}"', "network"), "need-network", f"asks for the network: {rule}"
        )
    for need in skill.needs.secrets:
        _secret(need, where.manifest(f'"{need.name}"', "secrets"), notes)
    for requirement in skill.needs.dependencies:
        file, line = where.requirement(requirement)
        notes.note(file, line, "need-package", f"asks for the package {quoted(requirement)}")
    for other in skill.needs.requires:
        line = where.manifest(other.partition(" ")[0], "requires")
        notes.note(MANIFEST, line, "need-skill", f"asks for the skill {quoted(other)}")
    for tool in skill.needs.tools:
        message = f"calls tools of MCP servers: {quoted(tool)}"
        notes.warn(MANIFEST, where.manifest(f'"{tool}"', "tools"), "need-tool", message)
    for name, value in skill.needs.limits.items():
        notes.note(MANIFEST, where.manifest(f"{name} ", name), "need-limit", f"asks for {name} = {value}")


def check_front_matter(skill: Skill, files: Mapping[str, File], notes: Notes) -> None:
    line = _Where(files).skill_md
    if "allowed-tools" in skill.frontmatter:
        tools = " ".join(_tools(skill.frontmatter))
        message = f"asks hosts to let it use tools without a question; skillyard takes no regard of it: {quoted(tools)}"
        notes.warn(SKILL_MD, line("allowed-tools"), "allowed-tools", message)
    if "hooks" in skill.frontmatter:
        message = "asks hosts to run commands by themselves; skillyard takes no regard of it"
        notes.danger(SKILL_MD, line("hooks"), "runs-by-itself", message)
    if skill.format is SkillFormat.AGENT_SKILLS and skill.frontmatter.get("disable-model-invocation") is True:
        notes.note(SKILL_MD, line("disable-model-invocation"), "steering", "is for people to call, not for models")


def _secret(need: SecretNeed, line: int, notes: Notes) -> None:
    optional = ", when there is one" if need.optional else ""
    if need.delivery is Delivery.GATE:
        hosts = ", ".join(need.hosts) or "the hosts that its operator names"
        notes.note(
            MANIFEST, line, "need-secret", f"uses the secret {need.name} with {hosts}, and cannot read it{optional}"
        )
    else:
        notes.warn(MANIFEST, line, "need-secret", f"its code can read the secret {need.name}{optional}")


def _opens(rule: str) -> bool:
    try:
        return is_open([parse_rule(rule)])
    except InvalidInput:
        return False


def _tools(front: Mapping[str, Any]) -> list[str]:
    value = front.get("allowed-tools")
    if isinstance(value, list):
        return [str(item)[:200] for item in value[:100]]
    return str(value)[:2000].split() if value is not None else []


class _Where:
    """Finds the lines of declarations; the manifest's values are searched as they are written."""

    def __init__(self, files: Mapping[str, File]) -> None:
        self._files = files

    def _text(self, path: str) -> Text:
        file = self._files.get(path)
        return (file.text if file else None) or Text("")

    def manifest(self, *needles: str) -> int:
        return self._text(MANIFEST).first_line_with(*needles)

    def skill_md(self, key: str) -> int:
        return self._text(SKILL_MD).first_line_with(f"\n{key}:")

    def requirement(self, text: str) -> tuple[str, int]:
        """Among the files that may list it."""
        name = (_NAME.match(text) or [""])[0]
        listing = sorted(path for path in self._files if path == MANIFEST or path.endswith("requirements.txt"))
        scripts = sorted(path for path in self._files if path.endswith(".py") and "# /// script" in self._text(path))
        for path in (*listing, *scripts):
            line = self._text(path).first_line_with(text, f"\n{name}", f'"{name}', name)
            if line:
                return path, line
        return MANIFEST, 0
