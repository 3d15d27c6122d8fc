"""Kills of servers and keepers, which an ordinary user has too. Stores and callbacks are the same for every user."""

from __future__ import annotations

import pytest

SAME = {"test_stores.py", "test_secrets.py", "test_callbacks_killed.py"}


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.name not in SAME:
        item.add_marker("ordinary")
