"""What a bundle is not: names that are never part of a skill, wherever it is read from or packed."""

from __future__ import annotations

EXCLUDED = frozenset(
    {
        *(".git", ".hg", ".svn", ".jj", ".DS_Store", ".env", ".venv", "node_modules", "__pycache__"),
        "__MACOSX",
        *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".idea", ".vscode"),
    }
)
"""Version control, caches, what macOS puts into archives, and what holds its author's secrets."""


def is_excluded(name: str) -> bool:
    """Files that begin with ``._`` are macOS' own: attributes of the file with the name that follows (RFC 1740)."""
    return name in EXCLUDED or name.endswith((".pyc", ".pyo")) or name.startswith("._")
