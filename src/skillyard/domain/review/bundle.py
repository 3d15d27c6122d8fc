"""The whole review of one bundle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, field
from typing import Any

from skillyard.domain.review.characters import check_characters
from skillyard.domain.review.file import File, Text
from skillyard.domain.review.hooks import check_hooks
from skillyard.domain.review.kinds import check_kind, check_layout
from skillyard.domain.review.links import Hosts, check_links, check_targets
from skillyard.domain.review.markdown import SUFFIXES as MARKDOWN
from skillyard.domain.review.markdown import check_markdown
from skillyard.domain.review.needs import check_front_matter, check_needs, declared
from skillyard.domain.review.notes import Notes
from skillyard.domain.review.python_code import Ground, Imports, check_python, is_python, own_modules
from skillyard.domain.review.python_facts import Facts
from skillyard.domain.review.secrets import check_secrets
from skillyard.domain.skill.skill import Finding, Skill
from skillyard.values import dataclass

MOST_TEXT = 4 * 1024 * 1024
"""Characters of a whole bundle that are read as text."""
MOST_CODE = 1024 * 1024
"""Those of Python among them."""


@dataclass(frozen=True, slots=True)
class Review:
    """The review of one bundle.

    ``needs`` are the skill's declared needs, empty for an invalid skill; ``imports`` the first parts of
    modules' names by where they come from; ``hosts`` those of its URLs.

    ``findings`` has the gravest first: ``danger`` (an honest skill has no reason for it), ``warning`` (look at it),
    ``note`` (good to know).
    """

    needs: Mapping[str, Any] = field(default_factory=dict)
    imports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Returns the review as JSON values."""
        return {
            "needs": dict(self.needs),
            "imports": {name: list(modules) for name, modules in self.imports.items()},
            "hosts": list(self.hosts),
            "counts": {level: self.count(level) for level in ("danger", "warning", "note")},
            "findings": [asdict(finding) for finding in self.findings],
        }

    def count(self, level: str) -> int:
        return sum(finding.level == level for finding in self.findings)


def python_sources(files: Iterable[File]) -> dict[str, Text]:
    """Returns by their paths the sources whose facts :func:`review` wants."""
    sources: dict[str, Text] = {}
    room = MOST_CODE
    for file, text in _texts(files):
        if text is not None and is_python(file):
            room -= len(text)
            if room >= 0:
                sources[file.path] = text
    return sources


def review(files: Iterable[File], skill: Skill | None, facts: Mapping[str, Facts]) -> Review:
    """Returns the review of all the files of a bundle. ``skill`` is made of them; ``facts`` are those of its
    :func:`python_sources`."""
    by_path = {file.path: file for file in files}
    notes, hosts, imports = Notes(), Hosts(), Imports()
    if skill is not None:
        check_needs(skill, by_path, notes)
        check_front_matter(skill, by_path, notes)
    own, modules = own_modules(by_path)
    ground = _ground(own, modules, skill)
    paths = frozenset(by_path)
    for file, text in _texts(by_path.values()):
        check_kind(file, notes)
        check_hooks(file, notes)
        if text is None:
            if file.text is not None:
                notes.warn(file.path, 0, "review-partial", "was not read as text: the bundle holds too much of it")
            continue
        if file.cut:
            notes.warn(file.path, 0, "review-partial", f"only its first {len(text)} characters were looked at")
        _read(file, text, paths, hosts, notes)
        if is_python(file):
            found = facts.get(file.path)
            if found is None:
                notes.warn(file.path, 0, "review-partial", "was not read as Python: the bundle holds too much of it")
            else:
                check_python(file, text, found, ground, imports, notes)
    return Review(declared(skill) if skill else {}, _listed(imports), tuple(sorted(hosts.first)), notes.told())


def _texts(files: Iterable[File]) -> Iterator[tuple[File, Text | None]]:
    """Yields the files in the order of a review, with their texts; None where one is not read."""
    room = MOST_TEXT
    for file in sorted(files, key=_first_what_models_read):
        text = file.text
        room -= len(text or "")
        yield file, text if room >= 0 else None


def _read(file: File, text: Text, paths: frozenset[str], hosts: Hosts, notes: Notes) -> None:
    check_characters(file, text, notes)
    check_layout(file, text, notes)
    check_secrets(file, notes)
    check_links(file, text, hosts, notes)
    if file.suffix in MARKDOWN:
        check_markdown(file, text, notes)
    if file.suffix in (".md", ".markdown"):
        check_targets(file, text, paths, notes)


def _first_what_models_read(file: File) -> tuple[int, str]:
    return (0 if file.path in ("SKILL.md", "skill.toml") else 1 if file.suffix in (".md", ".py") else 2, file.path)


def _ground(own: frozenset[str], modules: frozenset[str], skill: Skill | None) -> Ground:
    if skill is None:
        return Ground(own, modules)
    needs = skill.needs
    environment = skill.runtime.environment if skill.runtime else "base"
    given = ("numpy", "pandas") if environment == "data" else ()
    required = frozenset({skill.import_name, *(text.partition(" ")[0].replace("-", "_") for text in needs.requires)})
    return Ground(own, modules, (*needs.dependencies, *given), required, bool(needs.network))


def _listed(imports: Imports) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(sorted(getattr(imports, name))) for name in ("standard", "declared", "own", "skills", "undeclared")
    }
