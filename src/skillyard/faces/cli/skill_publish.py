"""``skillyard skill publish`` and ``export``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import click

from skillyard.client.errors import RpcError
from skillyard.domain.errors import SkillyardError
from skillyard.faces.cli.failures import Failure
from skillyard.faces.cli.named_version import chosen
from skillyard.faces.cli.options import json_option, server_options
from skillyard.faces.cli.progress import transfer, working
from skillyard.faces.cli.published import check_local, explained, named, print_published, published_facts
from skillyard.faces.cli.render import calm, emit_json, size
from skillyard.faces.cli.skill_trust import approve_seen

if TYPE_CHECKING:
    from skillyard.client.bundles import ArchiveFormat
    from skillyard.faces.cli.target import Where

_FORMS = ("tar.gz", "zip")


@click.command()
@click.argument("source", metavar="DIR|ARCHIVE")
@click.option("--approve", is_flag=True, help="And approve what it declares, which is shown; for admins.")
@json_option
@server_options
def publish(source: str, approve: bool, as_json: bool, where: Where) -> None:
    """Publish the skill in a directory, a zip or a tar (- for standard input): an immutable version, served at once.

    The same content again is the same version. Other content under a published version is refused.
    """
    check_local(source)
    body: str | IO[bytes] = sys.stdin.buffer if source == "-" else source
    with where.open(changes=True) as target:
        try:
            with transfer(source, quiet=as_json) as progress:
                done = target.publish_skill(body, progress=progress)
        except (RpcError, SkillyardError) as error:
            raise explained(error, source, as_json=as_json) from None
        if not as_json:
            print_published(source, done)
        approved = approve_seen(target, named(done), "", quiet=as_json) if approve else {}
    if as_json:
        emit_json({**published_facts(done), **{name: approved[name] for name in ("needs", "approval") if approved}})


@click.command()
@click.argument("skill", metavar="NAME[@VERSION]")
@click.option("--version", help="The latest when left out.")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), help="A file, a directory, or - .  [default: NAME-VERSION.tar.gz]"
)
@click.option("--format", "form", type=click.Choice(_FORMS), help="By the file's name when left out, else tar.gz.")
@json_option
@server_options
def export(skill: str, version: str | None, out: Path | None, form: str | None, as_json: bool, where: Where) -> None:
    """Write the exact bundle of a version as an archive: publishing it elsewhere gives the same digest."""
    name, wanted = chosen(skill, version)
    form = form or ("zip" if out is not None and out.suffix == ".zip" else "tar.gz")
    with where.open() as target:
        if wanted is None:
            wanted = str(target.call("describe_skill", {"name": name, "detail": "manifest"})["skill"]["version"])
        sink = _sink(out, f"{name}-{wanted}.{form}")
        with working(f"exporting {name}", quiet=as_json):
            done = target.export_skill(name, sink, version=wanted, form=cast("ArchiveFormat", form))
    path = str(sink) if isinstance(sink, Path) else "-"
    if as_json and path != "-":
        facts = {"name": done.name, "version": done.version, "digest": done.digest, "size_bytes": done.size_bytes}
        emit_json({**facts, "path": path})
    else:
        if path != "-":
            click.echo(path)
        click.echo(calm(f"{done.name}@{done.version}, {size(done.size_bytes)}, sha256 {done.digest}"), err=True)


def _sink(out: Path | None, name: str) -> Path | IO[bytes]:
    if out is not None and str(out) == "-":
        return sys.stdout.buffer
    if out is None or out.is_dir():
        if "/" in name or name.startswith("."):
            raise Failure(f"{name!r} can be no file's name", "choose one with --out")
        return (out or Path()) / name
    return out
