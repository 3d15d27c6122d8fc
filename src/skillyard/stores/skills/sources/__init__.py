"""Where a bundle is installed from: a directory, an archive, a git checkout on disk."""

from __future__ import annotations

from skillyard.stores.skills.sources.source import read_source

__all__ = ["read_source"]
