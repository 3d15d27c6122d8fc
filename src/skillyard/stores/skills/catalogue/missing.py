"""Why there is no such skill, in the words of SkillNotFound."""

from __future__ import annotations

from time import gmtime, strftime

from skillyard.domain.errors import SkillNotFound
from skillyard.domain.skill.publication import place_of
from skillyard.domain.skill.semver import is_version, newest_first
from skillyard.stores.skills.catalogue.index.reads import Reads, Withdrawal


def missing(reads: Reads, name: str, version: str | None) -> SkillNotFound:
    """For a name that is not served, or not in that version."""
    gone = reads.withdrawal(name, place_of(version)) if version and is_version(version) else None
    if gone is not None:
        return SkillNotFound("version", _withdrawn_rule(name, gone), skill=name, withdrawn=True)
    found = reads.name(name)
    every = {gone.version: gone for gone in reads.withdrawals(name)} if found is None else {}
    if every:
        rule = f"every version of '{name}' was withdrawn; the newest: " if len(every) > 1 else ""
        rule += _withdrawn_rule(name, every[newest_first(every)[0]])
        return SkillNotFound("name", rule, skill=name, withdrawn=True)
    if found is None or version is None:
        return SkillNotFound("name", f"no skill '{name[:256]}'", skill=name[:256])
    have = ", ".join(variant.version for variant in found.versions[:10])
    rule = f"the skill '{name}' has no version '{version[:128]}'; it has {have}"
    return SkillNotFound("version", rule, skill=name)


def _withdrawn_rule(name: str, gone: Withdrawal) -> str:
    """That it was withdrawn, when and why."""
    when = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(gone.at))
    return f"version {gone.version} of '{name}' was withdrawn on {when}" + (f": {gone.reason}" if gone.reason else "")
