"""``skillyard skill install``: what lies on disk, in whatever form, becomes a published version."""

from __future__ import annotations

import io
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skillyard.client.errors import RpcError
from skillyard.domain.errors import SkillyardError
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.options import json_option, server_options
from skillyard.faces.cli.progress import transfer
from skillyard.faces.cli.published import (
    check_local,
    explained,
    named,
    print_findings,
    print_published,
    published_facts,
)
from skillyard.faces.cli.render import emit_json
from skillyard.faces.cli.skill_trust import approve_seen

if TYPE_CHECKING:
    from skillyard.domain.skill.skill import Finding
    from skillyard.faces.cli.target import Where
    from skillyard.stores.skills.tree import Tree


@click.command()
@click.argument("source", metavar="DIR|CHECKOUT|ARCHIVE")
@click.option("--path", "inner", metavar="DIR", default="", help="The skill's directory in the source.")
@click.option("--approve", is_flag=True, help="And approve what it declares, which is shown; for admins.")
@json_option
@server_options
def install(source: str, inner: str, approve: bool, as_json: bool, where: Where) -> None:
    """Install the skill in a directory, a git checkout on disk, a zip or a tar: publish it where this goes.

    Of a git checkout (a directory with .git) it is the files that git tracks, as they are now; git is not run, and
    nothing of the repository is. Of another directory it is all files. Without a server it is published into the data
    directory.
    """
    check_local(source)
    tree, notes = _read(source, inner, as_json=as_json)
    told = [asdict(note) for note in notes]
    with where.open(changes=True) as target:
        try:
            with transfer(source, quiet=as_json) as progress:
                done = target.publish_skill(io.BytesIO(_packed(tree)), progress=progress)
        except (RpcError, SkillyardError) as error:
            raise explained(error, source, as_json=as_json) from None
        if not as_json:
            print_findings(source, told)
            print_published(source, done)
        approved = approve_seen(target, named(done), "", quiet=as_json) if approve else {}
    if as_json:
        facts = {**published_facts(done), "findings": [*told, *done.findings]}
        emit_json({**facts, **{name: approved[name] for name in ("needs", "approval") if approved}})


def _read(source: str, inner: str, *, as_json: bool) -> tuple[Tree, list[Finding]]:
    """Raises Failure, once the findings were shown."""
    from skillyard.stores.skills.bundles import refusal
    from skillyard.stores.skills.sources import read_source

    try:
        unpacked, findings = read_source(Path(source), inner)
    except OSError as error:
        raise Failure(f"{source}: {error.strerror}", code=Exit.BAD_INPUT) from None
    if unpacked is not None:
        return unpacked.tree, findings
    raise explained(refusal(findings), source, as_json=as_json)


def _packed(tree: Tree) -> bytes:
    from skillyard.stores.skills.archives import packed_tree, tar_gz

    return b"".join(tar_gz(packed_tree(tree)))
