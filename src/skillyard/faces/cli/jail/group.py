"""``skillyard jail``: the options of a jail, its run, and how it ended."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.domain.errors import InvalidInput, shown
from skillyard.faces.cli.options import data_dir_option, isolation_option

if TYPE_CHECKING:
    from skillyard.config.settings import Settings
    from skillyard.domain.work.record import RunRecord
    from skillyard.engine.commands.jail_order import JailOrder

_TIMEOUT, _OURS, _SIGNALLED = 124, 125, 128
"""Exit codes as timeout(1), env(1) and shells have them."""


@dataclass(frozen=True, slots=True)
class Grants:
    """The options of a jail, and a profile's."""

    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    allow: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)

    def under(self, settings: Settings, name: str | None) -> Grants:
        """Returns these grants with those of a profile. Raises InvalidInput for a profile that does not exist."""
        if name is None:
            return self
        profile = settings.jail.profiles.get(name)
        if profile is None:
            raise InvalidInput("profile", "must be one of jail.profiles in the settings", shown(name))
        return replace(
            self,
            read=(*profile.read, *self.read),
            write=(*profile.write, *self.write),
            allow=(*(rule.text for rule in profile.allow), *self.allow),
            env=(*profile.env, *self.env),
            secrets=(*profile.secrets, *self.secrets),
        )


class JailGroup(click.Group):
    """Runs a program, unless the first word is a command of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args.insert(0, "start")
        return super().parse_args(ctx, args)


@click.group(cls=JailGroup, options_metavar="[OPTIONS]", subcommand_metavar="-- COMMAND...")
def jail() -> None:
    """Run any program behind the walls, with its standard streams passed through.

    It sees no file, variable or host but those that the options name: put `skillyard jail --` before the command of an
    MCP server in its client's configuration. `skillyard jail start --help` shows the options.
    """


@jail.command("start", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--allow", metavar="HOST", multiple=True, help="A host that it may reach, as api.x.com:443. May repeat.")
@click.option("--read", type=click.Path(path_type=Path), metavar="DIR", multiple=True, help="A directory to read.")
@click.option("--write", type=click.Path(path_type=Path), metavar="DIR", multiple=True, help="A directory to change.")
@click.option("--env", metavar="NAME", multiple=True, help="A variable of this command's that it gets. May repeat.")
@click.option("--secret", "secrets", metavar="NAME", multiple=True, help="A secret of the store that it gets.")
@click.option("--profile", metavar="NAME", help="A profile of the settings (jail.profiles), whose grants it gets.")
@isolation_option("The boundary to run behind.")
@data_dir_option
@click.argument("command", nargs=-1, required=True)
def start(
    allow: tuple[str, ...],
    read: tuple[Path, ...],
    write: tuple[Path, ...],
    env: tuple[str, ...],
    secrets: tuple[str, ...],
    profile: str | None,
    isolation: str | None,
    data_dir: Path | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND in a jail. Its exit code is this command's; 128 and the number for a signal."""
    from skillyard.config.settings import load_settings

    settings = load_settings(data_dir=data_dir)
    grants = Grants(read, write, allow, env, secrets).under(settings, profile)
    sys.exit(perform(settings, grants, command, isolation))


def perform(settings: Settings, grants: Grants, command: Sequence[str], isolation: str | None) -> int:
    """Runs a jail and returns the exit code. Raises what :meth:`JailService.run` raises, and InvalidInput."""
    from skillyard.watches import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(settings, grants, tuple(command), isolation))


async def _run(settings: Settings, grants: Grants, command: tuple[str, ...], isolation: str | None) -> int:
    from skillyard.domain.principal import LOCAL
    from skillyard.faces.cli.jail import home
    from skillyard.faces.cli.jail.wires import StandardWires

    async with StandardWires() as wires:
        order = await _order(settings, grants, command)
        async with home.runtime(settings, isolation) as runtime:
            record = await runtime.app.jails.run(LOCAL, order, wires)
        return _code(record, wires.signal)


async def _order(settings: Settings, grants: Grants, command: tuple[str, ...]) -> JailOrder:
    from skillyard.domain.network.policy import parse_rules
    from skillyard.engine.commands.jail_order import JailOrder
    from skillyard.faces.cli.jail import home
    from skillyard.faces.cli.jail.directories import chosen

    directories = chosen(grants.read, grants.write, [settings.data_dir, home.base(settings)])
    return JailOrder(
        args=command,
        limits=settings.jail.limits,
        directories=directories,
        env=_variables(grants.env),
        rules=parse_rules(list(grants.allow), "allow"),
        secrets=await home.secrets(settings, grants.secrets),
        cwd=_cwd(each.path for each in directories),
        labels=grants.labels,
    )


def _variables(names: Sequence[str]) -> dict[str, str]:
    """Returns the variables of this process by name. Raises InvalidInput for one that it does not have."""
    found = {}
    for name in names:
        if name not in os.environ:
            raise InvalidInput("env", "is not a variable of this command's environment", shown(name))
        found[name] = os.environ[name]
    return found


def _cwd(shown_at: Any) -> str:
    """Returns this command's working directory where the jail shows it, else the jail's."""
    here = Path.cwd()
    return str(here) if any(here.is_relative_to(path) for path in shown_at) else "/workspace"


def _code(record: RunRecord, signalled: int) -> int:
    from skillyard.domain.work.record import Outcome

    output = record.output if isinstance(record.output, dict) else {}
    if record.outcome is Outcome.EXIT:
        return int(output.get("exit_code", 0))
    if record.outcome is Outcome.SIGNAL:
        return _SIGNALLED + int(output.get("signal", 0))
    if record.outcome is Outcome.CANCELLED and signalled:
        return _SIGNALLED + signalled
    click.echo(f"skillyard: {record.summary}", err=True)
    return _TIMEOUT if record.outcome is Outcome.TIMEOUT else _OURS
