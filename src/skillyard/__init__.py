"""skillyard, a self-hosted Skills Runtime. ``import skillyard`` is cheap: names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skillyard._version import __version__

if TYPE_CHECKING:
    from skillyard.client import Client, SyncClient
    from skillyard.runtime import Runtime, SyncRuntime

__all__ = ["Client", "Runtime", "SyncClient", "SyncRuntime", "__version__"]

_HOMES = {
    "Runtime": "skillyard.runtime",
    "SyncRuntime": "skillyard.runtime",
    "Client": "skillyard.client",
    "SyncClient": "skillyard.client",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'skillyard' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
