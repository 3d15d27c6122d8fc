"""``skillyard environment``: list, show, build, remove, wheels."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.domain.errors import InvalidInput
from skillyard.domain.package.environment import SHOWN, BadLock, parse_lock
from skillyard.faces.cli.calls import Call, Given, add_calls
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.options import json_option, maybe, server_options
from skillyard.faces.cli.progress import BuildProgress, said
from skillyard.faces.cli.render import calm, emit_fields, emit_foreign, emit_json, emit_table, moment, size

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Target, Where


_HEADER = ("name", "digest", "state", "size", "used", "requirements")
_POLL_S = 0.2
_NAMED = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``what``, ``packages`` and ``is_skill``, which :func:`_asked` takes."""
    for decorate in (
        click.option("--skill", "is_skill", is_flag=True, help="WHAT is a skill, also where it could be a name."),
        click.option(
            "--package", "packages", multiple=True, metavar="REQUIREMENT", help="In place of WHAT. May repeat."
        ),
        click.argument("what", required=False),
    ):
        command = decorate(command)
    return command


@click.group()
def environment() -> None:
    """Packages for runs: list, show, build and remove environments."""


@environment.command()
@target_options
@click.option("--refresh", is_flag=True, help="Resolve anew, to the newest versions that fit.")
@json_option
@server_options
def build(
    what: str | None, packages: tuple[str, ...], is_skill: bool, refresh: bool, as_json: bool, where: Where
) -> None:
    """Build an environment ahead of its first run.

    WHAT is a name of the settings, or a skill as NAME or NAME@VERSION.

    \b
      skillyard environment build data
      skillyard environment build examples.gif.animate
      skillyard environment build --package 'numpy>=2'
    """
    with where.open() as target:
        asked = _asked(target, what, packages, is_skill)
        params = {**asked, "wait": False} | ({"refresh": True} if refresh else {})
        found = target.call("environments.build", params)["environment"]
        try:
            with BuildProgress(quiet=as_json) as progress:
                while found["state"] not in ("ready", "failed"):
                    progress.show(found)
                    time.sleep(_POLL_S)
                    found = target.call("environments.show", asked)["environment"]
        except KeyboardInterrupt:
            _tell_left(target)
            raise
    if as_json:
        emit_json(found)
    elif found["state"] == "ready":
        _show(found)
    else:
        _explain(found)
    if found["state"] != "ready":
        click.get_current_context().exit(Exit.FAILED)


@environment.command()
@click.argument("what")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--skill", "is_skill", is_flag=True, help="WHAT is a skill, also where it could be a name.")
@json_option
@server_options
def wheels(what: str, directory: Path, is_skill: bool, as_json: bool, where: Where) -> None:
    """Write the wheels of an environment into DIRECTORY, each compared with the lock.

    With packages.wheels = DIRECTORY and packages.offline = true a server builds it without a network.
    """
    with where.open() as target:
        found = target.call("environments.wheels", _asked(target, what, (), is_skill))
        written = write_wheels(target, found, directory, quiet=as_json)
    if as_json:
        emit_json({"digest": found["digest"], "files": [str(path) for path in written]})
        return
    for path in written:
        click.echo(str(path))


def _find(target: Target, given: Given) -> dict[str, Any]:
    asked = _asked(target, given["what"], given["packages"], given["is_skill"])
    return {**asked, "forget": True} if given.get("forget") else asked


add_calls(
    environment,
    {
        "list": Call(
            method="environments.list",
            help="""List environments: builds at work, built ones, the one used last first, and names of the settings
            that are not built.""",
            show=lambda found, _: emit_table(_HEADER, _rows(found), cut=True),
        ),
        "show": Call(
            method="environments.show",
            help="""Show what is in an environment, or how far its build is.

            WHAT is a name of the settings, a digest as `environment list` shows it, or a skill as NAME or NAME@VERSION.
            """,
            options=(target_options,),
            find=_find,
            key="environment",
            show=lambda found, _: _show(found),
        ),
        "remove": Call(
            method="environments.remove",
            help="Remove a built environment. The next run that needs it builds it again, with the same versions.",
            options=(
                target_options,
                click.option("--forget", is_flag=True, help="The versions that it was resolved to, too."),
            ),
            find=_find,
            said=lambda found, _: f"removed {found['removed']}",
        ),
    },
)


