"""Kills of servers and keepers, which an ordinary user has too. Stores are the same for every user."""

from __future__ import annotations

import pytest

STORES = {"test_stores.py", "test_secrets.py"}


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.name not in STORES:
        item.add_marker("ordinary")
