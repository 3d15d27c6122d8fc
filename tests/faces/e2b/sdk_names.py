"""The public methods of E2B's SDKs, as the installed packages have them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import e2b
import pytest
from e2b.sandbox_async.commands.command import Commands as AsyncCommands
from e2b.sandbox_async.commands.pty import Pty as AsyncPty
from e2b.sandbox_async.filesystem.filesystem import Filesystem as AsyncFilesystem
from e2b.sandbox_async.git import Git as AsyncGit
from e2b.sandbox_sync.commands.command import Commands
from e2b.sandbox_sync.commands.pty import Pty
from e2b.sandbox_sync.filesystem.filesystem import Filesystem

cells = pytest.importorskip("e2b_code_interpreter", reason="e2b-code-interpreter is not installed")
PYTHON: dict[str, tuple[type, ...]] = {
    "Sandbox": (e2b.Sandbox, e2b.AsyncSandbox, cells.Sandbox, cells.AsyncSandbox),
    "Filesystem": (Filesystem, AsyncFilesystem),
    "Commands": (Commands, AsyncCommands),
    "CommandHandle": (e2b.CommandHandle, e2b.AsyncCommandHandle, e2b.AsyncCommandInputHandle),
    "Pty": (Pty, AsyncPty),
    "WatchHandle": (e2b.WatchHandle, e2b.AsyncWatchHandle),
    "SandboxPaginator": (e2b.SandboxPaginator, e2b.AsyncSandboxPaginator),
    "Git": (e2b.Git, AsyncGit),
    "Template": (e2b.Template, e2b.AsyncTemplate),
    "Volume": (e2b.Volume, e2b.AsyncVolume),
    "Secret": (e2b.Secret, e2b.AsyncSecret),
}
JAVASCRIPT: dict[str, tuple[str, ...]] = {
    "Sandbox": ("Sandbox", "SandboxApi"),
    "Filesystem": ("Filesystem",),
    "Commands": ("Commands",),
    "CommandHandle": ("CommandHandle",),
    "Pty": ("Pty",),
    "WatchHandle": ("WatchHandle",),
    "SandboxPaginator": ("SandboxPaginator", "Paginator"),
    "Git": ("Git",),
    "Template": ("TemplateBase",),
    "Volume": ("Volume",),
    "Secret": ("Secret",),
}
_CLASS = re.compile(r"^(?:declare )?(?:abstract )?class (\w+)[^{]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_MEMBER = re.compile(r"^(?:    |  )((?:\w+ )*)(\w+)(?:<[^(]*>)?\(", re.MULTILINE)
_HIDDEN = {"private", "protected"}


def of_python(name: str) -> set[str]:
    """Returns the public methods of a class and its kin."""
    return set().union(*(of_kind(kind) for kind in PYTHON[name]))


def of_kind(kind: type) -> set[str]:
    """Returns the public methods and properties of a class; constants are none."""
    names = (each for each in dir(kind) if not each.startswith("_"))
    return {each for each in names if not isinstance(inspect.getattr_static(kind, each), str | int)}


def of_javascript(name: str, modules: Path) -> set[str]:
    """Returns the public methods that the declarations of the npm packages tell."""
    found = set()
    for package in ("e2b", "@e2b/code-interpreter"):
        text = (modules / "node_modules" / package / "dist/index.d.ts").read_text()
        for kind, body in _CLASS.findall(text):
            if kind in JAVASCRIPT[name]:
                members = [each for each in _MEMBER.findall(body) if not _HIDDEN & set(each[0].split())]
                found |= {member for words, member in members if member != "constructor"}
    return found