def _asked(target: Target, what: str | None, packages: tuple[str, ...], is_skill: bool) -> dict[str, Any]:
    """Returns the parameters that name an environment. Its name or digest goes before a skill's name."""
    if (what is None) == (not packages):
        raise click.UsageError("Give either WHAT or --package.")
    if packages or what is None:
        return {"packages": list(packages)}
    name, version = maybe(what)
    skill: dict[str, Any] = {"skill": name} | ({"version": version} if version else {})
    if is_skill or version or not _NAMED.fullmatch(what):
        return skill
    if _is_there(target, {"environment": what}, "EnvironmentNotFound"):
        return {"environment": what}
    if _is_there(target, skill, "SkillNotFound"):
        return skill
    raise Failure(f"no environment and no skill is called {what!r}", "`skillyard environment list` shows what there is")


def _is_there(target: Target, asked: dict[str, Any], absent: str) -> bool:
    """Returns whether it is there; ``absent`` is the type of the error that says no."""
    from skillyard.domain.errors import SkillyardError

    try:
        target.call("environments.show", asked)
    except SkillyardError as error:
        if error.type == absent:
            return False
        raise
    return True


def _tell_left(target: Target) -> None:
    """Says that the build goes on: it belongs to everybody who waits for it."""
    from skillyard.client.sync import SyncClient

    if isinstance(target, SyncClient):
        click.echo("the server goes on with the build: `skillyard environment list` shows it", err=True)


def _show(found: dict[str, Any]) -> None:
    shown = {name: found.get(name) for name in ("name", "state", "digest", "platform", "line", "error")}
    facts = {"size": size(found.get("size_bytes")), "log": found.get("log")}
    times = {name.removesuffix("_at"): moment(found.get(name)) for name in ("built_at", "used_at")}
    took = {"took": f"{found['build_ms'] / 1000:.1f} s"} if found.get("build_ms") else {}
    emit_fields({**shown, "asked": ", ".join(found.get("requirements") or ()), **facts, **times, **took})
    for name, version in (found.get("distributions") or {}).items():
        click.echo(calm(f"  {name} {version}"))


def _explain(found: dict[str, Any]) -> None:
    emit_foreign(f"{said(found)}\n", err=True)
    if found.get("log"):
        click.echo(calm(f"the whole log: skillyard blob get {found['log']} -o -"), err=True)


def _rows(found: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    made = [*found["builds"], *found["environments"]]
    shown = {_key(one) for one in made}
    names: dict[object, list[str]] = {}
    for one in found["named"]:
        names.setdefault(_key(one), []).append(one["name"])
    for one in made:
        yield _row(", ".join(names.get(_key(one), ())), one)
    for one in found["named"]:
        if _key(one) not in shown:
            yield _row(one["name"], one)


def _key(one: dict[str, Any]) -> object:
    """Returns the digest of a built environment, else its requirements."""
    return one.get("digest") or tuple(one["requirements"])


def _row(name: str, one: dict[str, Any]) -> tuple[object, ...]:
    wanted = ", ".join(one["requirements"])
    return (
        name,
        one.get("digest", "")[:SHOWN],
        one["state"],
        size(one.get("size_bytes")),
        moment(one.get("used_at")),
        wanted,
    )


def write_wheels(target: Target, found: dict[str, Any], directory: Path, *, quiet: bool) -> list[Path]:
    """Writes the wheels and returns their files. Raises Failure for an archive that holds anything else."""
    from skillyard.faces.cli.progress import transfer
    from skillyard.wiring import unpack_tar

    directory.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".wheels-", dir=directory))
    try:
        with (staging / "archive").open("w+b") as archive:
            with transfer("wheels", quiet=quiet) as progress:
                target.get_blob(found["archive"], archive, progress=progress)
            archive.seek(0)
            unpacked = staging / "unpacked"
            unpacked.mkdir()
            unpack_tar(archive, unpacked)
        return [_moved(path, directory) for path in _checked(unpacked, str(found["lock"]))]
    except (InvalidInput, BadLock) as error:
        raise Failure(f"the server's archive of wheels is refused: {error}", code=Exit.FAILED) from None
    finally:
        shutil.rmtree(staging)


def _checked(unpacked: Path, lock: str) -> list[Path]:
    """Raises Failure."""
    known = {digest: pin.name for pin in parse_lock(lock) for digest in pin.hashes}
    found: dict[str, Path] = {}
    for path in sorted(unpacked.iterdir()):
        name = known.get(_digest(path)) if path.is_file() else None
        if name is None or path.suffix != ".whl" or name in found:
            raise Failure(f"{path.name} is not a wheel of the lock", code=Exit.FAILED)
        found[name] = path
    if missing := sorted(set(known.values()) - found.keys()):
        raise Failure(f"the archive lacks the wheels of {', '.join(missing)}", code=Exit.FAILED)
    return list(found.values())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _moved(path: Path, directory: Path) -> Path:
    """Moves a file there, readable by all: sandboxes see it as users of their own."""
    path.chmod(0o644)
    return path.replace(directory / path.name)
