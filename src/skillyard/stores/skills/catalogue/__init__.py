"""The catalogue: skills of directories and published ones, from an index on disk."""

from skillyard.stores.skills.catalogue.catalogue import Catalogue

__all__ = ["Catalogue"]
