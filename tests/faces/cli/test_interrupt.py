"""Ctrl-C ends the call, and so the run: the server sees its caller go away."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.unit.client.yardserver import TOKEN, YardServer, completed


def test_interrupting_a_run_closes_its_connection(yard: YardServer, tmp_path: Path) -> None:
    working, left = threading.Event(), threading.Event()

    def run(params: dict[str, Any]) -> dict[str, Any]:
        working.set()
        if select.select([yard.sockets[-1]], [], [], 30)[0]:
            left.set()
        return completed()

    yard.methods["execute_skill"] = run
    environ = {
        **os.environ,
        "SKILLYARD_URL": yard.url,
        "SKILLYARD_TOKEN": TOKEN,
        "SKILLYARD_DATA_DIR": str(tmp_path),
    }
    command = subprocess.Popen(
        [sys.executable, "-m", "skillyard", "run", "a.b"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert working.wait(30)
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=30)
    assert (command.returncode, out, err.strip()) == (130, "", "skillyard: interrupted")
    assert left.wait(30)
