"""``skillyard jail``: the options of a jail, its run, and how it ended."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.domain.errors import InvalidInput, shown
from skillyard.faces.cli.options import data_dir_option, isolation_option, json_option
from skillyard.faces.cli.render import calm, calm_line
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.config.settings import Settings
    from skillyard.domain.sandbox.spec import Mount
    from skillyard.engine.commands.jail_order import JailOrder
    from skillyard.faces.cli.jail.packages import Added, Installed
    from skillyard.faces.cli.jail.sharing import Wish

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
    mounts: tuple[Mount, ...] = ()
    package: tuple[str, str] | None = None
    """The name of a package that was added, and the digest of its files."""

    def and_kept(self, kept: Mapping[str, Any]) -> Grants:
        """Returns these grants with those that a package was added with."""
        return replace(
            self,
            read=(*map(Path, kept["read"]), *self.read),
            write=(*map(Path, kept["write"]), *self.write),
            allow=(*kept["allow"], *self.allow),
            env=(*kept["env"], *self.env),
            secrets=(*kept["secrets"], *self.secrets),
        )

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


def grant_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of grants, under the names of :class:`Grants`, and ``profile``."""
    for decorate in reversed(_OPTIONS):
        command = decorate(command)
    return command


_PLACE = click.Path(path_type=Path)
_OPTIONS = (
    click.option("--allow", metavar="HOST", multiple=True, help="A host that it may reach, as api.x.com. May repeat."),
    click.option("--read", type=_PLACE, metavar="DIR", multiple=True, help="A directory to read. May repeat."),
    click.option("--write", type=_PLACE, metavar="DIR", multiple=True, help="A directory to change. May repeat."),
    click.option("--env", metavar="NAME", multiple=True, help="A variable of this command's that it gets. May repeat."),
    click.option("--secret", "secrets", metavar="NAME", multiple=True, help="A secret of the store that it gets."),
    click.option("--profile", metavar="NAME", help="A profile of the settings (jail.profiles), whose grants it gets."),
)
_AS_IT_IS = {"allow_interspersed_args": False}


_alone = click.option("--alone", is_flag=True, help="Have a keeper of its own, also where a server runs.")


@jail.command("start", context_settings=_AS_IT_IS)
@grant_options
@isolation_option("The boundary to run behind.")
@_alone
@data_dir_option
@click.argument("command", nargs=-1, required=True)
def start(
    command: tuple[str, ...],
    profile: str | None,
    isolation: str | None,
    data_dir: Path | None,
    *,
    alone: bool,
    **grants: Any,
) -> None:
    """Run COMMAND in a jail. Its exit code is this command's; 128 and the number for a signal."""
    from skillyard.config.settings import load_settings

    settings = load_settings(data_dir=data_dir)
    sys.exit(perform(settings, Grants(**grants).under(settings, profile), command, isolation, alone=alone))


@jail.command("add")
@grant_options
@click.option("--try/--no-try", "trying", default=True, help="Start it once, as an MCP server, and list its tools.")
@data_dir_option
@click.argument("name")
@click.argument("command", nargs=-1, required=True)
def add(
    name: str, command: tuple[str, ...], profile: str | None, data_dir: Path | None, *, trying: bool, **grants: Any
) -> None:
    """Fetch the package of COMMAND (npx, uvx or pipx run) once, and keep it as NAME.

    It is fetched in a sandbox that reaches the registry alone, where its install scripts run, too. The options are what
    NAME gets whenever it is run. Then it is started once, jailed so, and the hosts that it asks for are shown.
    """
    import asyncio

    from skillyard.config.settings import load_settings
    from skillyard.faces.cli.jail.packages import parse, store_of

    settings = load_settings(data_dir=data_dir)
    Grants(**grants).under(settings, profile)  # a name that does not exist is told before anything is fetched
    kept = {**{key: [str(value) for value in values] for key, values in grants.items()}, "profile": profile}
    package, store = parse(command), store_of(settings)
    added = asyncio.run(store.add(settings, name, package, kept))
    _tell_added(added)
    if trying:
        asyncio.run(_try_added(settings, added.installed))


