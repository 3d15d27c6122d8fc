"""Real server processes, which an ordinary user starts too."""

from __future__ import annotations

import pytest

SAME = (
    "test_backup",
    "test_cli",
    "test_cli_sessions",
    "test_environments",
    "test_in_line",
    "test_profiles",
    "test_publishing",
    "test_secrets",
    "test_service_connections",
    "test_task_events",
    "test_trust",
)
"""Modules of what a server decides before anything is started, or after it answered: once is enough."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.stem not in SAME:
        item.add_marker("ordinary")
