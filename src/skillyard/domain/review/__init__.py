"""What a reader should know before trusting a bundle: found in its files alone, nothing of it is executed.

Pure functions over bytes, bounded in time and memory for whatever the bytes are. A review finds what is known to be
looked for; that it finds nothing is no promise.
"""

from __future__ import annotations

from skillyard.domain.review.bundle import Review, python_sources, review
from skillyard.domain.review.file import File
from skillyard.domain.review.python_facts import Facts, facts_from

__all__ = ["Facts", "File", "Review", "facts_from", "python_sources", "review"]
