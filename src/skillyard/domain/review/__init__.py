"""Reviews a bundle for a reader who has to decide whether to trust it. Nothing of it is executed.

These are pure functions over bytes, bounded in time and memory. A review knows a list of dangers; a bundle without
findings may still be dangerous.
"""

from __future__ import annotations

from skillyard.domain.review.bundle import Review, python_sources, review
from skillyard.domain.review.file import File
from skillyard.domain.review.python_facts import Facts, facts_from

__all__ = ["Facts", "File", "Review", "facts_from", "python_sources", "review"]
