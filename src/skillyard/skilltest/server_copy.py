"""Whether a server has the very bundle that is under test."""

from __future__ import annotations

from skillyard.skilltest.runner import Target
from skillyard.skilltest.subject import Subject


def why_another(target: Target, subject: Subject) -> str:
    """Why its examples would try something else there; empty when they would not. Raises what the target raises, as
    SkillNotFound."""
    skill = subject.skill
    about = target.call("describe_skill", {"name": skill.name, "version": skill.version, "detail": "full"})["skill"]
    there = {file["path"]: file["sha256"] for file in about["files"]}
    if there != {file.path: file.sha256 for file in skill.files}:
        return f"the server has other content under {skill.name}@{skill.version}"
    mounts = any(example.code or example.script for example in subject.examples)
    latest = target.call("describe_skill", {"name": skill.name, "detail": "manifest"})["skill"]["version"]
    if mounts and latest != skill.version:
        return f"code and scripts mount the latest version, which is {latest} there"
    return ""
