"""Kills of servers and keepers, which an ordinary user has too.

Stores, catalogues and callbacks are the same for every user, and so are servers and providers elsewhere.
"""

from __future__ import annotations

import pytest

SAME = {
    "test_backup_killed.py",
    "test_build_killed.py",
    "test_callbacks_killed.py",
    "test_catalogue_killed.py",
    "test_detached_faults.py",
    "test_e2b_killed.py",
    "test_earlier_keeper.py",
    "test_installation_killed.py",
    "test_keeper_callbacks.py",
    "test_opensandbox_killed.py",
    "test_publish_killed.py",
    "test_secrets.py",
    "test_stores.py",
    "test_two_servers.py",
}


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.name not in SAME:
        item.add_marker("ordinary")
