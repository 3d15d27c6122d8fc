"""Counts files and lines by package: ``python -m tests.docs.sizes [REVISION]``, of the checkout or of a revision.

A package of ours is a folder below ``src/skillyard``; modules beside the folders count as ``skillyard``. The last row
says how long files and functions are.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
ROOTS = ("src", "tests", "bench", "examples")


def files(revision: str = "") -> Iterator[tuple[PurePosixPath, str]]:
    """Yields the path and the text of each Python file; of what lies in the checkout when no revision is named."""
    if not revision:
        for root in ROOTS:
            for path in sorted((ROOT / root).rglob("*.py")):
                yield PurePosixPath(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        return
    for name in _git("ls-tree", "-r", "--name-only", revision, *ROOTS).splitlines():
        if name.endswith(".py"):
            yield PurePosixPath(name), _git("show", f"{revision}:{name}")


def package_of(path: PurePosixPath) -> str:
    """Returns the row that the file belongs to."""
    parts = path.parts[1:] if path.parts[0] == "src" else path.parts
    if parts[0] == "bench":
        return "bench"
    return "/".join(parts[: min(2, len(parts) - 1)])


def functions(text: str) -> Iterator[int]:
    """Yields the lines of each function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def _git(*args: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *args], check=True, capture_output=True, text=True).stdout


def _spread(numbers: list[int]) -> str:
    ordered = sorted(numbers)
    return f"median {ordered[len(ordered) // 2]}, nine of ten at most {ordered[len(ordered) * 9 // 10]}"


def main(revision: str = "") -> None:
    lengths: dict[str, list[int]] = defaultdict(list)
    long: list[int] = []
    for path, text in files(revision):
        lengths[package_of(path)].append(len(text.splitlines()))
        if path.parts[0] == "src":
            long.extend(functions(text))
    for package, each in sorted(lengths.items()):
        print(f"{len(each):5} files {sum(each):7} lines  {package}")
    ours = [length for package, each in lengths.items() if package.startswith("skillyard") for length in each]
    print(f"{len(ours):5} files {sum(ours):7} lines  src in all: files {_spread(ours)}; functions {_spread(long)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
