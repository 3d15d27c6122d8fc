"""One runtime for all attacks, so that each also shows that the one before did no lasting harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from skillyard import SyncRuntime
from skillyard.client.run import Run
from tests.attacks.programs import program

Attack = Callable[..., Run]


SAME_FOR_ALL = "front_door"
"""Tests of requests over HTTP, whose code does not depend on the user. Checks in jailed processes do."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if SAME_FOR_ALL not in item.path.parts or item.path.name in ("test_schemas.py", "test_slow.py"):
        item.add_marker("ordinary")


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncRuntime]:
    with SyncRuntime(tmp_path_factory.mktemp("attacks") / "data") as runtime:
        yield runtime


@pytest.fixture
def attack(runtime: SyncRuntime) -> Iterator[Attack]:
    """Runs a body of ``main(args)``; afterwards the runtime must still serve a benign run."""

    def run(body: str, args: dict[str, Any] | None = None, **limits: int) -> Run:
        return runtime.run_code(program(body), args or {}, limits={"timeout_ms": 20_000, **limits})

    yield run
    after = runtime.run_code("def main(args):\n    return args", {"still": "here"})
    assert after.output == {"still": "here"}
