"""The parts of keepers, which an ordinary user has too."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("ordinary")
