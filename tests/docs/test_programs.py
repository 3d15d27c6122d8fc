"""Each row of ``docs/programs.md``, run."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillyard import SyncRuntime

TABLE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "programs.py"), run_name="programs")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncRuntime]:
    with SyncRuntime(tmp_path_factory.mktemp("programs")) as runtime:
        yield runtime


def test_there_are_sixty() -> None:
    assert len(TABLE["PROGRAMS"]) >= 60


@pytest.mark.parametrize("program", TABLE["PROGRAMS"], ids=lambda program: program.code.splitlines()[0][:40])
def test_a_program_gives_what_the_table_says(runtime: SyncRuntime, program: Any) -> None:
    run = runtime.run_code(program.code, program.args, **program.more)
    assert TABLE["gave"](run) == program.gives
