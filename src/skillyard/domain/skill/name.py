"""Rules on names: of skills, of their segments, and of the namespace (skills-protocol §8)."""

from __future__ import annotations

import keyword
import re

from skillyard.domain.skill.report import Path, Report

MAX_BYTES = 200
"""A name becomes a directory's name (``/skills/<name>``), which the kernel bounds at 255 bytes."""

GUIDE = "skills.protocol.guide"
"""The built-in guide's name, which no other skill may take (skills-protocol §7)."""

_STRICT = re.compile(r"[a-z0-9]+(?:\.[a-z0-9]+)*")
_SUPERSET = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*(?:\.[a-z0-9]+(?:-[a-z0-9]+)*)*")
_SERVABLE = re.compile(r"[^\W_](?:[\w-]*[^\W_])?(?:\.[^\W_](?:[\w-]*[^\W_])?)*")


def check_name(report: Report, path: Path, name: str, *, importable: bool) -> None:
    """Reports a name that breaks a rule. Python must be able to import an ``importable`` one."""
    if len(name.encode("utf-8", "replace")) > MAX_BYTES:
        report.error(path, "name-length", f"must have at most {MAX_BYTES} bytes", name)
    elif _STRICT.fullmatch(name) is None:
        _outside_alphabet(report, path, name)
    elif "." not in name:
        report.warn(path, "name-hierarchy", "should be '<namespace>.<domain>.<action>'; it has no namespace")
    if importable and _SUPERSET.fullmatch(name):
        _check_segments(report, path, name)


def _outside_alphabet(report: Report, path: Path, name: str) -> None:
    rule = "must be lowercase letters and digits in segments joined by single dots, such as 'sales.leads.sync'"
    if _SUPERSET.fullmatch(name):
        report.breach(path, "name-alphabet", f"{rule}; hyphens are for Agent Skills", name)
    else:
        report.error(path, "name-alphabet", rule, name)


def _check_segments(report: Report, path: Path, name: str) -> None:
    for segment in name.replace("-", "_").split("."):
        if keyword.iskeyword(segment):
            report.error(
                path, "name-segment", f"the segment '{segment[:64]}' is a Python keyword: nobody could import it"
            )
        elif segment and not segment.isidentifier():
            report.error(path, "name-segment", f"the segment '{segment[:64]}' is no Python identifier", name)


def check_namespace(report: Report, path: Path, namespace: str, name: str) -> None:
    first = name.split(".")[0]
    if namespace != first:
        report.error(path, "namespace", f"must equal the first segment of the name, '{first[:64]}'", namespace)


def is_servable(name: str) -> bool:
    """Returns whether the name can be a directory and a part of a URL, whatever rule it breaks."""
    return len(name.encode("utf-8", "replace")) <= MAX_BYTES and _SERVABLE.fullmatch(name) is not None


def namespace_of(name: str) -> str:
    """Returns the first dotted segment; empty for a name without one (skills-protocol §11)."""
    return name.partition(".")[0] if "." in name else ""


EXCLUDED = frozenset(
    {
        *(".git", ".hg", ".svn", ".jj", ".DS_Store", ".env", ".venv", "node_modules", "__pycache__"),
        "__MACOSX",
        *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".idea", ".vscode"),
    }
)
"""Version control, caches, macOS' additions to archives, and files with an author's secrets."""


def is_excluded(name: str) -> bool:
    """Returns whether the name is never part of a skill; ``._*`` is macOS' own (RFC 1740)."""
    return name in EXCLUDED or name.endswith((".pyc", ".pyo")) or name.startswith("._")
