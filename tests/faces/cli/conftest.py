"""A scripted server, and the command line pointed at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.client.yardserver import TOKEN, YardServer, serving

Cli = Callable[..., Result]


@pytest.fixture
def yard() -> Iterator[YardServer]:
    with serving() as server:
        yield server


@pytest.fixture
def bare(tmp_path: Path) -> Cli:
    """``skillyard …`` on an empty data directory, in this process."""

    def invoke(*args: str, stdin: str | bytes = "", env: dict[str, str] | None = None) -> Result:
        from skillyard.faces.cli.main import cli

        clean = {"SKILLYARD_URL": None, "SKILLYARD_TOKEN": None, "SKILLYARD_DEBUG": None}
        home = {"SKILLYARD_DATA_DIR": str(tmp_path / "data")}
        return CliRunner().invoke(cli, args, input=stdin, env={**clean, **home, **(env or {})})

    return invoke


@pytest.fixture
def run(bare: Cli, yard: YardServer) -> Cli:
    """``skillyard …`` against the scripted server."""

    def invoke(*args: str, stdin: str | bytes = "") -> Result:
        return bare(*args, stdin=stdin, env={"SKILLYARD_URL": yard.url, "SKILLYARD_TOKEN": TOKEN})

    return invoke
