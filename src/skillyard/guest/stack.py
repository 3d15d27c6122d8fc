"""The last stack of a run whose time was up. The interpreter writes it within a signal, so that it shows code that
never comes back from a loop or a library; a later program reads it."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys

_MOST = 16 * 1024
_THREADS = 5
_FRAMES = 30
_FRAME = re.compile(r'  File "([^"\n]*)", line (\d+) in (.*)')
_THREAD = re.compile(r"^(?:Current t|T)hread .*$", re.MULTILINE)
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_CALLER = os.path.join(_OURS, "main.py")


def write_when_told(fd: int) -> None:
    """Makes SIGXCPU write the stacks to ``fd`` before it ends the process."""
    os.set_inheritable(fd, False)
    faulthandler.register(signal.SIGXCPU, file=fd, all_threads=True, chain=True)


def read_last(fd: int) -> str:
    """Returns the stacks as a traceback shows them, the main thread first; empty without any. The innermost call is
    last."""
    try:
        text = os.read(fd, _MOST).decode("utf-8", "replace")
    except OSError:
        return ""
    blocks = [
        block for part in re.split(r"^(?:Current t|T)hread .*$", text, flags=re.MULTILINE) if (block := _frames(part))
    ]
    # The signal goes to the main thread unless code has blocked it there, and the thread that got it comes last.
    return "".join(f"Stack (most recent call last):\n{block}" for block in reversed(blocks[-_THREADS:]))


def _frames(text: str) -> str:
    """Returns the frames of the run's own code and of its callees."""
    lines = []
    for match in filter(None, map(_FRAME.fullmatch, text.splitlines())):
        path, line, name = match.groups()
        if path == _CALLER:
            break
        if not path.startswith((_OURS, "<frozen ")):
            lines.append(f'  File "{_short(path)}", line {line}, in {name}\n')
    return "".join(reversed(lines[:_FRAMES]))


def _short(path: str) -> str:
    """Shortens a path as failure.py does for code that is not the run's."""
    roots = [f"{root}/" for root in sys.path if root and path.startswith(f"{root}/")]
    root = max(roots, key=len, default="")
    return f"<{path[len(root) :]}>" if root else path
