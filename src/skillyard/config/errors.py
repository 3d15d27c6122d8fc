"""The errors for settings that do not exist, are not valid or cannot be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_settings import SettingsError

from skillyard.domain.errors import InvalidInput, shape

PREFIX = "SKILLYARD_"
"""The start of the names of variables that are settings."""
_OF_TYPES = {"tuple_type": 'must be a list, such as ["a", "b"]', "bool_parsing": "must be true or false"}
"""Our words in place of pydantic's, by its types of errors: nobody writes a tuple in TOML."""


def check_names(settings: type[BaseModel], environ: Mapping[str, str]) -> None:
    """Raises InvalidInput for a variable that joins section and setting by one underscore: it would have no effect."""
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        for section, field in settings.model_fields.items():
            head, _, name = variable.removeprefix(PREFIX).lower().partition(f"{section}_")
            if not head and name.partition("__")[0] in _names(field.annotation):
                right = f"{PREFIX}{section}__{name}".upper()
                raise InvalidInput(variable, f"has no effect: two underscores join the names, as in {right}")


def unread(error: SettingsError, environ: Mapping[str, str]) -> InvalidInput:
    """Returns the error for a variable that does not hold JSON where a list or a table is wanted."""
    text = getattr(error.__cause__, "doc", None)
    named = [name for name, value in environ.items() if value == text and name.startswith(PREFIX)]
    if text is None or not named:
        return InvalidInput("settings", str(error))
    return InvalidInput(named[0], """must be JSON, such as '["a", "b"]' or '{"a": "b"}'""", shape(text))


def explained(settings: type[BaseModel], error: ValidationError) -> InvalidInput:
    """Returns the first error that pydantic found, with the setting's name in front."""
    first = error.errors(include_input=False, include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"]) or "settings"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    said = _OF_TYPES.get(first["type"], first["msg"])
    if first["type"] == "extra_forbidden":
        said = f"is not a setting; known are {', '.join(_known(settings, first['loc']))}"
    return InvalidInput(name, f"{said}{more}")


def _known(model: Any, place: Sequence[str | int]) -> list[str]:
    """Returns the names of settings in the section of ``place``."""
    for part in place[:-1]:
        names = getattr(model, "model_fields", None)
        model = names[part].annotation if names else (get_args(model) or (None,))[-1]
    return _names(model)


def _names(model: Any) -> list[str]:
    fields, own = getattr(model, "model_fields", {}), getattr(model, "__annotations__", {})
    names = [name for name, field in fields.items() if not field.exclude]
    return sorted(names, key=lambda name: name not in own)
