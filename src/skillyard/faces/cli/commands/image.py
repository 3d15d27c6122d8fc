"""``skillyard image``: what sandboxes of other makers are made of."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click

from skillyard.faces.cli.options import data_dir_option, json_option
from skillyard.faces.cli.render import emit_json


@click.group()
def image() -> None:
    """Images, templates and disks for sandboxes of other makers."""


@image.command("build")
@click.option("--microvm", is_flag=True, help="Build the image of machines for the isolation microvm instead.")
@click.option("--mcp", is_flag=True, help="Build the images of jailed MCP servers: for Python, and for TypeScript.")
@click.option(
    "--from",
    "base",
    metavar="IMAGE",
    help="Image to start from, by name or digest; with --microvm the directory or tar archive of a root.",
)
@click.option("--tag", metavar="NAME", help="Name of the image.  [default: skillyard/run:VERSION]")
@click.option(
    "--language",
    "languages",
    type=click.Choice(("python", "bash", "javascript", "typescript")),
    multiple=True,
    help="A language of the programs. May repeat.  [default: python]",
)
@click.option("--offline", is_flag=True, help="Give the build no network: the engine must have the base.")
@click.option(
    "--output",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --microvm: directory of the image.  [default: microvm in the data directory]",
)
@click.option(
    "--package", "packages", metavar="NAME", multiple=True, help="With --microvm: a further Debian package. May repeat."
)
@json_option
@data_dir_option
def build(
    microvm: bool,
    mcp: bool,
    base: str | None,
    tag: str | None,
    languages: tuple[str, ...],
    offline: bool,
    output: Path | None,
    packages: tuple[str, ...],
    as_json: bool,
    data_dir: Path | None,
) -> None:
    """Build an image of sandboxes for the isolation oci, or with --microvm for microvm.

    The engine behind oci.socket builds it. Python and the programs of the languages are taken from the base, and
    installed by apt where it has none. The base gets the user of programs, localhost, certificates and time zones.
    Nothing of skillyard is in the image. Prints the settings that name it.

    With --mcp it builds two, skillyard/mcp-python:VERSION and skillyard/mcp-typescript:VERSION, from one base. A jail
    gets one by the language of its command.

    With --microvm, apt fetches a kernel, busybox and the packages of a root. None of their scripts run.

    \b
      skillyard image build
      skillyard image build --from debian:bookworm-slim --language javascript --language bash
      skillyard image build --offline --from local/python:1
      skillyard image build --mcp --from node:22-bookworm-slim
      skillyard image build --microvm --package jq
    """
    import asyncio

    from skillyard.config.settings import load_settings
    from skillyard.images import build_machine_image, build_mcp_images, build_run_image

    settings = load_settings(data_dir=data_dir)
    if mcp:
        wrong: dict[str, object] = {
            "--microvm": microvm,
            "--tag": tag,
            "--language": languages,
            "--output": output,
            "--package": packages,
        }
        _refuse("--mcp", wrong)
        both = asyncio.run(build_mcp_images(settings.oci, base, offline=offline))
        if as_json:
            emit_json(both)
            return
        for each in cast("dict[str, dict[str, object]]", both["images"]).values():
            _tell(each)
        click.echo(f"\nIn config.toml:\n\n{both['settings']}", nl=False)
        return
    if microvm:
        _refuse("--microvm", {"--tag": tag, "--language": languages, "--offline": offline})
        source = None if base is None else Path(base)
        facts = build_machine_image(settings, output, source, packages, lambda text: click.echo(text, err=True))
        if as_json:
            emit_json(facts)
        else:
            click.echo(f"{facts['directory']}: Linux {facts['kernel']}, Python {facts['python']}")
        return
    _refuse("an image of containers", {"--output": output, "--package": packages})
    told = asyncio.run(build_run_image(settings.oci, base, tag, languages, offline=offline))
    if as_json:
        emit_json(told)
        return
    _tell(told)
    click.echo(f"\nIn config.toml:\n\n{told['settings']}", nl=False)


def _tell(told: dict[str, object]) -> None:
    click.echo(f"{told['tag']} {told['id']}, with Python {told['python']}")
    for note in cast("list[str]", told["notes"]):
        click.echo(f"note: {note}")


def _refuse(kind: str, given: dict[str, object]) -> None:
    """Raises UsageError for options that another kind of image has."""
    if wrong := [name for name, value in given.items() if value]:
        raise click.UsageError(f"{', '.join(wrong)}: {kind} has none of these; leave it out")


@image.command("e2b-template")
@click.argument("directory", metavar="DIRECTORY", type=click.Path(path_type=Path, file_okay=False))
@click.option("--base", metavar="IMAGE", help="Image to start from, with Python 3.11 or newer and apt.")
@click.option(
    "--packages",
    multiple=True,
    metavar="DIGEST",
    help="A built environment (`skillyard environment list`), so that runs do not upload it. May repeat.",
)
@json_option
@data_dir_option
def e2b_template(
    directory: Path, base: str | None, packages: tuple[str, ...], as_json: bool, data_dir: Path | None
) -> None:
    """Write the Dockerfile and the start command of a template for the isolation e2b.

    Build it with E2B's own command, and set e2b.template to its name (docs/remote-e2b.md).

    \b
      skillyard image e2b-template ./template
      cd template && e2b template create skillyard -d e2b.Dockerfile -c /opt/skillyard/start.sh
    """
    import asyncio

    from skillyard.config.settings import load_settings
    from skillyard.data_dir import DataDir
    from skillyard.images import write_e2b_template

    settings = load_settings(data_dir=data_dir) if packages else None
    places = None if settings is None else DataDir(settings.data_dir)
    files = asyncio.run(write_e2b_template(directory, base, packages, places))
    if as_json:
        emit_json({"directory": str(directory), "files": [str(path) for path in files]})
    else:
        for path in files:
            click.echo(path)
