"""The agreement of a server and its validators, which exchange frames.

A request's object has ``key`` and ``schema``, the length of the schema (0: it came before); schema and value are its
body. An answer is JSON in a body.
"""

from __future__ import annotations

REMEMBERED = 128
"""Schemas that a validator keeps compiled; one more, and all are forgotten. The server counts along."""
MOST_ANSWER = 1024 * 1024
