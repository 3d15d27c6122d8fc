"""Fixtures that every test can use, and what becomes of tests on machines that close namespaces."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests import examples
from tests.standing import excuses

examples.register()


def pytest_configure() -> None:
    """Whoever starts tests in the background may have had SIGINT ignored, which what they start would inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection() -> None:
    """Thousands of tests are garbage to nobody: the collector would look at each of them again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Has the collector look at what a file of tests left once, and then no more.

    Tests that count descriptors or objects collect all garbage, each time through everything that is not frozen.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Ends detached runs that a test left, perhaps since it failed: they outlive their server."""
    yield
    if (server := sys.modules.get("tests.crash.server")) is not None:
        server.end_kept()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and (reason := excuses(Path(item.path), report.longreprtext)):
        report.outcome = "skipped"
        report.longrepr = (str(Path(item.path)), item.reportinfo()[1] or 0, f"Skipped: {reason}")
    if report.failed and (failed := os.environ.get("SKILLYARD_TEST_FAILED")):
        with open(failed, "a") as names:
            names.write(f"{item.nodeid}\n")
    return report
