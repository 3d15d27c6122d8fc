"""``skillyard blob``: put, get, list, rm."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from skillyard.faces.cli.calls import Call, add_calls
from skillyard.faces.cli.failures import Failure
from skillyard.faces.cli.options import everyone_option, json_option, limit_option, server_options
from skillyard.faces.cli.progress import transfer
from skillyard.faces.cli.render import calm, emit_json, moment, size

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Target, Where


@click.group()
def blob() -> None:
    """Store, fetch and remove blobs: immutable bytes behind blob:<id>."""


@blob.command()
@click.argument("file")
@click.option("--kind", metavar="MIME", help="The kind of content; guessed from the name when left out.")
@json_option
@server_options
def put(file: str, kind: str | None, as_json: bool, where: Where) -> None:
    """Store FILE (- for standard input) and print the blob's id."""
    from skillyard.faces.cli.inputs import guess_kind

    kind = kind or guess_kind(file)
    source: str | IO[bytes] = sys.stdin.buffer if file == "-" else file
    with where.open() as target, transfer(file, quiet=as_json) as progress:
        stored = target.put_blob(source, kind, progress=progress)
    if as_json:
        facts = {"size_bytes": stored.size_bytes, "sha256": stored.sha256, "kind": kind}
        emit_json({"blob_id": stored.blob_id, **facts})
    else:
        click.echo(calm(stored.blob_id))
        click.echo(calm(f"{size(stored.size_bytes)} of {kind}, sha256 {stored.sha256}"), err=True)


@blob.command()
@click.argument("blob_id")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="A file, or - .  [default: -]")
@click.option("--offset", type=click.IntRange(min=0), default=0, help="The first byte.  [default: 0]")
@click.option("--length", type=click.IntRange(min=1), help="How many bytes; all when left out.")
@json_option
@server_options
def get(blob_id: str, output: Path | None, offset: int, length: int | None, as_json: bool, where: Where) -> None:
    """Fetch a blob's bytes. A file appears only when all of it came."""
    output = None if str(output) == "-" else output
    if as_json and output is None:
        raise click.UsageError("--json needs --output FILE: standard output cannot be both JSON and the bytes.")
    sink: Path | IO[bytes] = output or sys.stdout.buffer
    with where.open() as target, transfer(blob_id, quiet=as_json) as progress:
        fetched = target.get_blob(blob_id, sink, offset=offset, length=length, progress=progress)
    if as_json:
        facts = {"kind": fetched.kind, "size_bytes": fetched.size_bytes, "total_bytes": fetched.total_bytes}
        emit_json({"blob_id": blob_id, "path": str(output), **facts})


add_calls(
    blob,
    {
        "list": Call(
            method="blobs.list",
            help="List your blobs, newest first.",
            options=(limit_option, everyone_option),
            key="blobs",
            paged=True,
            columns={
                "id": "blob_id",
                "size": lambda blob: size(blob.get("size_bytes")),
                "kind": "kind",
                "created": lambda blob: moment(blob.get("created_at")),
            },
        )
    },
)


@blob.command()
@click.argument("blob_ids", nargs=-1, required=True)
@json_option
@server_options
def rm(blob_ids: tuple[str, ...], as_json: bool, where: Where) -> None:
    """Remove blobs."""
    with where.open() as target:
        deleted = {b: bool(target.call("blobs.delete", {"blob_id": b})["deleted"]) for b in blob_ids}
    if as_json:
        emit_json(deleted)
    if missing := [b for b, gone in deleted.items() if not gone]:
        raise Failure(f"no such blob: {', '.join(missing)}")


def fetch_into(target: Target, blob_id: str, directory: Path, *, quiet: bool) -> Path:
    """Writes a blob to a file and returns its path: the id, with an ending that fits its kind."""
    from mimetypes import guess_extension

    known: dict[str, Any] = target.call("blobs.stat", {"blob_id": blob_id})["blob"]
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", blob_id.removeprefix("blob:")).lstrip(".") or "blob"
    path = directory / (stem + (guess_extension(str(known.get("kind"))) or ""))
    if path.is_symlink() or path.exists():  # the server chose the name
        raise Failure(f"{path} exists; nothing was written over it")
    with transfer(path.name, quiet=quiet) as progress:
        target.get_blob(blob_id, path, progress=progress)
    return path
