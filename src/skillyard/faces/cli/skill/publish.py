"""``skillyard skill publish``, ``install`` and ``export``, and the findings that they tell."""

from __future__ import annotations

import io
import sys
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from skillyard.domain.errors import BundleRefused, SkillyardError
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.options import chosen, json_option, server_options
from skillyard.faces.cli.progress import transfer, working
from skillyard.faces.cli.render import calm, emit_json, size
from skillyard.faces.cli.skill.versions import approve_seen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skillyard.client.bundles import ArchiveFormat, PublishedSkill
    from skillyard.faces.cli.target import Where


_FACTS = ("name", "version", "digest", "size_bytes", "files", "created")
_EXPECTED = frozenset({"archive-stripped"})
"""How tar and zip are used: nobody has to be told."""


def published_facts(done: PublishedSkill) -> dict[str, Any]:
    """Returns the version as JSON has it."""
    return {**{name: getattr(done, name) for name in _FACTS}, "findings": list(done.findings)}


def check_local(source: str) -> None:
    """Raises Failure for a URL: nothing is fetched."""
    if "://" in source:
        raise Failure(f"{source} is a URL", "clone or download it, look at it, and name what lies on this machine")


def named(done: PublishedSkill) -> dict[str, Any]:
    return {"name": done.name, "version": done.version}


def print_published(source: str, done: PublishedSkill) -> None:
    print_findings(source, done.findings)
    click.echo(calm(f"{done.name}@{done.version}"))
    how = "published" if done.created else "was published before, with the same content"
    files = "1 file" if done.files == 1 else f"{done.files} files"
    click.echo(calm(f"{how}: {files}, {size(done.size_bytes)}, sha256 {done.digest}"), err=True)


def explained(error: SkillyardError, source: str, *, as_json: bool) -> Exception:
    """Shows the findings of an error and returns the error to be raised."""
    findings = error.details.get("findings")
    if not isinstance(findings, list):
        return error
    found = [finding for finding in findings if isinstance(finding, dict)]
    if as_json:
        emit_json({"error": {"type": error.type, "message": error.message, "findings": found}})
    else:
        print_findings(source, found)
    count = sum(finding.get("level") == "error" for finding in found)
    errors = "1 error" if count == 1 else f"{count} errors"
    return Failure(f"{source}: not published, it has {errors}", code=Exit.BAD_INPUT)


def print_findings(source: str, findings: Sequence[dict[str, Any]]) -> None:
    for finding in findings:
        if finding.get("rule") in _EXPECTED:
            continue
        file, line = finding.get("file"), finding.get("line")
        where = (source if file == "." else f"{source}/{file}") + (f":{line}" if line else "")
        text = f"{where}: {finding.get('level')}: {finding.get('message')} [{finding.get('rule')}]"
        mend = f"\n    mend: {finding['mend']}" if finding.get("mend") else ""
        click.echo(calm(text + mend), err=True)


_FORMS = ("tar.gz", "zip")


@click.command()
@click.argument("source", metavar="DIR|ARCHIVE")
@click.option("--approve", is_flag=True, help="And approve what it declares, which is shown; for admins.")
@json_option
@server_options
def publish(source: str, approve: bool, as_json: bool, where: Where) -> None:
    """Publish the skill in a directory, a zip or a tar (- for standard input).

    The version is immutable and served at once. The same content again is the same version; other content under a
    published version is refused.
    """
    check_local(source)
    body: str | IO[bytes] = sys.stdin.buffer if source == "-" else source
    with where.open(changes=True) as target:
        try:
            with transfer(source, quiet=as_json) as progress:
                done = target.publish_skill(body, progress=progress)
        except SkillyardError as error:
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
    """Write the exact bundle of a version as an archive.

    Publishing it elsewhere gives the same digest.
    """
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
            raise Failure(f"{name!r} is not a valid name of a file", "choose one with --out")
        return (out or Path()) / name
    return out


@click.command()
@click.argument("source", metavar="DIR|CHECKOUT|ARCHIVE")
@click.option("--path", "inner", metavar="DIR", default="", help="The skill's directory in the source.")
@click.option("--approve", is_flag=True, help="And approve what it declares, which is shown; for admins.")
@json_option
@server_options
def install(source: str, inner: str, approve: bool, as_json: bool, where: Where) -> None:
    """Install the skill in a directory, a git checkout on disk, a zip or a tar by publishing it.

    Of a git checkout (a directory with .git) this takes the files that git tracks, in their present form; it runs
    neither git nor anything of the repository. Of another directory it takes all files. Without a server the skill is
    published into the data directory.
    """
    check_local(source)
    archive, told = _packed(source, inner, as_json=as_json)
    with where.open(changes=True) as target:
        try:
            with transfer(source, quiet=as_json) as progress:
                done = target.publish_skill(io.BytesIO(archive), progress=progress)
        except SkillyardError as error:
            raise explained(error, source, as_json=as_json) from None
        if not as_json:
            print_findings(source, told)
            print_published(source, done)
        approved = approve_seen(target, named(done), "", quiet=as_json) if approve else {}
    if as_json:
        facts = {**published_facts(done), "findings": [*told, *done.findings]}
        emit_json({**facts, **{name: approved[name] for name in ("needs", "approval") if approved}})


def _packed(source: str, inner: str, *, as_json: bool) -> tuple[bytes, list[dict[str, Any]]]:
    """Returns the archive of a source and its findings. Raises Failure, once the findings were shown."""
    from skillyard.wiring import pack_skill

    try:
        archive, findings = pack_skill(Path(source), inner)
    except OSError as error:
        raise Failure(f"{source}: {error.strerror}", code=Exit.BAD_INPUT) from None
    except BundleRefused as error:
        raise explained(error, source, as_json=as_json) from None
    return archive, [asdict(finding) for finding in findings]
