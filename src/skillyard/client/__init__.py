"""The Python client. Importing it is cheap: names load on first use::

    with SyncClient() as client:
        sales = client.put_blob("sales.csv", "text/csv").blob_id
        run = client.execute_skill("examples.csv.summarize", {"blob": sales}, input_blobs=[sales])
        print(run.raise_for_status().output)

:class:`Client` has the same methods to be awaited. Their exceptions are in :mod:`skillyard.client.errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skillyard.client import errors
    from skillyard.client.bundles import ExportedSkill, PublishedSkill
    from skillyard.client.client import Client, FetchedBlob, StoredBlob
    from skillyard.client.methods.protocol import ProtocolMethods, SyncProtocolMethods
    from skillyard.client.methods.tools import Tool, ToolAnswer
    from skillyard.client.run import Run
    from skillyard.client.sync import SyncClient

__all__ = [
    "Client",
    "ExportedSkill",
    "FetchedBlob",
    "ProtocolMethods",
    "PublishedSkill",
    "Run",
    "StoredBlob",
    "SyncClient",
    "SyncProtocolMethods",
    "Tool",
    "ToolAnswer",
    "errors",
]

_HOMES = {
    "Client": "client",
    "FetchedBlob": "client",
    "StoredBlob": "client",
    "ExportedSkill": "bundles",
    "PublishedSkill": "bundles",
    "ProtocolMethods": "methods.protocol",
    "SyncProtocolMethods": "methods",
    "Run": "run",
    "Tool": "methods.tools",
    "ToolAnswer": "methods.tools",
    "SyncClient": "sync",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":
        return import_module("skillyard.client.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'skillyard.client' has no attribute {name!r}")
    return getattr(import_module(f"skillyard.client.{_HOMES[name]}"), name)
