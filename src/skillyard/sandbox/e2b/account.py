"""The account that a stage gives of its machine, and whether a spec fits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillyard.domain.errors import InvalidInput, SandboxFault, shown
from skillyard.domain.foreign_json import BadJson, parse_json
from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.sandbox.e2b.channel import CommandChannel

MEND = "name a template in e2b.template that `skillyard image e2b-template` wrote (docs/remote-e2b.md)"


def fit(spec: SandboxSpec, template: str, seen: Mapping[str, Any]) -> None:
    """Raises InvalidInput for a spec that machines of a template are too small for."""
    if spec.limits.memory_mb > seen["memory_mb"]:
        rule = f"machines of the template '{template}' have {seen['memory_mb']} MiB; choose a larger template"
        raise InvalidInput("limits.memory_mb", rule, str(spec.limits.memory_mb))


async def begun_of(channel: CommandChannel) -> tuple[list[str], object]:
    """Returns the limits in force and the interpreter of packages, which the stage tells first.

    Raises SandboxFault.
    """
    try:
        told = told_by(await channel.line(), "")
    except EOFError as error:
        raise SandboxFault(f"the machine's stage told nothing: {error}") from None
    groups = told.get("groups")
    if not isinstance(groups, list):
        raise SandboxFault("the machine told of its sandbox in no form that we know")
    return groups, told.get("interpreter")


def told_by(said: bytes, complaint: str) -> dict[str, Any]:
    """Returns what the stage told. Raises SandboxFault."""
    try:
        told = parse_json(said)
    except BadJson:
        told = None
    if not isinstance(told, dict):
        text = "".join(c if c.isprintable() else " " for c in complaint[-300:])
        raise SandboxFault(f"python3 does not run as root in the machine: {text}; {MEND}")
    if "error" in told:
        raise SandboxFault(f"the sandbox could not be made in its machine: {shown(told['error'])}")
    return told


def checked(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what the stage told of its machine. Raises SandboxFault for another form, or a lack."""
    match told:
        case {
            "missing": [*missing], "root": bool(root), "boot": str(), "release": str(), "machine": str(),
            "python": [int(), int()], "memory_mb": int(), "processors": int(), "spaces": dict(),
            "stage": str(), "compiled": str(), "fixed": str(), "guests": [*_], "content": [*_], "interpreter": str(),
        }:  # fmt: skip
            if missing or not (root or "filtered" in told):
                lack = ", ".join(map(str, missing))[:100] or "root for our commands"
                raise SandboxFault(f"the template lacks {lack}; {MEND}")
            return told
    raise SandboxFault("the machine told of itself in no form that we know")
