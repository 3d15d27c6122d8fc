"""What the documents tell people to type works as it stands there, and prints what they say."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks_of

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
RUNNABLE = {"python": [sys.executable, "-W", "error"], "sh": ["bash", "-euo", "pipefail"]}
DEFAULT_URL = "http://127.0.0.1:8765"
BOUND_S = 90.0


def with_runnable_blocks() -> list[Path]:
    return [file for file in DOCUMENTS if any(block.mark == "run" for block in blocks_of(file))]


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_every_example_says_how_it_is_tested(file: Path) -> None:
    silent = [block.line for block in blocks_of(file) if block.language in RUNNABLE and not block.mark]
    assert silent == [], f"{file.name}: lines without a mark"
    unexplained = [block.line for block in blocks_of(file) if block.mark == "not run" and not block.detail]
    assert unexplained == [], f"{file.name}: lines without a reason"


@pytest.mark.parametrize("file", with_runnable_blocks(), ids=lambda file: file.name)
def test_examples_work(file: Path, place: Place) -> None:
    said = ""
    for block in blocks_of(file):
        if block.mark == "run":
            said = place.run(block)
        elif block.mark == "shows":
            want = block.text.replace("…", "...")
            matches = doctest.OutputChecker().check_output(want, said, doctest.ELLIPSIS)
            assert matches, f"{file.name}:{block.line}: it prints\n{said}"


class Place:
    """A directory to work in, as a clone's root is, with a ``skillyard`` command and a data directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "work").mkdir()
        (directory / "work" / "src").symlink_to(ROOT / "src")
        command = directory / "bin" / "skillyard"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m skillyard "$@"\n', encoding="utf-8")
        command.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SKILLYARD_")}
        self.environ = {
            **kept,
            "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "SKILLYARD_DATA_DIR": str(directory / "data"),
        }

    def run(self, block: Block) -> str:
        """What it printed. Fails the test when the block fails."""
        if block.detail != "server":
            return self._run(block, block.text)
        with self._server() as url:
            return self._run(block, block.text.replace(DEFAULT_URL, url))

    def _run(self, block: Block, text: str) -> str:
        done = subprocess.run(
            [*RUNNABLE[block.language], "-c", text],
            cwd=self.directory / "work",
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
        assert done.returncode == 0, f"line {block.line}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def _server(self) -> Iterator[str]:
        examples = str(ROOT / "src" / "skillyard" / "bundled" / "examples")
        command = [sys.executable, "-m", "skillyard", "serve", "--port", "0", "--skills-dir", examples]
        with (self.directory / "server.log").open("a") as log:
            server = subprocess.Popen(command, env=self.environ, stdout=subprocess.PIPE, stderr=log, text=True)
        with server:
            assert server.stdout is not None
            ready = server.stdout.readline()
            try:
                assert " at http" in ready, (self.directory / "server.log").read_text(encoding="utf-8")
                yield ready.rpartition(" ")[2].strip()
            finally:
                server.terminate()
                server.wait(BOUND_S)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
