"""``skillyard skill``: the group, and its commands list and show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.calls import Call, Given, add_calls, collect
from skillyard.faces.cli.options import chosen, json_option, server_options, skill_argument
from skillyard.faces.cli.render import calm, emit_fields, emit_foreign, emit_json, emit_table
from skillyard.faces.cli.skill.publish import export, install, publish
from skillyard.faces.cli.skill.read import diff, problems, review
from skillyard.faces.cli.skill.test import new, test, validate
from skillyard.faces.cli.skill.versions import CALLS, approve, show_versions

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Target, Where


_AGENT = click.option("--agent", metavar="NAME", help="The agent that the call is for, where the token allows it.")


def _asked(given: Given) -> dict[str, Any]:
    """Returns the parameters of a tool: the skill's name, and what was given beside it."""
    named = given["skill"]
    others = {name: value for name, value in given.items() if name != "skill" and value not in (None, "")}
    return {"skill_name": named["name"], **({"version": named["version"]} if "version" in named else {}), **others}


def _activated(done: Mapping[str, Any], _: Given) -> str:
    return f"{done['skill_name']}@{done['version']} is ready in {done['local_dir']}"


def _switched(done: Mapping[str, Any], _: Given) -> str:
    state = "can be used" if done["enabled"] else "cannot be used"
    return f"{done['skill_name']} {state} in the project {done['project']}{'' if done['changed'] else ', as before'}"


def _deleted(done: Mapping[str, Any], _: Given) -> str:
    versions = ", ".join(each["version"] for each in done["deleted"]) or "nothing"
    return f"{done['skill_name']}: deleted {versions}; the name means {done['active_version'] or 'no version'} now"


_TOOLS = {
    "activate": Call(
        method="skills.activate",
        help="Make a skill ready for commands: its packages are built, and an interpreter with them is at hand.",
        options=(
            skill_argument(),
            click.option(
                "--timeout", "timeout_sec", type=float, help="Seconds to wait for its packages.  [default: 60]"
            ),
            _AGENT,
        ),
        ask=_asked,
        said=_activated,
    ),
    "disable": Call(
        method="skills.disable",
        help="Let no agent of the token's project use a skill, in any version. Runs at work go on.",
        options=(click.argument("skill", metavar="NAME", callback=lambda *given: {"name": given[2]}), _AGENT),
        ask=_asked,
        said=_switched,
        changes=True,
    ),
    "enable": Call(
        method="skills.disable",
        help="Let agents of the token's project use a skill again.",
        options=(click.argument("skill", metavar="NAME", callback=lambda *given: {"name": given[2]}), _AGENT),
        ask=lambda given: {**_asked(given), "enabled": True},
        said=_switched,
        changes=True,
    ),
    "delete": Call(
        method="skills.delete",
        help="Serve a published version no longer, or every version. Names, versions and content stay taken.",
        options=(
            skill_argument(),
            click.option("--reason", default="", help="Told to callers that ask for the version."),
            _AGENT,
        ),
        ask=_asked,
        said=_deleted,
        changes=True,
    ),
}


@click.group()
def skill() -> None:
    """Find skills, read them, make and check your own, publish them."""


for command in (new, validate, review, test, diff, problems, publish, install, export, approve):
    skill.add_command(command)
add_calls(skill, {**CALLS, **_TOOLS})


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
