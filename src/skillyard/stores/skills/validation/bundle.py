"""Makes a skill of the files of a bundle, by every rule of both formats."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

from skillyard.domain.archive.names import ArchiveRefused
from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.skill.agent_skill import AgentSkill, check_agent_skill, check_companion
from skillyard.domain.skill.manifest import Manifest, check_manifest
from skillyard.domain.skill.name import namespace_of
from skillyard.domain.skill.semver import is_version
from skillyard.domain.skill.skill import Finding, Needs, Skill, SkillFile, SkillFormat, SkillKind
from skillyard.stores.skills.archives.collected import ArchiveLimits, Collected, Enough
from skillyard.stores.skills.tree import Caps, Tree, read_tree
from skillyard.stores.skills.validation import skill_md
from skillyard.stores.skills.validation.companions import (
    MANIFEST,
    check_entrypoint,
    read_examples,
    read_needs,
    read_schema,
)
from skillyard.stores.skills.validation.findings import Findings
from skillyard.stores.skills.validation.skill_md import SkillMd, read_skill_md
from skillyard.stores.skills.validation.toml import TomlFile, TomlRefused, read_toml
from skillyard.values import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a bundle stands: ``…/<name>`` or ``…/<name>/<version>`` (skills-protocol §8)."""

    name: str
    version: str | None = None

    @classmethod
    def of(cls, directory: Path) -> Place:
        if is_version(directory.name) and directory.parent.name:
            return cls(directory.parent.name, directory.name)
        return cls(directory.name)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The files, where they stand, and where a skill made of them is to be found."""

    tree: Tree
    place: Place
    root: Path
    lenient: bool

    def raw(self, path: str) -> bytes | None:
        file = self.tree.files.get(path)
        return file.data if file else None


def check_bundle(bundle: Bundle) -> tuple[Skill | None, Findings]:
    """Returns the skill, None when a finding is an error, and the findings."""
    findings = Findings()
    read = _agent_skill if bundle.raw(MANIFEST) is None else _protocol_skill
    skill = read(bundle, findings)
    return (None if findings.failed else skill), findings


def _protocol_skill(bundle: Bundle, findings: Findings) -> Skill | None:
    document = _manifest_file(bundle, findings)
    text = _skill_md(bundle, findings, needs_front=False)
    if document is None:
        return None
    manifest, problems = check_manifest(document.data, lenient=bundle.lenient)
    findings.take(problems, MANIFEST, document.lines)
    if manifest is None or text is None:
        return None
    problems = check_companion(text.front, manifest.name, lenient=bundle.lenient)
    findings.take(problems, skill_md.NAME, text.lines)
    _check_place(bundle, findings, manifest, document)
    check_entrypoint(bundle.tree, findings, manifest, document)
    read_examples(bundle.tree, findings, executable=manifest.runtime is not None, lenient=bundle.lenient)
    return _described(bundle, findings, manifest, document, text)


def _manifest_file(bundle: Bundle, findings: Findings) -> TomlFile | None:
    try:
        return read_toml(bundle.raw(MANIFEST) or b"")
    except TomlRefused as error:
        findings.error(MANIFEST, error.line, "toml", str(error))
        return None


def _skill_md(bundle: Bundle, findings: Findings, *, needs_front: bool) -> SkillMd | None:
    raw = bundle.raw(skill_md.NAME)
    if raw is None:
        near = next((path for path in bundle.tree.files if path.lower() == "skill.md"), None)
        mend = f"rename '{near}' to SKILL.md" if near else "add one: front matter with a description, then instructions"
        findings.error(skill_md.NAME, 0, "required", "every skill needs a file SKILL.md", mend)
        return None
    return read_skill_md(raw, findings, lenient=bundle.lenient, needs_front=needs_front)


def _check_place(bundle: Bundle, findings: Findings, manifest: Manifest, document: TomlFile) -> None:
    place = bundle.place
    if place.name != manifest.name:
        line = document.lines.get(("name",), 1)
        findings.warn(MANIFEST, line, "directory-name", f"name: the directory should be named '{manifest.name}'")
    if place.version not in (None, manifest.version):
        line = document.lines.get(("version",), 1)
        message = f"version: must equal the directory's, '{place.version}'"
        findings.breach(bundle.lenient, MANIFEST, line, "directory-version", message)


def _described(bundle: Bundle, findings: Findings, manifest: Manifest, document: TomlFile, text: SkillMd) -> Skill:
    needs = read_needs(bundle.tree, findings, manifest.needs, lenient=bundle.lenient)
    inputs = read_schema(bundle.tree, findings, manifest.inputs, "inputs", document, lenient=bundle.lenient)
    outputs = read_schema(bundle.tree, findings, manifest.outputs, "outputs", document, lenient=bundle.lenient)
    return Skill(
        name=manifest.name,
        version=manifest.version,
        kind=manifest.kind,
        format=SkillFormat.PROTOCOL,
        description=(text.front.text("description") or "").strip() or manifest.description,
        namespace=manifest.name.partition(".")[0],
        root=bundle.root,
        digest=bundle.tree.digest,
        manifest=manifest.data,
        frontmatter=text.front.data,
        body=text.body,
        files=_files(bundle.tree),
        runtime=manifest.runtime,
        needs=needs,
        tags=manifest.tags or _tags(text),
        short_description=(text.front.text("short_description") or "").strip(),
        inputs_schema=inputs,
        outputs_schema=outputs,
        findings=tuple(findings),
    )


def _agent_skill(bundle: Bundle, findings: Findings) -> Skill | None:
    text = _skill_md(bundle, findings, needs_front=True)
    if text is None or findings.failed:
        return None
    own, problems = check_agent_skill(text.front, bundle.place.name, lenient=bundle.lenient)
    findings.take(problems, skill_md.NAME, text.lines)
    if own is None:
        return None
    read_examples(bundle.tree, findings, executable=False, lenient=True)  # Agent Skills know of no such file
    return _instructions(bundle, findings, own, text)


def _instructions(bundle: Bundle, findings: Findings, own: AgentSkill, text: SkillMd) -> Skill:
    """Returns an instruction skill with a manifest of its front matter (agent-skills-format §6)."""
    version = own.version or bundle.place.version or f"0.0.0+{bundle.tree.digest[:12]}"
    kind = SkillKind.INSTRUCTION
    needs = read_needs(bundle.tree, findings, Needs(), lenient=True)  # no rule of the specification is broken
    return Skill(
        name=own.name,
        version=version,
        kind=kind,
        format=SkillFormat.AGENT_SKILLS,
        description=own.description,
        namespace=namespace_of(own.name),
        root=bundle.root,
        digest=bundle.tree.digest,
        manifest={"name": own.name, "version": version, "description": own.description, "kind": kind.value},
        frontmatter=text.front.data,
        body=text.body,
        files=_files(bundle.tree),
        needs=needs,
        tags=_tags(text),
        short_description=(text.front.text("short_description") or "").strip(),
        findings=tuple(findings),
    )


def _files(tree: Tree) -> tuple[SkillFile, ...]:
    return tuple(SkillFile(path, len(file.data), file.sha256) for path, file in tree.files.items())


def _tags(text: SkillMd) -> tuple[str, ...]:
    tags = text.front.data.get("tags")
    return tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()


Profile = Literal["strict", "lenient"]


def validate(path: Path | str, profile: Profile = "strict", *, caps: Caps | None = None) -> list[Finding]:
    """Returns every finding on the skill in ``path``: its directory, SKILL.md or skill.toml.

    ``strict`` is the specification, ``lenient`` what the catalogue still serves. No finding is an error when the
    skill is valid. Nothing of the skill is run. Raises InvalidInput for an unknown profile.
    """
    lenient = is_lenient(profile)
    directory = Path(os.path.abspath(path))  # noqa: PTH100 - the directory's own name counts, not a link's target
    if directory.is_file() and directory.name in ("SKILL.md", "skill.toml"):
        directory = directory.parent
    if not directory.is_dir():
        return [Finding("error", str(path), 0, "no-directory", "is not a directory that holds a skill")]
    caps = caps or Caps()
    tree, findings = read_tree(directory, caps)
    if tree is None:
        return findings
    return [*check_bundle(Bundle(tree, Place.of(directory), directory, lenient))[1], *_check_names(tree, caps)]


def is_lenient(profile: str) -> bool:
    """Returns whether the profile is the lenient one. Raises InvalidInput for an unknown profile."""
    if profile not in ("strict", "lenient"):
        raise InvalidInput("profile", "must be 'strict' or 'lenient'", shown(profile))
    return profile == "lenient"


def _check_names(tree: Tree, caps: Caps) -> list[Finding]:
    """Returns a warning for each name, at most twenty, that an archive could not have.

    The skill is served from its directory, and it cannot be published.
    """
    collected = Collected(ArchiveLimits(caps))
    with suppress(ArchiveRefused, Enough):
        for path in sorted(tree.files):
            collected.claim(path.encode(), directory=False, size=0)
    return [Finding("warning", found.file, 0, "portable-name", found.message) for found in collected.findings]
