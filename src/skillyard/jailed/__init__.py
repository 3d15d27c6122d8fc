"""Works on hostile input that no library bounds, in jailed processes that can be ended.

A server and its processes exchange frames. A request's object has ``job``, ``cpu_s``, the bound of its processor time,
and for ``schema`` also ``key`` and ``schema``, the length of the schema (0: it came before); schema and value are its
body. For ``python`` the body is the source. An answer is JSON in a body.
"""

from __future__ import annotations

REMEMBERED = 128
"""Schemas that a process keeps compiled; one more, and all are forgotten. The server counts along."""
MOST_ANSWER = 4 * 1024 * 1024
