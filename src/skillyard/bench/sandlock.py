"""sandlock through its Python library, kept open as its users keep it: one helper process for each caller."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import IO

from skillyard.bench.job import WrongResult

_HELPER = """
import json, sys
from sandlock import Sandbox
readable = json.loads(sys.argv[1])
for line in sys.stdin:
    box = Sandbox(fs_readable=readable, fs_writable=["/tmp"], max_memory="512M", max_processes=256, clean_env=True)
    result = box.run(json.loads(line), timeout=60)
    text = result.stdout if result.success else result.stderr
    print(json.dumps([result.success, text.decode("utf-8", "replace")]), flush=True)
"""


class SandlockPool:
    """Helpers that are idle; safe to use from several threads."""

    def __init__(self, readable: Sequence[str]) -> None:
        self._readable = list(readable)
        self._idle: deque[subprocess.Popen[str]] = deque()

    def run(self, command: Sequence[str]) -> str:
        """What the command prints in a sandbox of its own. Raises WrongResult."""
        try:
            helper = self._idle.pop()
        except IndexError:
            helper = self._started()
        try:
            stdin, stdout = _pipes(helper)
            stdin.write(json.dumps(list(command)) + "\n")
            stdin.flush()
            ok, text = json.loads(stdout.readline() or '[false, "it ended"]')
        except (OSError, ValueError) as error:
            _end(helper)
            raise WrongResult(f"sandlock: {error}") from error
        self._idle.append(helper)
        if not ok:
            raise WrongResult(f"sandlock: {text.strip()[-200:]}")
        return str(text)

    def close(self) -> None:
        while self._idle:
            _end(self._idle.pop())

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _HELPER, json.dumps(self._readable)]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )


def _end(helper: subprocess.Popen[str]) -> None:
    helper.kill()
    helper.wait()
    for pipe in _pipes(helper):
        pipe.close()


def _pipes(helper: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert helper.stdin is not None
    assert helper.stdout is not None
    return helper.stdin, helper.stdout
