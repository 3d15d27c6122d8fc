"""Writes the reference pages from the program itself: ``python docs/generate.py``. A test keeps them current."""

from __future__ import annotations

import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeGuard, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from skillyard.config.commands import JailProfile
from skillyard.config.profiles import ProfileSettings
from skillyard.config.settings import Settings
from skillyard.faces.cli.main import cli
from skillyard.sandbox.registry import choices

HERE = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py from the program itself: change that, not this. -->\n"
CLIENT_TABLE = "../src/skillyard/client/method_table.py"
WIDTH = 100
_PLAIN = {
    "str": "text", "SecretStr": "text", "Path": "path", "int": "integer", "float": "number", "bool": "true or false",
}  # fmt: skip


def pages() -> dict[str, str]:
    """File name → text."""
    calls = runpy.run_path(str(HERE / "system_calls.py"))["system_calls_page"]
    archives = runpy.run_path(str(HERE / "archives.py"))["archives_page"]
    methods = runpy.run_path(str(HERE / "methods_page.py"))
    programs = runpy.run_path(str(HERE / "programs.py"), run_name="programs")["programs_page"]
    python = runpy.run_path(str(HERE / "python_page.py"))["python_page"]
    rules = runpy.run_path(str(HERE / "rules_page.py"))["rules_page"]
    walls = runpy.run_path(str(HERE / "walls.py"))["walls_page"]
    return {
        "archives.md": archives(NOTE),
        "cli.md": cli_page(),
        "methods.md": methods["methods_page"](NOTE),
        "openrpc.json": methods["openrpc_file"](),
        CLIENT_TABLE: methods["client_table"](),
        "programs.md": programs(NOTE),
        "python.md": python(NOTE),
        "rules.md": rules(NOTE),
        "settings.md": settings_page(),
        "system-calls.md": calls(NOTE),
        "walls.md": walls(NOTE),
    }


def cli_page() -> str:
    parts = [NOTE, _CLI_HEAD, *_command(cli, "skillyard")]
    return "\n".join(parts)


_CLI_HEAD = """# Command line

A command talks to the server that `--url` or `SKILLYARD_URL` names, else to the server that runs on the data
directory. When there is none, it does the work in its own process; then commands on one data directory wait for
each other, for a minute at most. Beside a server, a command with `--skills-dir` works in a data directory of its
own (`beside`, inside the server's) and says so: it keeps its runs and blobs there, and does not have the server's
approvals and secrets.
"""


def _command(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[str]:
    """With its parents, as it is called: what they hand down (``-h``) shows in its help."""
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None:
                yield from _command(found, child, context)


def settings_page() -> str:
    head = """# Settings

From the strongest: arguments, `SKILLYARD_*` variables, the TOML file, tables of CommonGround in that file, the
`SKILLFLAW_SKILL_SANDBOX_*` names of an existing `.env`, defaults ([coming-from.md](coming-from.md) has the names of
these two). The file is the one that `--config` or `SKILLYARD_CONFIG` names, else `config.toml` in the data directory.
`limits.max.timeout_ms` is `timeout_ms` below `[limits.max]` in the file and `SKILLYARD_LIMITS__MAX__TIMEOUT_MS` in the
environment. A name that does not exist is an error. `SKILLYARD_SECRETS_KEY` (base64 of 32 bytes) takes the place of
the key file of the secret store; it is read from the environment only.
"""
    parts = [NOTE, head, *_section(Settings, ""), *_section(ProfileSettings, "profiles.NAME")]
    parts += [*_section(JailProfile, "jail.profiles.NAME"), _ENVIRONMENTS]
    return "\n".join(parts)


_NAMED = ("environments", "profiles", "jail.profiles")
"""Settings that are tables of sections under names of the operator's."""
_ENVIRONMENTS = """## environments

Named sets of packages that runs may ask for. `environments.NAME.packages` is a list of requirements to install on
first use, `environments.NAME.preload` a list of modules to import ahead of a run, beside those of a table; `false` for
none at all ([preloading.md](preloading.md)). `base` (nothing) and `data` (numpy, pandas) are always there.
"""
_UNITS = {"_s": "seconds", "_ms": "milliseconds", "_mb": "MiB", "_bytes": "bytes"}


def _section(model: type[BaseModel], path: str) -> Iterator[str]:
    """The table of a section, then its parts. The settings that only this class has come before inherited ones."""
    own, known = vars(model).get("__annotations__", {}), model.model_fields
    fields = [(name, known[name]) for name in sorted(known, key=lambda name: name not in own)]
    parts = [(name, field.annotation) for name, field in fields if _is_section(field.annotation)]
    if path:
        yield f"{'#' * (path.count('.') + 2)} {path}\n\n{_plain(model)}\n"
    yield from ("| setting | type | default | what it does |", "| --- | --- | --- | --- |")
    for name, field in fields:
        named = f"{path}.{name}" if path else name
        if not _is_section(field.annotation) and not field.exclude and named not in _NAMED:
            yield _setting(model, name, field, named)
    yield ""
    for name, part in parts:
        yield from _section(part, f"{path}.{name}" if path else name)


def _is_section(kind: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _plain(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").replace("``", "`").split())


def _setting(model: type[BaseModel], name: str, field: FieldInfo, path: str) -> str:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    isolations = choices() if path.startswith("policy.isolation") else ()
    kind = str(extra.get("kind") or _kind(field.annotation, isolations))
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    default = extra["default"] if "default" in extra else model.model_construct().model_dump(include={name})[name]
    shown = default if default == "per user" else f"`{_json(default)}`"
    return f"| `{path}` | {kind}{f', {unit}' if unit else ''} | {shown} | {_cell(field.description or '')} |"


def _kind(kind: Any, words: Sequence[str] = ()) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (tuple, frozenset):
        return f"list of {_kind(arguments[0], words)}"
    if words:
        return " or ".join(f"`{word}`" for word in words)
    if origin is dict:
        return f"table of {_kind(arguments[1])}"
    if origin in (Union, UnionType):
        return " or ".join(_kind(choice) for choice in arguments if choice is not NoneType)
    if origin is Annotated:
        return _kind(arguments[0])
    if arguments and origin is not None:
        return " or ".join(f"`{value}`" for value in arguments)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "tables with " + ", ".join(f"`{name}`" for name in kind.model_fields)
    return {
        "str": "text",
        "SecretStr": "text",
        "Path": "path",
        "int": "integer",
        "float": "number",
        "bool": "true or false",
    }[kind.__name__]


def _json(value: Any) -> str:
    import json

    if isinstance(value, (frozenset, tuple)):
        value = sorted(map(str, value))
    return json.dumps(value, default=str)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    for file, text in pages().items():
        (HERE / file).write_text(text, encoding="utf-8")
