"""``skillyard skill``: the group, and its commands list and show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.calls import add_calls, collect
from skillyard.faces.cli.options import chosen, json_option, server_options
from skillyard.faces.cli.render import calm, emit_fields, emit_foreign, emit_json, emit_table
from skillyard.faces.cli.skill.publish import export, install, publish
from skillyard.faces.cli.skill.read import diff, problems, review
from skillyard.faces.cli.skill.test import new, test, validate
from skillyard.faces.cli.skill.tools import CALLS as TOOLS
from skillyard.faces.cli.skill.versions import CALLS, approve, show_versions

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Target, Where


@click.group()
def skill() -> None:
    """Find skills, read them, make and check your own, publish them."""


for command in (new, validate, review, test, diff, problems, publish, install, export, approve):
    skill.add_command(command)
add_calls(skill, {**CALLS, **TOOLS})


@skill.command("list")
@click.argument("name", required=False)
@click.option("--namespace", metavar="NAME", help="Only skills at or below this dotted name.")
@click.option("--versions", is_flag=True, help="Every version, of NAME or of all: withdrawn ones too.")
@json_option
@server_options
def list_(name: str | None, namespace: str | None, versions: bool, as_json: bool, where: Where) -> None:
    """List the skills that can be used, by name."""
    if name and (namespace or not versions):
        raise click.UsageError("NAME goes with --versions alone; --namespace lists what is below a name.")
    params = {"detail": "summary"} | ({"namespace": namespace} if namespace else {})
    with where.open() as target:
        if name:
            show_versions(target, [name], as_json=as_json)
            return
        found = collect(target, "list_skills", "skills", None, params)
        if versions:
            show_versions(target, [str(row["name"]) for row in found], as_json=as_json)
            return
    if as_json:
        emit_json(found)
    else:
        rows = [[row.get(key) for key in ("name", "version", "kind", "description")] for row in found]
        emit_table(("name", "version", "kind", "description"), rows, cut=True)


@skill.command()
@click.argument("skill", metavar="NAME[@VERSION]")
@click.option("--version", help="The latest when left out.")
@click.option("--file", "path", metavar="PATH", help="Print this file of the skill instead.")
@json_option
@server_options
def show(skill: str, version: str | None, path: str | None, as_json: bool, where: Where) -> None:
    """Show the manifest, the files and the documentation of a skill."""
    name, wanted = chosen(skill, version)
    params = {"name": name} | ({"version": wanted} if wanted else {})
    with where.open() as target:
        if path is not None:
            _show_file(target, {**params, "path": path}, as_json=as_json)
            return
        found = target.call("describe_skill", {**params, "detail": "full"})["skill"]
    if as_json:
        emit_json(found)
    else:
        _show_skill(found)


_PIECE = 4 * 1024 * 1024
"""The most bytes of one answer of read_skill_file."""


def _show_file(target: Target, params: dict[str, Any], *, as_json: bool) -> None:
    """Prints the whole file, or with ``as_json`` the answer with its first 4 MiB."""
    piece = target.call("read_skill_file", {**params, "max_bytes": _PIECE})
    if as_json:
        emit_json(piece)
        return
    _write_piece(piece)
    while (offset := piece.get("next_offset")) is not None:
        piece = target.call("read_skill_file", {**params, "max_bytes": _PIECE, "offset": offset})
        _write_piece(piece)


def _write_piece(piece: dict[str, Any]) -> None:
    if piece["encoding"] == "base64":
        from base64 import b64decode

        click.echo(b64decode(piece["content"]), nl=False)
    else:
        emit_foreign(piece["content"], nl=False)


def _show_skill(found: dict[str, Any]) -> None:
    fields = ("name", "version", "versions", "kind", "namespace", "format")
    emit_fields({name: found.get(name) for name in fields})
    for file in found.get("files") or ():
        click.echo(calm(f"  {file['path']}  ({file['size_bytes']} bytes)"))
    click.echo()
    emit_foreign(str(found.get("skill_md") or ""))
