"""The agreement of a server and its validators."""

from __future__ import annotations

import struct

HEAD = struct.Struct(">HII")
"""Lengths of a request's parts, which follow: the schema's key, the schema (0: it came before), the value. An answer is
JSON, its length in four bytes before it."""
REMEMBERED = 128
"""Schemas that a validator keeps compiled; one more, and all are forgotten. The server counts along."""
MOST_ANSWER = 1024 * 1024
