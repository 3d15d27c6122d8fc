"""Locks and built environments below one directory."""

from __future__ import annotations

from skillyard.stores.environments.store import LocalEnvironments

__all__ = ["LocalEnvironments"]
