"""``skillyard mcp wrap`` and ``unwrap``: what is proposed, tried, shown, asked and written."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.failures import Failure
from skillyard.faces.cli.jail.group import Grants, closed_places, grant_options, options_of, order_of
from skillyard.faces.cli.mcp.clients import Unfit
from skillyard.faces.cli.mcp.files import difference, read, write
from skillyard.faces.cli.mcp.install import program
from skillyard.faces.cli.mcp.wrap.entries import LeftAlone, Stdio, stdio
from skillyard.faces.cli.mcp.wrap.kept import Wrapped, wraps_of
from skillyard.faces.cli.mcp.wrap.pieces import Form, Keys
from skillyard.faces.cli.options import data_dir_option, isolation_option
from skillyard.faces.cli.render import calm, calm_line, emit_foreign
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.config.settings import Settings
    from skillyard.faces.cli.mcp.wrap.proposals import Proposal
    from skillyard.faces.cli.mcp.wrap.trial import Trial

_MOST_SERVERS = 100
_ROUNDS = 3
"""Dry runs of one server: hosts that are allowed may lead to further ones."""


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
        click.option(
            "--print", "only_print", is_flag=True, help="Print the new configuration; run and change nothing."
        ),
        click.option("--server", "names", metavar="NAME", multiple=True, help="Only this server. May repeat."),
        data_dir_option,
        click.argument("file", type=click.Path(path_type=Path)),
    ):
        command = decorate(command)
    return command


@dataclass(slots=True)
class _Draft:
    """A server on its way into its jail."""

    proposal: Proposal
    grants: Grants
    known: Stdio | None
    package: str = ""
    """The name that its package gets."""
    trial: Trial | None = None
    added: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.proposal.server.name


@click.command()
@_common
@grant_options
@isolation_option("The boundary to run behind.")
@click.option("--try/--no-try", "trying", default=True, help="Start each server jailed first, and list its tools.")
def wrap(
    file: Path,
    names: tuple[str, ...],
    data_dir: Path | None,
    profile: str | None,
    isolation: str | None,
    *,
    yes: bool,
    only_print: bool,
    trying: bool,
    **grants: Any,
) -> None:
    """Rewrite FILE, a client's configuration, so that the servers that it starts run jailed.

    A server is proposed the directories that its own arguments name, to read, and its variables by name. --write,
    --allow and --secret give a server what it is proposed so; with --server, all options are its own. It is started
    jailed first, without any host, and the hosts that it asks for are shown. Nothing is granted that is not shown.
    """
    from skillyard.config.settings import load_settings

    settings = load_settings(data_dir=data_dir)
    given = Grants(**grants)
    places = given.under(settings, profile).write  # a name that does not exist is told before anything is done
    if not names and (given.read or given.env or profile):
        raise Failure("--read, --env and --profile are for one server", "name it by --server")
    file, (form, before) = file.resolve(), _text(file)
    if any(file.is_relative_to(place.expanduser().resolve()) for place in places):
        raise Failure(f"--write: {file} is in it, by which a server could free itself", "name a directory in it")
    work = _Wrapping(settings, file, form, given, profile, isolation, bool(names))
    drafts = work.drafts(before, names)
    try:
        if not only_print:
            drafts = work.prepared(drafts, trying=trying, asking=not yes)
        after, entries = work.rewritten(before, drafts)
        if only_print:
            emit_foreign(after, nl=False)
            return
        if not entries:
            click.echo("nothing is to be changed")
            return
        _ask_to_write(file, before, after, yes=yes)
    except BaseException:
        work.remove_added(drafts)
        raise
    wraps = wraps_of(settings)
    wraps.keep(file, {**wraps.of(file), **entries})
    kept = write(file, before, after)
    click.echo(f"wrote {file}" + (f"; the file before is {kept.name}" if kept else ""))


@click.command()
@_common
def unwrap(file: Path, names: tuple[str, ...], data_dir: Path | None, *, yes: bool, only_print: bool) -> None:
    """Give FILE the commands back that `skillyard mcp wrap` replaced."""
    from skillyard.config.settings import load_settings

    settings = load_settings(data_dir=data_dir)
    file, (form, before) = file.resolve(), _text(file)
    wraps = wraps_of(settings)
    entries = wraps.of(file)
    after, done = before, set[Keys]()
    for keys, _ in _chosen(form, before, names):
        try:
            if keys not in entries:
                continue
            now = form.raw(after, keys)
            if _values(form, now) != _values(form, entries[keys].after):
                raise LeftAlone("it was changed since it was wrapped")
            after = form.replaced(after, keys, entries[keys].before)
            done.add(keys)
        except (LeftAlone, Unfit) as why:
            click.echo(f"{calm_line(keys[-1])} is left as it is: {calm_line(str(why))}", err=True)
    if only_print:
        emit_foreign(after, nl=False)
        return
    if not done:
        click.echo(f"nothing in {file} was wrapped here")
        return
    _ask_to_write(file, before, after, yes=yes)
    kept = write(file, before, after)
    left = {keys: one for keys, one in entries.items() if keys not in done}
    wraps.keep(file, left)
    _remove_packages(settings, [entries[keys] for keys in done], left.values())
    click.echo(f"wrote {file}" + (f"; the file before is {kept.name}" if kept else ""))


class _Wrapping:
    """One call of ``wrap``."""

    def __init__(
        self,
        settings: Settings,
        file: Path,
        form: Form,
        given: Grants,
        profile: str | None,
        isolation: str | None,
        named: bool,
    ) -> None:
        self._settings = settings
        self._file = file
        self._form = form
        self._given = given
        self._profile = profile
        self._isolation = isolation
        self._named = named
        """Whether the servers were named, so that all options are theirs."""
        self._closed = closed_places(settings)

    def drafts(self, text: str, names: Iterable[str]) -> list[_Draft]:
        """Returns the servers that can be wrapped, and tells of the others."""
        found: list[_Draft] = []
        for keys, entry in _chosen(self._form, text, names):
            try:
                self._form.raw(text, keys) if isinstance(entry, dict) and "command" in entry else None
                found.append(self._draft(stdio(keys, entry), [draft.package for draft in found]))
            except (LeftAlone, Unfit) as why:
                click.echo(f"{calm_line(keys[-1])} is left as it is: {calm_line(str(why))}", err=True)
        return found

    def _draft(self, server: Stdio, taken: list[str]) -> _Draft:
        from skillyard.faces.cli.mcp.wrap.proposals import proposed

        notes = []
        known = None
        try:
            known = server.known(_variables(self._file))
            if used := sorted(server.names() & os.environ.keys()):
                rule = "its client puts them into its entry, and a dry run gets them so"
                notes.append(f"it names {', '.join(used)} of this command's environment: {rule}")
        except LeftAlone as why:
            notes.append(f"{why}: its directories are not proposed, and it is not tried")
        proposal = proposed(server, known, self._closed)
        given = self._given
        write = [path.expanduser().absolute() for path in given.write]
        if self._named:
            extra = [path.expanduser().absolute() for path in given.read]
            proposal.read = [path for path in proposal.read if path not in (*write, *extra)]
        else:
            extra = []
            write = [path for path in write if path in proposal.read]
            proposal.read = [path for path in proposal.read if path not in write]
        secret = tuple(name for name in given.secrets if self._named or name in server.env)
        env = dict.fromkeys((*server.env, *(given.env if self._named else ())))
        grants = Grants(
            read=(*proposal.read, *extra),
            write=tuple(write),
            allow=given.allow if self._named else (),
            env=tuple(name for name in env if name not in secret),
            secrets=secret,
        )
        if changed := [word for word in options_of(grants) if "$" in word]:
            raise LeftAlone(f"its client would put something else into '{changed[0]}'; use names without $")
        for name in (token for token in proposal.tokens if token not in secret):
            notes.append(
                f"{name} looks like a credential: after `skillyard secret set {name}`, --secret {name} keeps it out"
            )
        for place in grants.read:
            if self._file.is_relative_to(place):
                notes.append(f"{place} shows it this very file, with what it holds of other servers")
        package = _free_name(self._settings, server.name, taken) if proposal.package else ""
        return _Draft(proposal, grants, known, package, notes=[*proposal.notes, *notes])

    def prepared(self, drafts: list[_Draft], *, trying: bool, asking: bool) -> list[_Draft]:
        """Fetches packages and tries servers; returns those that are to be wrapped."""
        for draft in drafts:
            _tell(draft)
        ready = [draft for draft in drafts if self._fetched(draft)]
        waiting = [draft for draft in ready if trying and draft.known is not None]
        for _ in range(_ROUNDS if waiting else 0):
            self._try(waiting)
            waiting = [draft for draft in waiting if self._more_hosts(draft, asking=asking)]
            if not waiting:
                break
        kept = []
        for draft in ready:
            if draft.trial is not None and draft.trial.why:
                click.echo(
                    f"{calm_line(draft.name)} is left as it is: jailed so, {calm_line(draft.trial.why)}", err=True
                )
                self.remove_added([draft])
            else:
                kept.append(draft)
        return kept

    def _fetched(self, draft: _Draft) -> bool:
        """Fetches the package of a server that has one. Returns whether it can be started."""
        import asyncio

        from skillyard.faces.cli.jail.builds import PackageFailed
        from skillyard.faces.cli.jail.packages import store_of

        package = draft.proposal.package
        if package is None:
            return True
        nothing: dict[str, Any] = {**asdict(Grants()), "profile": None}
        add = store_of(self._settings).add(self._settings, draft.package, replace(package, args=()), nothing)
        try:
            installed = asyncio.run(add).installed
        except PackageFailed as error:
            click.echo(f"{calm_line(draft.name)} is left as it is: {calm_line(error.message)}", err=True)
            return False
        draft.added = True
        click.echo(f"{calm_line(draft.name)}: fetched {installed.package.requirement}, sha256 {installed.digest}")
        for script in installed.scripts:
            click.echo(f"  an install script ran in the build: {calm_line(script)}")
        return True

    def _try(self, drafts: list[_Draft]) -> None:
        import asyncio

        from skillyard.faces.cli.mcp.wrap.trial import tried

        async def run() -> None:
            orders = {str(index): await self._order(draft) for index, draft in enumerate(drafts)}
            found = await tried(self._settings, self._isolation, orders)
            for index, draft in enumerate(drafts):
                draft.trial = found[str(index)]

        asyncio.run(run())
        for draft in drafts:
            assert draft.trial is not None, "it was tried"
            if not draft.trial.why:
                told = ", ".join(draft.trial.tools[:12]) + (", ..." if len(draft.trial.tools) > 12 else "")
                click.echo(
                    f"{calm_line(draft.name)}: started jailed, with {len(draft.trial.tools)} tools: {calm_line(told)}"
                )

    async def _order(self, draft: _Draft) -> Any:
        from skillyard.faces.cli.jail.packages import store_of

        known, grants, words = draft.known, draft.grants, draft.proposal.words
        assert known is not None, "others are not tried"
        if draft.package:
            store = store_of(self._settings)
            found = store.find(draft.package)
            grants = replace(grants, mounts=(store.mount(found),))
            words = (*found.start, *_arguments(known))
        else:
            words = (words[0], *known.words[1:])
        order = await order_of(self._settings, replace(grants, env=()).under(self._settings, self._profile), words)
        env = {name: known.env.get(name, os.environ.get(name, "")) for name in grants.env}
        shown = [each.path for each in order.directories]
        cwd = known.cwd if any(Path(known.cwd).is_relative_to(path) for path in shown) else "/workspace"
        return replace(order, env={**order.env, **env}, cwd=cwd)

    def _more_hosts(self, draft: _Draft, *, asking: bool) -> bool:
        """Tells the hosts that a server asked for, and adds those that the operator allows. Returns whether any."""
        assert draft.trial is not None, "it was tried"
        added = []
        for rule in draft.trial.never:
            click.echo(f"{calm_line(draft.name)}: asked for {rule}, a private address, and was refused")
        for rule in draft.trial.hosts:
            if rule in draft.grants.allow:
                continue
            asked = f"{calm_line(draft.name)}: asked for {rule}, and was refused"
            if rule in self._given.allow or (asking and click.confirm(f"{asked}. Allow it?", default=False)):
                added.append(rule)
            elif not asking:
                click.echo(f"{asked}; --allow {rule} allows it")
        draft.grants = replace(draft.grants, allow=(*draft.grants.allow, *added))
        return bool(added)

    def rewritten(self, text: str, drafts: list[_Draft]) -> tuple[str, dict[Keys, Wrapped]]:
        """Returns the text with the servers jailed, and the way back."""
        entries = {}
        for draft in drafts:
            keys = draft.proposal.server.keys
            command, *args = self._words(draft)
            raw: dict[str, str | None] = {"command": _source(command), "args": _source(args)}
            before = self._form.raw(text, keys)
            try:
                text = self._form.replaced(text, keys, raw)
            except Unfit as why:
                click.echo(f"{calm_line(draft.name)} is left as it is: {calm_line(str(why))}", err=True)
                self.remove_added([draft])
                continue
            entries[keys] = Wrapped(keys, before, raw, draft.package)
        return text, entries

    def _words(self, draft: _Draft) -> list[str]:
        from skillyard.client.discovery import default_data_dir

        options = options_of(draft.grants)
        if self._profile is not None:
            options += ["--profile", self._profile]
        if self._isolation is not None:
            options += ["--isolation", self._isolation]
        if self._settings.data_dir != default_data_dir({}) or "SKILLYARD_DATA_DIR" in os.environ:
            options += ["--data-dir", str(self._settings.data_dir)]
        if draft.package:
            return [*program(), "jail", "run", *options, draft.package, "--", *_arguments(draft.proposal.server)]
        return [*program(), "jail", *options, "--", *draft.proposal.words]

    def remove_added(self, drafts: Iterable[_Draft]) -> None:
        """Removes the packages that were fetched for servers which are not wrapped."""
        from skillyard.faces.cli.jail.packages import store_of

        for draft in drafts:
            if draft.added:
                store_of(self._settings).remove(draft.package)
                draft.added = False


def _text(file: Path) -> tuple[Form, str]:
    if not file.exists():
        raise Failure(f"{file} does not exist")
    return Form.of(file.resolve()), read(file.resolve())


def _chosen(form: Form, text: str, names: Iterable[str]) -> list[tuple[Keys, Any]]:
    """Returns the named entries, or all. Raises Failure."""
    try:
        found = form.servers(text)
    except Unfit as error:
        raise Failure(f"the file is left as it is: {error}", "change it by hand: docs/jail.md shows an entry") from None
    wanted = [(keys, entry) for keys, entry in found.items() if not names or keys[-1] in names]
    if missing := set(names).difference(keys[-1] for keys, _ in wanted):
        raise Failure(f"--server: there is no {', '.join(sorted(map(calm, missing)))} in the file")
    if len(wanted) > _MOST_SERVERS:
        raise Failure(f"the file has more than {_MOST_SERVERS} servers", "name some by --server")
    return wanted


def _tell(draft: _Draft) -> None:
    click.echo(
        f"{calm_line(draft.name)}: would get {calm_line(' '.join(options_of(draft.grants))) or 'nothing of the host'}"
    )
    for note in draft.notes:
        click.echo(f"  {calm_line(note)}")


def _ask_to_write(file: Path, before: str, after: str, *, yes: bool) -> None:
    """Shows the lines that change, without those around them, which may hold credentials."""
    click.echo(calm("".join(difference(file, before, after, context=0))), nl=False)
    if not yes and not click.confirm(f"Write {file}?"):
        raise click.Abort


def _arguments(server: Stdio) -> tuple[str, ...]:
    from skillyard.faces.cli.jail.packages import parse

    return parse(server.words).args


def _variables(file: Path) -> dict[str, str]:
    """Returns the values of variables that a client puts in place of its references."""
    known = {**os.environ, "userHome": str(Path.home())}
    if file.parent.name == ".vscode":
        known["workspaceFolder"] = str(file.parent.parent)
    return known


def _free_name(settings: Settings, server: str, taken: Iterable[str]) -> str:
    """Returns a name for a package, which no other one has."""
    from skillyard.faces.cli.jail.packages import store_of

    plain = re.sub(r"[^a-z0-9._-]+", "-", server.lower()).strip("-._")[:48] or "server"
    used = {*store_of(settings).names(), *taken}
    return next(name for name in (plain, *(f"{plain}-{n}" for n in range(2, 10_000))) if name not in used)


def _remove_packages(settings: Settings, gone: Iterable[Wrapped], left: Iterable[Wrapped]) -> None:
    from skillyard.faces.cli.jail.packages import store_of

    store, used = store_of(settings), {one.package for one in left}
    for name in {one.package for one in gone} - used - {""}:
        if name in store.names():
            store.remove(name)
            click.echo(f"removed the package {name}")


def _source(value: str | list[str]) -> str:
    """Returns a text or a list as JSON and TOML both write it."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _values(form: Form, raw: dict[str, str | None]) -> dict[str, Any]:
    return {key: form.value(source) for key, source in raw.items() if source is not None}
