"""Mutants that let the host in, where targets were planted for attacks to find. Only what was planted is touched."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from skillyard.sandbox.native import launch
from tests.attacks.verify.inside_mutants import (
    HOST_FILES,
    IDS,
    KERNEL,
    LANDLOCK,
    NO_FILTER,
    NO_LANDLOCK,
    NO_PROC,
    ONE_UID,
    REAL_ROOT,
    ROOT,
    WALLS,
    ZYGOTE_PROCESS,
)
from tests.attacks.verify.mutants import Mutant

GROUND = "sandbox/native/grounds/namespaces/ground.py"
HOST_TMP = """
_few_sources = sources
def _tmp():
    return open_bind("/tmp", "/tmp", 0, read_only=False)
def sources(python, packages, *, memory_counted):
    return [*_few_sources(python, packages, memory_counted=memory_counted), _tmp()]
"""
KEPT_PROC = """
_plain_mount = kernel.mount
def _keeping(source, target, kind, flags, data=""):
    if (target, kind) == ("/proc", "proc"):
        _plain_mount("/proc", "/mnt", None, kernel.MS_BIND)
    _plain_mount(source, target, kind, flags, data)
kernel.mount = _keeping
"""
HOST_PROC = """
_plain_open = open_bind
def open_bind(source, target, attributes, *, read_only=True, whole=False):
    shown = "/mnt" if source == "/proc" else source
    return _plain_open(shown, target, attributes, read_only=read_only, whole=whole)
"""
NO_OWN_TMP = """
WRITABLE = {"workspace": WORKSPACE, "shm": SHM}
TMP = "/run/box"
"""
"""The box is mounted elsewhere, so that it does not cover the root's own /tmp."""


def _hosts(flag: str, more: str = "") -> dict[str, str]:
    """Neither the zygote nor its sandboxes leave the host's namespace."""
    return {
        WALLS: f"NAMESPACES = NAMESPACES & ~kernel.{flag}\n{more}",
        ZYGOTE_PROCESS: f"_NAMESPACES = _NAMESPACES & ~kernel.{flag}",
    }


def inherited(patch: pytest.MonkeyPatch) -> None:
    """The keeper gets the server's variables."""
    plain = asyncio.create_subprocess_exec

    async def start(*args: Any, **options: Any) -> Any:
        return await plain(*args, **{**options, "env": dict(os.environ)})

    patch.setattr(launch.asyncio, "create_subprocess_exec", start)  # type: ignore[attr-defined]


MUTANTS = (
    Mutant(
        "host_files", ("mount_namespace", "landlock", "own_uid", "non_root"),
        "the root shows the host's /tmp for writing and its /etc and /var for reading, to the host's own root",
        ("canaries-files", "canaries-fifo", "files-search", "files-stores", "special-files-links"),
        {
            ROOT: HOST_FILES + HOST_TMP, WALLS: NO_OWN_TMP + ONE_UID, LANDLOCK: NO_LANDLOCK, IDS: REAL_ROOT,
        },
        who="root", canary=True, leaves=("/tmp/to-hosts",),
    ),
    Mutant(
        "host_proc", ("pid_namespace", "private_proc"), "the host's /proc is shown instead of the sandbox's own",
        ("canaries-processes",), {GROUND: KEPT_PROC, ROOT: HOST_PROC, WALLS: NO_PROC}, who="root", canary=True,
    ),
    Mutant(
        "host_network", ("net_namespace",), "sandboxes stay in the host's network",
        ("canaries-listeners", "network-listeners"),
        {
            **_hosts("CLONE_NEWNET", "def _loopback_up():\n    return None"),
            "sandbox/native/linux/namespaces.py": "def leave_network():\n    return None",
        },
        canary=True,
    ),
    Mutant(
        "host_ipc", ("ipc_namespace", "seccomp"), "sandboxes stay in the host's ipc namespace, without a filter",
        ("canaries-shared-memory",), {**_hosts("CLONE_NEWIPC"), KERNEL: NO_FILTER}, canary=True,
    ),
    Mutant(
        "variables", ("rule: nothing of the server is inherited",), "keeper and zygote inherit the server's variables",
        ("canaries-environment", "proc-variables"),
        {ZYGOTE_PROCESS: "_own = environment\ndef environment(python):\n    return {**os.environ, **_own(python)}"},
        outside=inherited, canary=True,
    ),
)  # fmt: skip
