"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skillyard.faces.cli.target import Where

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Adds ``as_json``: standard output is one JSON value and nothing else."""
    return click.option("--json", "as_json", is_flag=True, help="Machine output: JSON alone on stdout.")(command)


def wait_option(command: F) -> F:
    """Adds ``wait``: seconds for a session that another call has, or None."""
    return click.option(
        "--wait",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="How long to wait while another call has the session.  [default: the server's sessions.wait_ms]",
    )(command)


def data_dir_option(command: F) -> F:
    """Adds ``data_dir``: a Path, or None for the default."""
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="SKILLYARD_DATA_DIR",
        help="Where everything is kept.  [default: $XDG_DATA_HOME/skillyard; env: SKILLYARD_DATA_DIR]",
    )(command)


def config_option(command: F) -> F:
    """Adds the file of settings. The command finds its path in SKILLYARD_CONFIG."""

    def use(_context: click.Context, _option: click.Parameter, file: Path | None) -> None:
        if file is not None:
            os.environ["SKILLYARD_CONFIG"] = str(file)

    return click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="SKILLYARD_CONFIG",
        expose_value=False,
        callback=use,
        help="The settings.  [default: config.toml in the data directory; env: SKILLYARD_CONFIG]",
    )(command)


def bench_options(command: F) -> F:
    """Adds the options of a benchmark: what is measured, and where it is told."""
    for decorate in (
        json_option,
        click.option(
            "--output",
            type=click.Path(path_type=Path, dir_okay=False, writable=True),
            metavar="FILE",
            help="Write the numbers there as JSON, too; - is --json.",
        ),
        click.option(
            "--ready",
            type=click.IntRange(1, 4000),
            metavar="N",
            help="Sandboxes to hold ready when their idle cost is measured.  [default: 100]",
        ),
        click.option(
            "--against",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            metavar="VENV",
            help="Measure only runs, in turns with the skillyard that is installed in another virtual environment.",
        ),
        click.option("--profile", is_flag=True, help="Measure only runs, and tell their processor time by process."),
        click.option("--quick", is_flag=True, help="Seconds instead of a minute or two, and no numpy: a sign of life."),
    ):
        command = decorate(command)
    return command


class _Isolation(click.ParamType[str]):
    """One of the backends. Their registry is imported only when a name is given or help is shown."""

    name = "isolation"

    @property
    def _choice(self) -> click.Choice[str]:
        from skillyard.wiring import isolations

        return click.Choice(isolations())

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return self._choice.convert(value, param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return self._choice.get_metavar(param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return self._choice.shell_complete(ctx, param, incomplete)


def isolation_option(help_text: str) -> Callable[[F], F]:
    """Adds ``isolation``: a backend's name, ``auto``, or None for what the settings say."""
    return click.option("--isolation", type=_Isolation(), help=help_text)


def network_option(help_text: str) -> Callable[[F], F]:
    """Adds ``network``: rules as they are written."""
    return click.option("--network", metavar="RULE", multiple=True, help=help_text)


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``where``: which server does the work, or this process."""

    @click.option("--url", envvar="SKILLYARD_URL", help="The server.  [env: SKILLYARD_URL]")
    @click.option("--token", envvar="SKILLYARD_TOKEN", help="Its bearer token.  [env: SKILLYARD_TOKEN]")
    @click.option(
        "--skills-dir",
        "skills_dirs",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        multiple=True,
        help="Skills of yours, for work in this process, also beside a server. May repeat.",
    )
    @data_dir_option
    @wraps(command)
    def located(
        *args: Any,
        url: str | None,
        token: str | None,
        skills_dirs: tuple[Path, ...],
        data_dir: Path | None,
        **kwargs: Any,
    ) -> Any:
        if url and skills_dirs and not _from_environment("url"):
            raise click.UsageError("--skills-dir is for work in this process; it does not go with --url.")
        where = Where(None if skills_dirs else url, token, data_dir, skills_dirs)
        return command(*args, where=where, **kwargs)

    return located


def _from_environment(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is click.core.ParameterSource.ENVIRONMENT


class Named(dict[str, str]):
    """The parameters ``name`` and perhaps ``version``; its text is NAME@VERSION."""

    def __str__(self) -> str:
        return "@".join(self.values())


def skill_argument(*, exactly: bool = False) -> Callable[[F], F]:
    """Adds ``skill``: a :class:`Named`; with ``exactly`` the version must be given."""

    def parse(_: click.Context, __: click.Parameter, text: str) -> Named:
        name, version = exact(text) if exactly else maybe(text)
        return Named(name=name, version=version) if version else Named(name=name)

    return click.argument("skill", metavar="NAME@VERSION" if exactly else "NAME[@VERSION]", callback=parse)


def detail_option(command: F) -> F:
    """Adds ``detail``: how much of a run is given; None for all of it."""
    help_text = "brief: of the run only what a model needs, for --json.  [default: full]"
    return click.option("--detail", type=click.Choice(["full", "brief"]), help=help_text)(command)


def label_option(help_text: str) -> Callable[[F], F]:
    """Adds ``labels``: an object of names and values, empty when none is given."""

    def parse(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
        labels = {}
        for text in texts:
            name, equals, value = text.partition("=")
            if not (name and equals):
                raise click.BadParameter(f"{text!r} must be NAME=VALUE, such as team=crm.")
            labels[name] = value
        return labels

    return click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, callback=parse, help=help_text)


def limit_option(command: F) -> F:
    """Adds ``limit``: how many items of a list."""
    return click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)(command)


def everyone_option(command: F) -> F:
    """Adds ``all``: the items of every principal."""
    return click.option("--all", "all", is_flag=True, help="Everybody's; needs the scope admin.")(command)


def exact(text: str) -> tuple[str, str]:
    """Returns name and version of NAME@VERSION. Raises UsageError unless both are there."""
    name, at, version = text.partition("@")
    if not (name and at and version):
        raise click.UsageError(f"{text!r} must be NAME@VERSION, such as acme.words.say@1.0.0.")
    return name, version


def chosen(text: str, option: str | None) -> tuple[str, str | None]:
    """Returns the name, and the version that NAME@VERSION or --version names. Raises UsageError when they differ."""
    name, version = maybe(text)
    if version and option and version != option:
        raise click.UsageError("--version says another version than NAME@VERSION.")
    return name, version or option


def maybe(text: str) -> tuple[str, str | None]:
    """Returns the name, and the version where one is named. Raises UsageError."""
    return exact(text) if "@" in text else (text, None)
