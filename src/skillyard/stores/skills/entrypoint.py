"""Whether a module defines the function that a manifest exports: by its syntax tree, nothing is run."""

from __future__ import annotations

import ast
import re
import warnings
from itertools import islice

MAX_BYTES = 1024 * 1024
MAX_WORDS = 150_000
"""Names, numbers and marks: each becomes up to a kilobyte of a syntax tree, in the process that reads."""

_WORD = re.compile(rb"\w+|[^\w\s]")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def complaint(source: bytes, export: str) -> tuple[int, str, str] | None:
    """Returns (line, rule, message) if ``source`` does not define the function ``export``. The definition must stand at
    the top level. None when it does."""
    if len(source) > MAX_BYTES:
        return 0, "entrypoint-size", f"must have at most {MAX_BYTES} bytes"
    if _has_more_words(source):
        return 0, "entrypoint-size", f"must have at most {MAX_WORDS} words and marks"
    try:
        module = _parsed(source)
    except SyntaxError as error:
        return error.lineno or 0, "entrypoint-syntax", f"is no Python: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return 0, "entrypoint-syntax", f"cannot be parsed: {str(error) or type(error).__name__}"
    if any(isinstance(node, _Function) and node.name == export for node in module.body):
        return None
    return 0, "export-missing", f"must define the function '{export}' at its top level"


def _has_more_words(source: bytes) -> bool:
    return len(source) > MAX_WORDS and next(islice(_WORD.finditer(source), MAX_WORDS, None), None) is not None


def _parsed(source: bytes) -> ast.Module:
    with warnings.catch_warnings():  # an odd escape in a skill is not our warning
        warnings.simplefilter("ignore")
        return ast.parse(source)
