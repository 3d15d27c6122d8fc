"""Backends bring no library of theirs in before it is used, and their extras have names."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from skillyard.sandbox.registry import BACKENDS

CLIENTS = ("e2b", "opensandbox", "connectrpc", "httpx", "docker", "aiodocker", "qemu")
_SERVER = "import skillyard.faces.serve, skillyard.runtime, skillyard.wiring, skillyard.faces.cli.main"
_BACKEND = """
from pathlib import Path
from skillyard.config.settings import load_settings
from skillyard.wiring import make_backend
make_backend({name!r}, load_settings(data_dir={place!r}), Path({place!r}))
"""


def imported(code: str) -> set[str]:
    told = f"{code}\nimport sys\nprint(*(name for name in {CLIENTS!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_a_server_imports_no_client_of_a_backend() -> None:
    assert imported(_SERVER) == set()


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_that_is_only_made_imports_no_client(name: str, tmp_path: Path) -> None:
    assert imported(_BACKEND.format(name=name, place=str(tmp_path))) == set()


def test_an_import_would_be_seen() -> None:
    pytest.importorskip("e2b", reason="E2B's SDK is not installed")
    assert "e2b" in imported("import e2b")


def test_each_backend_with_a_client_has_an_extra_of_its_name() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))["project"]
    assert {"e2b", "oci", "opensandbox"} <= project["optional-dependencies"].keys()
