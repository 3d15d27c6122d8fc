"""The attacks, one module a family; :func:`everything` lists them in their order."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from skillyard.verify.attack import Attack

_MODULES = (
    "host_files", "proc", "writing", "special_files", "privileges", "namespaces", "syscalls", "entries", "processes",
    "network", "egress", "memory", "kernel_objects", "limits", "disk", "channel", "results", "secrets", "principals",
    "publishing", "leftovers", "poisoning", "randomness", "policy", "canaries", "benign",
)  # fmt: skip


def everything() -> list[Attack]:
    """Every attack and benign program. Names are unique."""
    return [attack for name in _MODULES for attack in _of(name)]


def _of(name: str) -> Iterator[Attack]:
    yield from import_module(f"{__name__}.{name}").FAMILY.attacks
