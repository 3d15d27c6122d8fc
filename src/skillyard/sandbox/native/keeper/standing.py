"""Whether the walls of a sandbox stand, as the kernel tells of its init: asked where packages' code ran in the zygote,
which may have spoiled what builds them."""

from __future__ import annotations

import os

_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_SPACES = ("user", "mnt", "pid", "net", "ipc", "uts")
_FILTERED = "2"
"""SECCOMP_MODE_FILTER."""


def lacking(init: int, zygote: int, uid: int) -> str:
    """Which wall is missing, for namespaces and all; empty when none is. ``uid`` is who its processes must be."""
    if missing := process_lacks(init, _SETS):
        return missing
    if _status(init).get("Uid", "").split() != [str(uid)] * 4:
        return "it has another user id"
    shared = [name for name in _SPACES if _space(init, name) in ("", _space(zygote, name))]
    return f"it shares namespaces: {', '.join(shared)}" if shared else ""


def process_lacks(pid: int, empty: tuple[str, ...]) -> str:
    """Of what every isolation has: no new privileges, a filter, and ``empty`` sets of capabilities."""
    status = _status(pid)
    if status.get("NoNewPrivs") != "1":
        return "no_new_privs is missing"
    if status.get("Seccomp") != _FILTERED:
        return "the filter of system calls is missing"
    held = [name for name in empty if int(status.get(name, "1"), 16)]
    return f"it holds capabilities: {', '.join(held)}" if held else ""


def _status(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    except OSError:
        return {}


def _space(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{name}")
    except OSError:
        return ""
