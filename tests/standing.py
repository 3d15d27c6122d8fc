"""What this machine cannot do at all is no failure of a test: ``./check`` works in a plain container too."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_BOUND_S = 60.0
_REFUSED = re.compile(r"\b(fsopen|mount|unshare)\b.*: Operation not permitted")
"""Said by tests that make a namespace or a mount by themselves."""
_NATIVE = frozenset({"attacks", "crash", "server", "test_skill_tests.py", "test_examples.py"})
"""Directories and files whose tests make native sandboxes, and do not always show what was said."""


@functools.cache
def why_not() -> str:
    """Why the native backend makes no sandbox on this machine, in doctor's words; empty where it does."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SKILLYARD_")}
    with tempfile.TemporaryDirectory(prefix="skillyard-standing-") as directory:
        command = [sys.executable, "-m", "skillyard", "doctor", "--json", "--data-dir", directory]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BOUND_S, env=clean)
    try:
        told = json.loads(done.stdout)
    except ValueError:
        return ""
    return "" if told["ready"] else str(told["facts"].get("why", ""))


def excuses(path: Path, text: str) -> str:
    """The reason to skip a test of the file ``path`` that failed with ``text``: it names what this very machine closes,
    or is about native sandboxes and nothing else. Else empty.

    Where the native backend stands nothing is excused.
    """
    if _NATIVE.intersection(path.parts) and (why := why_not()):
        return f"the native backend does not stand on this machine: {why}"
    if "Operation not permitted" not in text and "namespaces" not in text and "not ready" not in text:
        return ""
    why = why_not()
    step = why.rpartition("] ")[2]
    named = step and (step in text or _REFUSED.search(text))
    return f"the native backend does not stand on this machine: {why}" if named else ""
