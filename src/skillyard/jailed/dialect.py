"""Our dialect of JSON Schema 2020-12: nothing is fetched, and patterns take linear time.

Patterns run on a linear engine. Lookaround and backreferences, which it cannot do, run beside it within a bound of
steps. Formats assert nothing, as the specification has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jsonschema_rs

_MOST_STEPS = 100_000
_COMPILED_BYTES = 1024 * 1024
_EXPLAINED = 16 * 1024
_META = {"$ref": "https://json-schema.org/draft/2020-12/schema"}


@lru_cache(maxsize=1)
def _patterns() -> jsonschema_rs.FancyRegexOptions:
    return jsonschema_rs.FancyRegexOptions(
        backtrack_limit=_MOST_STEPS, size_limit=_COMPILED_BYTES, dfa_size_limit=_COMPILED_BYTES
    )


def validator(schema: Mapping[str, Any]) -> jsonschema_rs.Validator:
    """Compiles a schema. Raises ValueError, whose ``message`` is the reason."""
    return jsonschema_rs.Draft202012Validator(
        dict(schema), validate_formats=False, pattern_options=_patterns(), offline=True
    )


def problem(schema: Mapping[str, Any]) -> tuple[tuple[str | int, ...], str] | None:
    """Returns the place and the way in which a schema breaks its dialect, None when it does not."""
    value = dict(schema)
    if _meta().is_valid(value):
        return None
    # To say what is wrong costs seconds where many things are, and the interpreter is held meanwhile.
    if len(json.dumps(value)) > _EXPLAINED:
        return (), f"what is wrong is only told of one below {_EXPLAINED} characters"
    try:
        _meta().validate(value)
    except jsonschema_rs.ValidationError as error:
        return tuple(error.instance_path), error.message
    return None


def is_pattern(pattern: str) -> bool:
    """Returns whether it is a regular expression, and small enough once compiled."""
    try:
        validator({"pattern": pattern})
    except ValueError:
        return False
    return True


@lru_cache(maxsize=1)
def _meta() -> jsonschema_rs.Validator:
    return validator(_META)