@jail.command("run")
@grant_options
@isolation_option("The boundary to run behind.")
@_alone
@data_dir_option
@click.argument("name")
@click.argument("args", nargs=-1)
def run(
    name: str,
    args: tuple[str, ...],
    profile: str | None,
    isolation: str | None,
    data_dir: Path | None,
    *,
    alone: bool,
    **grants: Any,
) -> None:
    """Run the package that was added as NAME, with further ARGS. It reaches no registry."""
    from skillyard.config.settings import load_settings
    from skillyard.faces.cli.jail.packages import store_of

    settings = load_settings(data_dir=data_dir)
    found = store_of(settings).find(name)
    given = _of_added(settings, Grants(**grants), found, profile)
    sys.exit(perform(settings, given, (*found.start, *found.package.args, *args), isolation, alone=alone))


def _of_added(settings: Settings, grants: Grants, found: Installed, profile: str | None = None) -> Grants:
    """Returns these grants with those of an added package, and its files."""
    from skillyard.faces.cli.jail.packages import store_of

    given = grants.and_kept(found.grants).under(settings, profile).under(settings, found.grants["profile"])
    return replace(given, mounts=(store_of(settings).mount(found),), package=(found.name, found.digest))


@jail.command("list")
@data_dir_option
@json_option
def list_(data_dir: Path | None, *, as_json: bool) -> None:
    """List the packages that were added, with their grants."""
    from skillyard.config.settings import load_settings
    from skillyard.faces.cli.jail.packages import store_of

    store = store_of(load_settings(data_dir=data_dir))
    found = [store.find(name) for name in store.names()]
    if as_json:
        rows = [
            {"name": one.name, "package": one.package.requirement, "digest": one.digest, "grants": dict(one.grants)}
            for one in found
        ]
        click.echo(json.dumps(rows))
        return
    for one in found:
        click.echo(f"{one.name}  {one.package.requirement}  {_granted(one.grants)}")


@jail.command("remove")
@data_dir_option
@click.argument("name")
def remove(name: str, data_dir: Path | None) -> None:
    """Remove a package that was added."""
    from skillyard.config.settings import load_settings
    from skillyard.faces.cli.jail.packages import store_of

    store_of(load_settings(data_dir=data_dir)).remove(name)
    click.echo(f"removed {name}")


def _tell_added(added: Added) -> None:
    """Shows what was fetched, and what the package asked for meanwhile."""
    one = added.installed
    click.echo(f"added {one.name}: {one.package.requirement}, sha256 {one.digest}")
    for connection in added.connections:
        said = "reached" if connection["allowed"] else "was refused"
        click.echo(f"  its build {said} {calm(connection['host'])}:{connection['port']}")
    for name in one.scripts:
        click.echo(f"  an install script ran in the build: {calm(name)}")
    click.echo(f"  it gets {_granted(one.grants)}; start it with: skillyard jail run {one.name}")


async def _try_added(settings: Settings, found: Installed) -> None:
    """Starts a package once with its grants and tells what it asks for. It may be something else than a server."""
    from skillyard.domain.errors import SkillyardError
    from skillyard.faces.cli.mcp.wrap.trial import tried

    try:
        order = await order_of(settings, _of_added(settings, Grants(), found), (*found.start, *found.package.args))
        trial = (await tried(settings, None, {found.name: order}))[found.name]
    except SkillyardError as error:  # as a variable that the client alone has
        click.echo(f"  it was not tried: {calm_line(error.message)}")
        return
    tools = ", ".join(trial.tools[:12]) + (", ..." if len(trial.tools) > 12 else "")
    listed = f"listed no tools: {trial.why}" if trial.why else f"listed {len(trial.tools)} tools: {tools}"
    click.echo(f"  started once, it {calm_line(listed)}")
    for host in trial.hosts:
        click.echo(f"  it asked for {calm_line(host)}, and was refused; --allow {calm_line(host)} gives it")
    for host in trial.never:
        click.echo(f"  it asked for {calm_line(host)}, a private address, and was refused")


def options_of(grants: Grants) -> list[str]:
    """Returns the options that give these grants."""
    return [word for name in _LISTS for value in getattr(grants, name) for word in (_option(name), str(value))]


def _option(name: str) -> str:
    return "--secret" if name == "secrets" else f"--{name}"


def _granted(grants: Mapping[str, Any]) -> str:
    told = [f"{_option(name)} {value}" for name in _LISTS for value in grants[name]]
    if grants["profile"]:
        told.append(f"--profile {grants['profile']}")
    return " ".join(told) or "nothing of the host"


