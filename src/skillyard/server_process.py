"""A server as a child process, for the benchmark and the demo."""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import IO

_READY = re.compile(rb"skillyard is ready at (\S+)\n")
_STOP_BOUND_S = 45.0
_SHOWN = 600
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl


class ServerFailed(Exception):
    """It did not become ready, or did not stop; the message ends with what it said."""


class ServerProcess:
    """``skillyard serve --port 0`` on a data directory, for the length of a ``with`` block::

        with ServerProcess(directory, skills_dirs=[EXAMPLES]) as server:
            client = SyncClient(data_dir=server.data_dir)

    ``settings`` are ``SKILLYARD_*`` variables. Its log is a file beside the data directory, whose parent exists. The
    kernel stops it when the thread that started it ends, also by SIGKILL.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        skills_dirs: Iterable[Path] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.url = ""
        self.startup_s = 0.0
        """From the start of the process to the line that says that it is ready."""
        self._skills_dirs = tuple(skills_dirs)
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, timeout_s: float = 60.0) -> None:
        """Returns when it is ready. Raises ServerFailed, and then it is gone."""
        began = time.perf_counter()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment(),
                preexec_fn=partial(_stop_with, os.getpid()),
            )
        try:
            self.url = self._announced(timeout_s)
        except BaseException:
            self._kill()
            raise
        self.startup_s = time.perf_counter() - began

    @property
    def pid(self) -> int:
        """While it runs."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Drain and wait. Raises ServerFailed unless it ended by itself and well. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(_STOP_BOUND_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ServerFailed(f"the server did not stop within {_STOP_BOUND_S:.0f} s{self._said()}") from None
        finally:
            _stdout(process).close()
        if status:
            raise ServerFailed(f"the server ended with status {status}{self._said()}")

    @property
    def _log(self) -> Path:
        return self.data_dir.with_name(f"{self.data_dir.name}.log")

    def _command(self) -> list[str]:
        skills = [word for directory in self._skills_dirs for word in ("--skills-dir", str(directory))]
        return [sys.executable, "-m", "skillyard", "serve", "--port", "0", "--data-dir", str(self.data_dir), *skills]

    def _environment(self) -> dict[str, str]:
        elsewhere = ("SKILLYARD_URL", "SKILLYARD_TOKEN", "SKILLYARD_DATA_DIR")
        return {k: v for k, v in os.environ.items() if k not in elsewhere} | self._settings

    def _announced(self, timeout_s: float) -> str:
        assert self._process is not None
        stdout = _stdout(self._process)
        readable, _, _ = select.select([stdout], [], [], timeout_s)
        found = _READY.fullmatch(stdout.readline()) if readable else None
        if found is None:
            why = "is not ready in time" if not readable else "does not start"
            raise ServerFailed(f"the server {why}{self._said()}")
        return found[1].decode("ascii")

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            _stdout(process).close()

    def _said(self) -> str:
        text = " ".join(self._log.read_text("utf-8", "replace").split())
        return f": {text[-_SHOWN:]}" if text else ""


def _stop_with(parent: int) -> None:
    """Has the kernel stop this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _stdout(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout
