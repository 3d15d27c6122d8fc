"""The operator's settings. From the strongest: arguments, ``SKILLYARD_*`` variables, the TOML file, tables of
CommonGround in it, the ``SKILLFLAW_SKILL_SANDBOX_*`` names of an existing ``.env``, defaults.

Nested names are joined by two underscores: ``SKILLYARD_LIMITS__MAX__TIMEOUT_MS=600000`` is ``[limits.max]
timeout_ms``. The file is the one that ``SKILLYARD_CONFIG`` names, else ``config.toml`` in the data directory.
A name that does not exist is an error, in the file and behind a known section in the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from skillyard.client.discovery import default_data_dir
from skillyard.config.foreign import Foreign, origin
from skillyard.config.foreign.commonground import check_remote, is_remote, read_tables
from skillyard.config.foreign.skillflaw import read_variables
from skillyard.config.gateway.places import check_closed
from skillyard.config.profiles import check_isolations
from skillyard.config.sections import Sections
from skillyard.domain.errors import InvalidInput, shape, shown
from skillyard.sandbox.registry import BACKENDS, choices, nature

PREFIX = "SKILLYARD_"
"""The start of the names of variables that are settings."""
_OF_TYPES = {
    "tuple_type": 'must be a list, such as ["a", "b"]',
    "bool_parsing": "must be true or false",
    "int_parsing": "must be a whole number",
    "float_parsing": "must be a number",
    "string_pattern_mismatch": "must match {pattern}",
    "value_error": "{error}",
    "literal_error": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
}
"""Our words in place of pydantic's, by its types of errors: nobody writes a tuple in TOML."""

_NARROWED = "native"
"""The isolation that can take write access from places of a run."""


