"""What an index was made with. One that was made with anything else says nothing about today's answers."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

from skillyard.stores.skills import tree
from skillyard.stores.skills.tree import Caps

_RULES = ("domain", "stores/skills")
_LIBRARIES = ("jsonschema-rs", "pyyaml")


def mark_of(caps: Caps, *, lenient: bool) -> str:
    """Differs whenever the same bundle could be judged otherwise: by other rules, caps or libraries."""
    return f"{_code()} {caps} {'lenient' if lenient else 'strict'}"


@cache
def _code() -> str:
    """A digest of the modules that hold the rules, so that nobody has to remember to raise a number."""
    whole = hashlib.sha256(f"{sys.version_info[:3]}{[version(name) for name in _LIBRARIES]}".encode())
    home = Path(tree.__file__).parents[2]
    for file in sorted(file for part in _RULES for file in (home / part).rglob("*.py")):
        whole.update(f"\n{file.relative_to(home)}\n".encode())
        whole.update(file.read_bytes())
    return whole.hexdigest()[:32]
