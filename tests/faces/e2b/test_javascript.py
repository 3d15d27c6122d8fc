"""The unmodified JavaScript SDK of E2B, as ``.ci/setup`` installs it; ``SKILLYARD_TEST_E2B_JS`` names its directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.faces.e2b.conftest import Yard

MODULES = Path(os.environ.get("SKILLYARD_TEST_E2B_JS", "/usr/local/lib/skillyard-ci/e2b-js"))


def ran(yard: Yard, script: str) -> str:
    """Returns the output of a script beside this file."""
    node = shutil.which("node")
    if node is None or not (MODULES / "node_modules/@e2b/code-interpreter").is_dir():
        pytest.skip(f"node, or the npm package @e2b/code-interpreter in {MODULES}, is not installed")
    env = {
        "PATH": os.environ["PATH"],
        "E2B_MODULES": str(MODULES),
        "E2B_API_URL": yard.server.url,
        "E2B_SANDBOX_URL": yard.server.url,
        "E2B_API_KEY": yard.server.token,
    }
    words = [node, str(Path(__file__).with_name(script))]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_javascript_sdk_works(yard: Yard) -> None:
    assert json.loads(ran(yard, "sdk.mjs")) == {
        "run": ["hello\n/home/user\n", "bad\n", 0],
        "exit": ["CommandExitError", 3],
        "listed": True,
        "stdin": "got one\ngot two\n",
        "killed": True,
        "written": "/home/user/dir/a.txt",
        "read": "text é",
        "bytes": 7,
        "several": 2,
        "names": ["a.txt"],
        "exists": [True, False],
        "made": [True, False],
        "renamed": "/home/user/m3",
        "missing": "FileNotFoundError",
        "watched": ["create", "new"],
        "signed": "text é",
        "info": {"userId": "js"},
        "found": True,
        "again": "again\n",
        "terminal": True,
        "paused": [True, False, True],
        "root": "AuthenticationError",
        "running": [True, True, False],
        "gone": "SandboxNotFoundError",
    }
