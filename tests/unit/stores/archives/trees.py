"""Random bundles."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from hypothesis import strategies as st

from skillyard.domain.archive.names import folded
from skillyard.stores.skills.tree import Tree, TreeFile, digest_of

_PARTS = st.sampled_from(
    (
        "a",
        "b",
        "code",
        "main.py",
        "SKILL.md",
        "skill.toml",
        "x y",
        "é",
        "日本",
        "-rf",
        "~",
        "n" * 120,
        "ä" * 100,
        "é" * 60,
    )
)
_PATHS = st.lists(_PARTS, min_size=1, max_size=6).map("/".join)
_CONTENT = st.one_of(
    st.binary(max_size=40),
    st.sampled_from((b"", b"x" * 511, b"x" * 512, b"x" * 513, bytes(70_000), b"PK\x05\x06" + bytes(18), b"\r\n" * 9)),
)


def tree_of(files: Mapping[str, bytes], executable: frozenset[str] = frozenset()) -> Tree:
    made = {
        path: TreeFile(data, path in executable, hashlib.sha256(data).hexdigest())
        for path, data in sorted(files.items())
    }
    return Tree(made, digest_of(made))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """With SKILL.md at the root, so that nothing is taken for a leading directory."""
    files = {"SKILL.md": draw(_CONTENT)}
    for path, data in draw(st.dictionaries(_PATHS, _CONTENT, max_size=12)).items():
        if _fits(path, files):
            files[path] = data
    executable = frozenset(draw(st.sets(st.sampled_from(sorted(files)))))
    return tree_of(files, executable)


def _fits(path: str, files: Mapping[str, bytes]) -> bool:
    keys = {folded(known) for known in files}
    key = folded(path)
    taken = any(known == key or known.startswith(f"{key}/") or key.startswith(f"{known}/") for known in keys)
    return not taken and len(path.encode()) <= 1000