_LISTS = ("read", "write", "allow", "env", "secrets")


def perform(
    settings: Settings, grants: Grants, command: Sequence[str], isolation: str | None, *, alone: bool = False
) -> int:
    """Runs a jail and returns the exit code. Raises what :meth:`JailService.run` raises, and InvalidInput."""
    import asyncio

    from skillyard.watches import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(settings, grants, tuple(command), isolation, alone=alone or not settings.jail.places))


async def _run(
    settings: Settings, grants: Grants, command: tuple[str, ...], isolation: str | None, *, alone: bool
) -> int:
    from skillyard.faces.cli.jail import home, sharing
    from skillyard.faces.cli.jail.wires import StandardWires

    async with StandardWires() as wires:
        if not alone:
            try:
                ended = await sharing.run(settings, _wish(settings, grants, command, isolation), wires)
                if ended is None:
                    return _SIGNALLED + wires.signal if wires.signal else _OURS
                return _code(ended.outcome, ended.output, ended.summary, wires.signal)
            except sharing.ServerLost as lost:
                click.echo(f"skillyard: {lost}", err=True)
                return _OURS
            except sharing.NotShared as why:
                if str(why):
                    click.echo(f"skillyard: the jail runs alone: {why}", err=True)
        from skillyard.domain.principal import LOCAL

        order = await order_of(settings, grants, command)
        async with home.runtime(settings, isolation) as runtime:
            record = await runtime.app.jails.run(LOCAL, order, wires)
        output = record.output if isinstance(record.output, dict) else {}
        return _code(str(record.outcome or ""), output, record.summary, wires.signal)


def _wish(settings: Settings, grants: Grants, command: tuple[str, ...], isolation: str | None) -> Wish:
    """Raises InvalidInput for a variable or a host that cannot be given."""
    from skillyard.domain.network.policy import parse_rules
    from skillyard.faces.cli.jail.sharing import Wish

    parse_rules(list(grants.allow), "allow")
    return Wish(
        args=command,
        read=grants.read,
        write=grants.write,
        allow=grants.allow,
        env=_variables(grants.env),
        secrets=grants.secrets,
        package=grants.package,
        isolation=isolation,
        closed=closed_places(settings),
    )


def closed_places(settings: Settings) -> tuple[Path, ...]:
    """Returns the files and directories that no jail may see."""
    from skillyard.faces.cli.jail import home

    return (*settings.closed_places, home.base(settings))


async def order_of(settings: Settings, grants: Grants, command: tuple[str, ...]) -> JailOrder:
    """Returns the order of a jail. Raises InvalidInput, StoreFault."""
    from skillyard.domain.network.policy import parse_rules
    from skillyard.engine.commands.jail_order import JailOrder
    from skillyard.faces.cli.jail import home
    from skillyard.faces.cli.jail.directories import chosen
    from skillyard.faces.cli.jail.sharing import cwd_in

    directories = chosen(grants.read, grants.write, closed_places(settings))
    return JailOrder(
        args=command,
        limits=settings.jail.limits,
        directories=directories,
        env=_variables(grants.env),
        rules=parse_rules(list(grants.allow), "allow"),
        secrets=await home.secrets(settings, grants.secrets),
        cwd=cwd_in(directories),
        mounts=grants.mounts,
        labels={} if grants.package is None else {"jail": grants.package[0]},
    )


def _variables(names: Sequence[str]) -> dict[str, str]:
    """Returns the variables of this process by name. Raises InvalidInput for one that it does not have."""
    found = {}
    for name in names:
        if name not in os.environ:
            raise InvalidInput("env", "is not a variable of this command's environment", shown(name))
        found[name] = os.environ[name]
    return found


def _code(outcome: str, output: Mapping[str, Any], summary: str, signalled: int) -> int:
    from skillyard.domain.work.record import Outcome

    if outcome == Outcome.EXIT:
        return int(output.get("exit_code", 0))
    if outcome == Outcome.SIGNAL:
        return _SIGNALLED + int(output.get("signal", 0))
    if outcome == Outcome.CANCELLED and signalled:
        return _SIGNALLED + signalled
    click.echo(f"skillyard: {summary}", err=True)
    return _TIMEOUT if outcome == Outcome.TIMEOUT else _OURS
