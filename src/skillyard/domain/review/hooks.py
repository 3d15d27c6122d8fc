"""Finds files that programs run or obey by themselves, because of their places or names.

skillyard runs none of them; hosts into which the bundle is copied may.
"""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from typing import Any

from skillyard.domain.review.file import File, Text
from skillyard.domain.review.notes import Notes

_NAMES: tuple[tuple[str, str, str], ...] = (
    ("sitecustomize.py", "danger", "Python imports it at every start when it lies on its path"),
    ("usercustomize.py", "danger", "Python imports it at every start when it lies on its path"),
    ("*.pth", "danger", "Python executes its import lines at every start when it lies among packages"),
    ("conftest.py", "warning", "pytest imports it when tests below it are collected"),
    ("setup.py", "warning", "pip executes it when the directory is installed"),
    (".envrc", "warning", "direnv executes it when a shell enters the directory"),
    (".pre-commit-config.yaml", "warning", "pre-commit fetches and runs what it names"),
    ("noxfile.py", "note", "nox executes it when it is called here"),
    ("tasks.py", "note", "invoke executes it when it is called here"),
    ("[Mm]akefile", "note", "make executes it when it is called here"),
    ("GNUmakefile", "note", "make executes it when it is called here"),
    ("[Jj]ustfile", "note", "just executes it when it is called here"),
    ("Dockerfile", "note", "docker executes it when an image is built here"),
    (".bashrc", "warning", "shells execute it when it lies in a home directory"),
    (".bash_profile", "warning", "shells execute it when it lies in a home directory"),
    (".profile", "warning", "shells execute it when it lies in a home directory"),
    (".zsh*", "warning", "shells execute it when it lies in a home directory"),
    (".gitmodules", "warning", "git fetches what it names when submodules are updated"),
    (".npmrc", "warning", "npm takes its settings from it"),
    (".yarnrc*", "warning", "yarn takes its settings, and the program that is executed, from it"),
    (".mcp.json", "danger", "hosts start the servers that it names"),
    ("CLAUDE.md", "warning", "coding agents obey it when they work in the directory"),
    ("AGENTS.md", "warning", "coding agents obey it when they work in the directory"),
    ("GEMINI.md", "warning", "coding agents obey it when they work in the directory"),
    (".cursorrules", "warning", "coding agents obey it when they work in the directory"),
    (".windsurfrules", "warning", "coding agents obey it when they work in the directory"),
    ("*.desktop", "warning", "desktops start what it names"),
    ("*.lnk", "danger", "Windows starts what it names"),
    ("autorun.inf", "danger", "Windows starts what it names"),
)
_DIRECTORIES: tuple[tuple[str, str, str], ...] = (
    (".claude", "danger", "Claude Code takes settings, hooks, agents and commands from it"),
    (".cursor", "danger", "Cursor takes rules, hooks and servers from it"),
    (".gemini", "danger", "Gemini takes settings from it"),
    (".codex", "danger", "Codex takes settings from it"),
    (".vscode", "danger", "Visual Studio Code takes settings and tasks from it"),
    (".idea", "warning", "JetBrains tools take settings and tasks from it"),
    (".github", "warning", "GitHub runs its workflows, and agents obey its instructions"),
    (".gitlab", "warning", "GitLab takes settings from it"),
    (".husky", "danger", "git runs its hooks once they are set up"),
    (".githooks", "danger", "git runs its hooks once they are set up"),
    (".git", "danger", "git runs its hooks and obeys its settings"),
    (".devcontainer", "warning", "editors build and start what it names"),
)
_LIFECYCLE = (
    *("preinstall", "install", "postinstall", "prepare", "prepublish", "preprepare", "postprepare", "dependencies"),
)
_BUILD = re.compile(
    r"^[ \t]*\[(?:build-system|tool\.hatch\.build\.[^\]\n]{0,80}hooks[^\]\n]{0,80})[ \t]*\]", re.MULTILINE
)


def check_hooks(file: File, notes: Notes) -> None:
    for name in file.path.split("/")[:-1]:
        for directory, level, why in _DIRECTORIES:
            if name == directory:
                notes.add(level, file.path, 0, "runs-by-itself", f"lies in {directory}: {why}")
    for pattern, level, why in _NAMES:
        if fnmatchcase(file.name, pattern):
            notes.add(level, file.path, 0, "runs-by-itself", why)
    text = file.text
    if text is not None and file.name == "package.json":
        _package(file, text, notes)
    if text is not None and file.name == "pyproject.toml":
        for found in text.all(_BUILD):
            message = "pip executes the build backend or hook that it names when the directory is installed"
            notes.warn(file.path, text.line_of(found.start()), "runs-by-itself", message)


def _package(file: File, text: Text, notes: Notes) -> None:
    for name in _LIFECYCLE:
        if name in _scripts(text):
            line = text.first_line_with(f'"{name}"')
            notes.danger(file.path, line, "runs-by-itself", f"npm executes its script '{name}' when it is installed")


def _scripts(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    scripts = document.get("scripts") if isinstance(document, dict) else None
    return scripts if isinstance(scripts, dict) else {}
