"""``skillyard skill``: list, show, new, validate; what is about publishing has files of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from skillyard.faces.cli.failures import Exit
from skillyard.faces.cli.options import json_option, server_options
from skillyard.faces.cli.paging import collect
from skillyard.faces.cli.render import calm, emit_fields, emit_foreign, emit_json, emit_table
from skillyard.faces.cli.skill_publish import export, publish
from skillyard.faces.cli.skill_versions import pin, restore, show_versions, unpin, withdraw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skillyard.domain.skill import Finding
    from skillyard.faces.cli.target import Target, Where


@click.group()
def skill() -> None:
    """Find skills, read them, make and check your own, publish them."""


for command in (publish, export, withdraw, restore, pin, unpin):
    skill.add_command(command)


@skill.command("list")
@click.argument("name", required=False)
@click.option("--namespace", metavar="NAME", help="Only skills at or below this dotted name.")
@click.option("--versions", is_flag=True, help="Every version, of NAME or of all: withdrawn ones too.")
@json_option
@server_options
def list_(name: str | None, namespace: str | None, versions: bool, as_json: bool, where: Where) -> None:
    """The skills that can be used, by name."""
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
        emit_table(("name", "version", "kind", "description"), rows)


@skill.command()
@click.argument("name")
@click.option("--version", help="The latest when left out.")
@click.option("--file", "path", metavar="PATH", help="Print this file of the skill instead.")
@json_option
@server_options
def show(name: str, version: str | None, path: str | None, as_json: bool, where: Where) -> None:
    """What a skill says of itself: manifest, files, documentation."""
    params = {"name": name} | ({"version": version} if version else {})
    with where.open() as target:
        if path is not None:
            _show_file(target, {**params, "path": path}, as_json=as_json)
            return
        found = target.call("describe_skill", {**params, "detail": "full"})["skill"]
    if as_json:
        emit_json(found)
    else:
        _show_skill(found)


@skill.command()
@click.argument("name")
@click.option("--dir", "parent", type=click.Path(path_type=Path, file_okay=False), default=".", help="Where to put it.")
@click.option("--kind", type=click.Choice(["action", "instruction"]), default="action", show_default=True)
@json_option
def new(name: str, parent: Path, kind: Literal["action", "instruction"], as_json: bool) -> None:
    """Make a skill that works, to start from: DIR/NAME with manifest, documentation and code."""
    from skillyard.stores.skills import new_skill

    directory = parent / name
    files = new_skill(directory, name, kind)
    if as_json:
        emit_json({"name": name, "path": str(directory), "files": [str(file) for file in files]})
        return
    click.echo(str(directory))
    click.echo(f"next: skillyard skill validate {directory}", err=True)
    if kind == "action":
        click.echo(f'      skillyard run {name} --skills-dir {parent} --args \'{{"text": "hello"}}\'', err=True)


@skill.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--lenient", is_flag=True, help="Only what would keep the server from using it, not the whole specification."
)
@json_option
def validate(paths: tuple[str, ...], lenient: bool, as_json: bool) -> None:
    """Check the skills in directories, without running anything of them. Exits with 2 when one is invalid."""
    from skillyard.stores.skills import validate as check

    found = {path: check(path, "lenient" if lenient else "strict") for path in paths}
    if as_json:
        emit_json([_verdict(path, findings) for path, findings in found.items()])
    else:
        for path, findings in found.items():
            _print_findings(path, findings)
    if not all(_valid(findings) for findings in found.values()):
        click.get_current_context().exit(Exit.BAD_INPUT)


_PIECE = 4 * 1024 * 1024
"""What read_skill_file gives at most at once."""


def _show_file(target: Target, params: dict[str, Any], *, as_json: bool) -> None:
    """The whole file, piece by piece; with ``as_json`` the answer that holds its first 4 MiB."""
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


def _valid(findings: Sequence[Finding]) -> bool:
    return not any(finding.level == "error" for finding in findings)


def _verdict(path: str, findings: Sequence[Finding]) -> dict[str, Any]:
    from dataclasses import asdict

    return {"path": path, "valid": _valid(findings), "findings": [asdict(finding) for finding in findings]}


def _print_findings(path: str, findings: Sequence[Finding]) -> None:
    for finding in findings:
        click.echo(calm(f"{path}/{finding}"))
    click.echo(calm(f"{path}: {'valid' if _valid(findings) else 'invalid'}"), err=True)
