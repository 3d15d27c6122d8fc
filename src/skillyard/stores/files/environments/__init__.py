"""Locks and built environments below one directory."""

from __future__ import annotations

from skillyard.stores.files.environments.store import LocalEnvironments

__all__ = ["LocalEnvironments"]
