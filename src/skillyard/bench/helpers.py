"""Peers that are libraries, or warm interpreters: processes that stay open, one for each caller at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import IO

from skillyard.bench.job import WrongResult

SANDLOCK = """
import json, sys
from sandlock import Sandbox
readable = json.loads(sys.argv[1])
for line in sys.stdin:
    box = Sandbox(fs_readable=readable, fs_writable=["/tmp"], max_memory="512M", max_processes=256, clean_env=True)
    result = box.run(json.loads(line), timeout=60)
    text = result.stdout if result.success else result.stderr
    print(json.dumps([result.success, text.decode("utf-8", "replace")]), flush=True)
"""
"""As its users keep it: the library imported once. Its argument is what the sandbox may read."""

FORKING = """
import json, os, sys
for line in sys.stdin:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        request = json.loads(json.loads(line)[-1])
        names = {}
        exec(request["code"], names)
        os.write(write, json.dumps(names["main"](request["args"])).encode())
        os._exit(0)
    os.close(write)
    text = os.read(read, 65536).decode()
    os.close(read)
    os.waitpid(pid, 0)
    print(json.dumps([True, text]), flush=True)
"""
"""The floor of what skillyard does: a fork of a warm interpreter, and no wall, limit or record at all."""


class Helpers:
    """Idle processes of one ``source``; safe to use from several threads."""

    def __init__(self, source: str, argument: str = "", flags: Sequence[str] = ()) -> None:
        self._command = [sys.executable, *flags, "-c", source, argument]
        self._idle: deque[subprocess.Popen[str]] = deque()

    def run(self, command: Sequence[str]) -> str:
        """What the command prints. Raises WrongResult."""
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
            raise WrongResult(str(error)) from error
        self._idle.append(helper)
        if not ok:
            raise WrongResult(str(text).strip()[-200:])
        return str(text)

    def close(self) -> None:
        while self._idle:
            _end(self._idle.pop())

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
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
