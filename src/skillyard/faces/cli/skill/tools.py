"""``skillyard skill activate``, ``disable``, ``enable`` and ``delete``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from skillyard.faces.cli.calls import Call, Given
from skillyard.faces.cli.options import skill_argument

_AGENT = click.option("--agent", metavar="NAME", help="The agent that the call is for, where the token allows it.")


def _asked(given: Given) -> dict[str, Any]:
    """Returns the parameters of a tool: the skill's name, and what was given beside it."""
    named = given["skill"]
    others = {name: value for name, value in given.items() if name != "skill" and value not in (None, "")}
    return {"skill_name": named["name"], **({"version": named["version"]} if "version" in named else {}), **others}


def _activated(done: Mapping[str, Any], _: Given) -> str:
    return f"{done['skill_name']}@{done['version']} is ready in {done['local_dir']}"


def _switched(done: Mapping[str, Any], _: Given) -> str:
    state = "can be used" if done["enabled"] else "cannot be used"
    return f"{done['skill_name']} {state} in the project {done['project']}{'' if done['changed'] else ', as before'}"


def _deleted(done: Mapping[str, Any], _: Given) -> str:
    versions = ", ".join(each["version"] for each in done["deleted"]) or "nothing"
    return f"{done['skill_name']}: deleted {versions}; the name means {done['active_version'] or 'no version'} now"


CALLS = {
    "activate": Call(
        method="skills.activate",
        help="Make a skill ready for commands: its packages are built, and an interpreter with them is at hand.",
        options=(
            skill_argument(),
            click.option(
                "--timeout", "timeout_sec", type=float, help="Seconds to wait for its packages.  [default: 60]"
            ),
            _AGENT,
        ),
        ask=_asked,
        said=_activated,
    ),
    "disable": Call(
        method="skills.disable",
        help="Let no agent of the token's project use a skill, in any version. Runs at work go on.",
        options=(click.argument("skill", metavar="NAME", callback=lambda *given: {"name": given[2]}), _AGENT),
        ask=_asked,
        said=_switched,
        changes=True,
    ),
    "enable": Call(
        method="skills.disable",
        help="Let agents of the token's project use a skill again.",
        options=(click.argument("skill", metavar="NAME", callback=lambda *given: {"name": given[2]}), _AGENT),
        ask=lambda given: {**_asked(given), "enabled": True},
        said=_switched,
        changes=True,
    ),
    "delete": Call(
        method="skills.delete",
        help="Serve a published version no longer, or every version. Names, versions and content stay taken.",
        options=(
            skill_argument(),
            click.option("--reason", default="", help="Told to callers that ask for the version."),
            _AGENT,
        ),
        ask=_asked,
        said=_deleted,
        changes=True,
    ),
}
