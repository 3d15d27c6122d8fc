"""All attacks of ``skillyard verify``: the library's, and those on an installation."""

from __future__ import annotations

from skillyard.testing.attacks import FAMILIES
from skillyard.testing.attacks.attack import Attack
from skillyard.verify.families import (
    answers,
    callers,
    channel,
    commands,
    egress,
    floods,
    installation,
    policy,
    principals,
    publishing,
    secrets,
)

_ALL = (
    *FAMILIES, egress.EGRESS, channel.CHANNEL, channel.RESULTS, secrets.SECRETS, commands.COMMANDS,
    answers.ANSWERS, callers.CALLERS, floods.FLOODS,
    principals.PRINCIPALS, principals.PROFILES,
    publishing.PUBLISHING, installation.RANDOMNESS, installation.BENIGN, policy.POLICY,
)  # fmt: skip
_ORDER = (
    "files", "proc", "writing", "special-files", "privileges", "namespaces", "syscalls", "entries", "processes",
    "network", "egress", "memory", "objects", "limits", "disk", "channel", "results", "secrets", "commands",
    "answers", "callers", "floods", "principals", "profiles", "publishing", "leftovers", "poisoning", "randomness",
    "policy", "canaries", "benign",
)  # fmt: skip


def everything() -> list[Attack]:
    """Returns every attack and benign program, by family. Names are unique."""
    ordered = sorted(_ALL, key=lambda family: _ORDER.index(family.name))
    return [attack for family in ordered for attack in family.attacks]
