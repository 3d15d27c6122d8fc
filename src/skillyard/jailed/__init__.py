"""Work on hostile input that no library bounds, in jailed processes that can be ended."""

from __future__ import annotations

REMEMBERED = 128
"""Schemas that a process keeps compiled; one more, and all are forgotten. The server counts along."""
MOST_ANSWER = 4 * 1024 * 1024
