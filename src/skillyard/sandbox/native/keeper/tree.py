"""The processes of a sandbox, found from its init."""

from __future__ import annotations

import os


def tree_of(pid: int) -> list[int]:
    """``pid`` and all below it: orphans of a sandbox come back to its init, so the tree is whole."""
    seen: list[int] = []
    queue = [pid]
    while queue:
        at = queue.pop()
        seen.append(at)
        try:
            for thread in os.listdir(f"/proc/{at}/task"):
                queue.extend(int(word) for word in _read(f"/proc/{at}/task/{thread}/children").split())
        except OSError:
            continue  # it has ended since
    return seen


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""
