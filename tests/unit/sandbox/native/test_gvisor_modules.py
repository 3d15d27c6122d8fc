"""The modules of a gVisor sandbox's first process, which come from one file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from skillyard.sandbox.native.grounds.gvisor import jail, modules

BOUND_S = 60.0


def test_nothing_is_searched_for(tmp_path: Path) -> None:
    jail.install(tmp_path / "code")
    then = "import sys, json; sys.path[:] = []; from skillyard.sandbox.native.grounds.gvisor import inside"
    told = "print(type(json.__spec__.loader).__name__, sys.modules['_socket'].__spec__.origin)"
    words = [sys.executable, "-I", "-S", "-B", "-c", f"{modules.start(str(tmp_path / 'code'), then)}; {told}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "SourceFileLoader", "they look as if they came from their own files"
    import _socket

    assert done.stdout.split()[1] == str(_socket.__spec__.origin)
