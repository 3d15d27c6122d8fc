"""``NAME@VERSION`` on the command line."""

from __future__ import annotations

import click


def exact(text: str) -> tuple[str, str]:
    """Name and version. Raises UsageError unless both are there."""
    name, at, version = text.partition("@")
    if not (name and at and version):
        raise click.UsageError(f"{text!r} must be NAME@VERSION, such as acme.words.say@1.0.0.")
    return name, version


def chosen(text: str, option: str | None) -> tuple[str, str | None]:
    """Name, and the version that NAME@VERSION or --version names. Raises UsageError when they differ."""
    name, version = maybe(text)
    if version and option and version != option:
        raise click.UsageError("--version says another version than NAME@VERSION.")
    return name, version or option


def maybe(text: str) -> tuple[str, str | None]:
    """Name, and version where one is named. Raises UsageError."""
    return exact(text) if "@" in text else (text, None)
