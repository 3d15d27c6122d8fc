"""The package as another release: the next one, and an earlier commit's with an environment of its own."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from uv import find_uv_bin

ROOT = Path(__file__).parents[2]
EARLIER = "6e47739"
"""The last commit whose keepers hold no detached runs."""
BEFORE_COMMANDS = "8eb472d7"
"""The last commit without commands, tasks and sessions."""
VERSIONS = ("sandbox/native/protocol.py", "gate/wire.py")
"""The files that say which version keeper and gate speak."""
_INSTALL_S = 60.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@contextmanager
def next_release() -> Iterator[Path]:
    """Yields a directory with a copy of the package whose keeper and gate speak the next version."""
    with _open_to_all() as home:
        package = home / "skillyard"
        shutil.copytree(ROOT / "src" / "skillyard", package, ignore=shutil.ignore_patterns("__pycache__"))
        for name in VERSIONS:
            text = (package / name).read_text()
            raised, count = re.subn(r"^PROTOCOL = (\d+)$", lambda m: f"PROTOCOL = {int(m[1]) + 1}", text, flags=re.M)
            assert count == 1, name
            (package / name).write_text(raised)
        yield home


@contextmanager
def earlier_release(commit: str = EARLIER) -> Iterator[str]:
    """Yields the interpreter of a virtual environment with the earlier commit and the packages that it locked."""
    with _open_to_all() as home:
        _unpack(home / "source", commit)
        environment = home / "environment"
        _run(sys.executable, "-m", "venv", "--without-pip", str(environment))
        python = str(environment / "bin" / "python")
        lock = home / "requirements.txt"
        lock.write_text(_needed(home / "source"))
        words = ("-qq", "--no-deps", "--require-hashes", "-r", str(lock))
        quick = (find_uv_bin(), "pip", "install", "--python", python, "--cache-dir", str(home / "cache"), *words)
        if _failed(*quick):  # uv has an index of its own choice
            _run(sys.executable, "-m", "pip", "--python", python, "install", "--no-compile", *words)
        packages = sysconfig.get_path("purelib", "venv", {"base": str(environment)})
        shutil.copytree(home / "source" / "src" / "skillyard", Path(packages) / "skillyard")
        yield python


@contextmanager
def _open_to_all() -> Iterator[Path]:
    """Yields a directory that the users of sandboxes can read."""
    with tempfile.TemporaryDirectory(prefix="skillyard-release-") as home:
        Path(home).chmod(0o755)
        yield Path(home)


def _unpack(directory: Path, commit: str) -> None:
    command = ["git", "-C", str(ROOT), "archive", commit, "src", "pyproject.toml", "requirements"]
    try:
        packed = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"the history with commit {commit} is not here")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(directory)


def _run(*command: str) -> None:
    if why := _failed(*command):
        pytest.skip(f"the earlier commit's packages cannot be had: {why}")


def _failed(*command: str) -> str:
    """Runs a command; returns why it failed, if it did."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{command[0]} takes more than {_INSTALL_S:.0f} s"
    return "" if done.returncode == 0 else done.stderr.strip()[-300:] or f"exit code {done.returncode}"


def _needed(source: Path) -> str:
    """Returns the part of the commit's lock that it needs to run: without the tools of its tests."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    locked = (source / "requirements" / "dev.txt").read_text()
    blocks = {_plain(block): block for block in re.split(r"\n(?=\S)", locked) if _NAME.match(block)}
    found: dict[str, str] = {}
    names = [_plain(text) for text in project["dependencies"]]
    for name in names:
        if name in blocks and name not in found:
            found[name] = blocks[name]
            names += map(_plain, _requirements(name))
    return "\n".join(found.values()) + "\n"


def _requirements(name: str) -> list[str]:
    try:
        return [text for text in requires(name) or () if "extra ==" not in text]
    except PackageNotFoundError:  # another system's
        return []


def _plain(text: str) -> str:
    found = _NAME.match(text)
    assert found is not None, text
    return re.sub(r"[-_.]+", "-", found[0]).lower()
