"""What a run was doing when its time was up: written by the interpreter within a signal, so that code which never comes
back from a loop or from a library is seen too; read by a program that is started afterwards."""

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
    """SIGXCPU writes the stacks to ``fd`` and then ends the process, as it does by itself."""
    os.set_inheritable(fd, False)
    faulthandler.register(signal.SIGXCPU, file=fd, all_threads=True, chain=True)


def read_last(fd: int) -> str:
    """What was written, as a traceback shows it: the main thread first, the innermost call last. Empty when nothing
    was."""
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
    """Those of the run's own code and what it called: nothing of what called that."""
    lines = []
    for match in filter(None, map(_FRAME.fullmatch, text.splitlines())):
        path, line, name = match.groups()
        if path == _CALLER:
            break
        if not path.startswith((_OURS, "<frozen ")):
            lines.append(f'  File "{_short(path)}", line {line}, in {name}\n')
    return "".join(reversed(lines[:_FRAMES]))


def _short(path: str) -> str:
    """As failure.py shows what is no code of the run."""
    roots = [f"{root}/" for root in sys.path if root and path.startswith(f"{root}/")]
    root = max(roots, key=len, default="")
    return f"<{path[len(root) :]}>" if root else path