class _Variables(EnvSettingsSource):
    """The environment. A text stands as it is where a list may also be a word, such as ``none``."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        extra = getattr(field, "json_schema_extra", None) or {}
        words = isinstance(extra, dict) and f"`{value}`" in str(extra.get("kind", "")).split(" or ")
        return value if words else super().decode_complex_value(field_name, field, value)


class Settings(Sections, BaseSettings):
    """All of it. Made by :func:`load_settings`, which explains what is wrong.

    ``notes`` are remarks for the log: what was overridden, what cannot be honoured.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    data_dir: Path = Field(
        default_factory=default_data_dir,
        description="Directory that holds everything the server keeps. It needs a local file system.",
        json_schema_extra={"default": "per user"},
    )
    skills_dirs: Annotated[tuple[Path, ...], NoDecode] = Field(
        default=(),
        description="Directories of skills that are served from where they are, beside the published ones.",
    )
    notes: tuple[str, ...] = Field(default=(), exclude=True)

    @field_validator("skills_dirs", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """As in ``PATH`` when it comes as text."""
        return tuple(filter(None, value.split(os.pathsep))) if isinstance(value, str) else value

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("skills_dirs")
    @classmethod
    def _all_absolute(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(path.expanduser().absolute() for path in value)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - what is not wanted is not returned
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        assert isinstance(init_settings, InitSettingsSource)
        tables = _tables(init_settings.init_kwargs)
        ours, theirs = read_tables(tables, choices())
        weaker = (ours, theirs.tree(), read_variables(os.environ).tree())
        return init_settings, _Variables(settings_cls), *(InitSettingsSource(settings_cls, each) for each in weaker)

    @property
    def closed_places(self) -> tuple[Path, ...]:
        """Returns the files and directories that no sandbox may see."""
        kept = self.secrets
        files = kept.files.directory if "files" in kept.readers else None
        closed = (self.data_dir, self.jail.dir, kept.key_file, kept.vault.token_file, files)
        return tuple(path for path in closed if path is not None)


def load_settings(**overrides: Any) -> Settings:
    """Returns the settings; ``overrides`` that are None count as not given.

    Raises InvalidInput naming the setting and the rule.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    check_names(Settings, os.environ)
    tables = _tables(given)
    foreign = (read_tables(tables, choices())[1], read_variables(os.environ))
    try:
        settings = Settings(**given)
        _check_isolations(settings)
    except ValidationError as error:
        raise _with_origin(explained(Settings, error), foreign) from None
    except InvalidInput as error:
        raise _with_origin(error, foreign) from None
    except SettingsError as error:
        raise unread(error, os.environ) from None
    _check_sources(settings)
    if is_remote(tables):
        remote = [name for name in BACKENDS if nature(name).remote]
        check_remote(settings.policy.isolation, remote, settings.e2b.template)
    check_isolations(settings.profiles, settings.policy.isolations | {settings.policy.isolation})
    return settings.model_copy(update={"notes": tuple(_notes(settings, foreign))})


def _check_isolations(settings: Settings) -> None:
    for field, names in (
        ("isolation", {settings.policy.isolation}),
        ("isolations", settings.policy.isolations),
        ("rules", {rule.isolation for rule in settings.policy.rules if rule.isolation}),
    ):
        if not names <= set(choices()):
            *first, last = map(repr, choices())
            raise InvalidInput(f"policy.{field}", f"must be {', '.join(first)} or {last}")
        if settings.sandbox.read_only and (others := sorted(names - {_NARROWED})):
            rule = f"would not hold for '{others[0]}', which policy.{field} names; only '{_NARROWED}' can do it"
            name = "tmpfs" if settings.sandbox.workspace_access == "rw" else "workspace_access"
            raise InvalidInput(f"sandbox.{name}", rule)


def _check_sources(settings: Settings) -> None:
    """Raises InvalidInput for a directory that would show a sandbox what none may see."""
    closed = [path.expanduser().resolve() for path in settings.closed_places]
    for name, server in settings.mcp.servers.items():
        if server.source is not None:
            check_closed(f"mcp.servers.{name}.source", server.source.resolve(), closed)
    if settings.packages.wheels is not None:
        check_closed("packages.wheels", settings.packages.wheels.resolve(), closed, within=False)


def _notes(settings: Settings, foreign: Iterable[Foreign]) -> Iterator[str]:
    """Yields what has no effect, and what is overridden."""
    for one in foreign:
        yield from one.chosen(settings)
        yield from one.in_force(settings)
        yield from one.overridden(settings)
        yield from one.remarks
    for name, profile in settings.profiles.items():
        if profile.ignored:
            yield f"profiles.{name}: these keys of {profile.file} have no effect here: {', '.join(profile.ignored)}"
    for name, why in settings.sandbox.variables(os.environ)[1].items():
        yield f"sandbox.env_allowlist: runs do not get {shown(name)}: {why}"


def _with_origin(error: InvalidInput, foreign: Iterable[Foreign]) -> InvalidInput:
    """Returns the error of a setting with the foreign names that it has its value from."""
    names = origin(error.field, foreign)
    said = error.message.removeprefix(f"{error.field}: ")
    return InvalidInput(f"{error.field} ({names})", said) if names else error


def _tables(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the file of settings. Raises InvalidInput for a named one that is not there, or that is not TOML."""
    named = os.environ.get("SKILLYARD_CONFIG")
    file = Path(named).expanduser() if named else Path(given.get("data_dir") or default_data_dir()) / "config.toml"
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise InvalidInput("SKILLYARD_CONFIG", f"there is no file {file}") from None
        return {}
    except OSError as error:
        raise InvalidInput(str(file), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidInput(str(file), f"cannot be read as TOML: {error}") from None


def check_names(settings: type[BaseModel], environ: Mapping[str, str]) -> None:
    """Raises InvalidInput for a variable that joins section and setting by one underscore."""
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        for section, field in settings.model_fields.items():
            head, _, name = variable.removeprefix(PREFIX).lower().partition(f"{section}_")
            if not head and name.partition("__")[0] in _names(field.annotation):
                right = f"{PREFIX}{section}__{name}".upper()
                raise InvalidInput(variable, f"has no effect: two underscores join the names, as in {right}")


def unread(error: SettingsError, environ: Mapping[str, str]) -> InvalidInput:
    """Returns the error for a variable that must hold a list or a table as JSON."""
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
    rule = {name: f"{it:g}" if isinstance(it, float) else it for name, it in first.get("ctx", {}).items()}
    said = _OF_TYPES[first["type"]].format(**rule) if first["type"] in _OF_TYPES else first["msg"]
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
