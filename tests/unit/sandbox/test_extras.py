"""Backends bring no library of theirs in before it is used, and their extras have names."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from skillyard.config.settings import load_settings
from skillyard.data_dir import DataDir
from skillyard.domain.errors import SandboxFault
from skillyard.domain.secret import SecretScope
from skillyard.ports.sandbox import Standing
from skillyard.sandbox.e2b.provider import KEY_PROJECT, KEY_SKILL
from skillyard.sandbox.registry import BACKENDS
from skillyard.wiring import make_backend, make_sealed_stores

ROOT = Path(__file__).parents[3]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
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
    assert {"e2b", "oci", "opensandbox"} <= EXTRAS.keys()


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_extras_are_locked_together(extra: str) -> None:
    """Where these tests run all that is locked is installed, so that no version of one excludes another."""
    pins = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements/dev.txt").read_text("utf-8"), re.MULTILINE)
    locked = {canonicalize_name(name): version for name, version in pins}
    for text in EXTRAS[extra]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(locked[canonicalize_name(wanted.name)]), text


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_extras_are_installed_together(tmp_path: Path) -> None:
    """Into an environment of their own, from an index. A resolver that cannot takes a much older one without a word."""
    wanted = f"{ROOT}[{','.join(EXTRAS)}]"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    python = str(tmp_path / "venv/bin/python")
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    done = subprocess.run([*pip, "install", "-q", wanted], capture_output=True, text=True, timeout=480)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("an index of packages cannot be reached")
    assert done.returncode == 0, done.stderr
    assert subprocess.run([*pip, "check"], capture_output=True, text=True, timeout=60).stdout.startswith("No broken")
    told = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    found = json.loads(subprocess.run([python, "-I", "-c", told], capture_output=True, check=True, timeout=60).stdout)
    for text in itertools.chain.from_iterable(EXTRAS.values()):
        asked = Requirement(text)
        assert asked.specifier.contains(found[asked.name]), text
    clients = "import e2b, opensandbox, qemu.qmp, skillyard.wiring"
    subprocess.run([python, "-I", "-c", clients], check=True, timeout=60, cwd=tmp_path)


@pytest.fixture
def without_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `pip install skillyard` without any extra."""
    for name in [name for name in sys.modules if name.split(".")[0] in CLIENTS]:
        monkeypatch.delitem(sys.modules, name)
    for name in CLIENTS:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.anyio
@pytest.mark.usefixtures("without_clients")
@pytest.mark.parametrize("name", ["e2b", "opensandbox"])
async def test_without_its_client_a_backend_names_the_extra(name: str, tmp_path: Path) -> None:
    settings = load_settings(
        data_dir=tmp_path, e2b={"template": "skillyard"}, opensandbox={"image": "python:3.11", "domain": "127.0.0.1:1"}
    )
    store, _ = make_sealed_stores(settings.secrets, DataDir(tmp_path))
    await store.set("E2B_API_KEY", "key", SecretScope(KEY_PROJECT, KEY_SKILL))
    backend = make_backend(name, settings, tmp_path / "run")
    mend = f"pip install 'skillyard[{name}]'"
    probe = await backend.probe()
    assert not probe.ready
    assert mend in probe.facts["why"]
    assert isinstance(backend, Standing)
    for ask in (backend.standing, backend.survey):
        with pytest.raises(SandboxFault, match=re.escape(mend)):
            await ask()
    await backend.close()
