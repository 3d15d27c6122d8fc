"""``skillyard run`` and ``exec``: what goes in, the call, and how the run ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.inputs import (
    ARGS_HELP,
    BLOB_HELP,
    BlobInput,
    parse_args,
    parse_limits,
    parse_network,
    read_stdin,
    read_text,
)
from skillyard.faces.cli.options import (
    chosen,
    detail_option,
    isolation_option,
    json_option,
    label_option,
    network_option,
    server_options,
    wait_option,
)

if TYPE_CHECKING:
    from skillyard.client.run import Run
    from skillyard.faces.cli.target import Target, Where


_FULL_PREVIEW = 2000
"""Bytes of a preview (at most 2,048) from which on it is likely to have lost something."""


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that :func:`perform` takes, under its names."""
    for decorate in reversed(_OPTIONS):
        command = decorate(command)
    return command


_OPTIONS: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = (
    click.option("--args", "args_text", metavar="JSON|@FILE|-", help=ARGS_HELP),
    click.option("--blob", "blobs", metavar="[KEY=]FILE", multiple=True, help=BLOB_HELP),
    click.option("--mount-skill", "mount_skills", metavar="NAME", multiple=True, help="A skill to import. May repeat."),
    click.option("--timeout", type=click.FloatRange(min=0.001), metavar="SECONDS", help="Wall clock."),
    click.option(
        "--limit",
        "limits",
        metavar="NAME=NUMBER",
        multiple=True,
        help="memory_mb, cpus, pids or disk_mb. May repeat.",
    ),
    isolation_option("The boundary to run behind, where policy offers a choice."),
    click.option("--image", metavar="DIGEST", help="The image of the sandbox, by digest, where policy admits it."),
    network_option("Narrow what the run may reach, as api.x.com:443; none for no network. May repeat."),
    label_option("A label that `skillyard runs list` finds the run by. May repeat."),
    click.option("--detach", is_flag=True, help="Print the run's id at once; it goes on without this command."),
    click.option(
        "--save",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Write the files and the blobs that the run made into DIR.",
    ),
    detail_option,
    json_option,
    server_options,
)


def perform(
    method: str,
    params: dict[str, Any],
    *,
    where: Where,
    args_text: str | None,
    blobs: tuple[str, ...],
    mount_skills: tuple[str, ...],
    timeout: float | None,
    limits: tuple[str, ...],
    isolation: str | None,
    image: str | None,
    network: tuple[str, ...],
    labels: dict[str, str],
    detach: bool,
    save: Path | None,
    detail: str | None,
    as_json: bool,
) -> None:
    """Uploads, runs and shows. Ends the command with FAILED for a failed run."""
    if detach and save is not None:
        raise click.UsageError("--save goes with `skillyard runs wait`, not with --detach.")
    from skillyard.client.run import Run
    from skillyard.faces.cli.progress import running

    args, inputs = parse_args(args_text), [BlobInput.parse(text) for text in blobs]
    if mount_skills:
        params["mount_skills"] = list(mount_skills)
    if timeout is not None:
        params["timeout_ms"] = max(1, round(timeout * 1000))
    if limits:
        params["limits"] = parse_limits(limits)
    if isolation is not None:
        params["isolation"] = isolation
    if image is not None:
        params["image"] = image
    if network:
        params["network"] = parse_network(network)
    if labels:
        params["labels"] = labels
    if detach:
        params["detach"] = True
    if detail is not None:
        params["detail"] = detail
    with where.open() as target:
        params |= _with_blobs(target, args, inputs, quiet=as_json)
        with running(target, _environment(params), quiet=as_json):
            run = Run.of(target.call(method, params))
        saved = _save(target, run, save, quiet=as_json) if save else []
    show(run, saved, as_json=as_json)


def wait(run_id: str, *, where: Where, timeout: float | None, save: Path | None, as_json: bool) -> None:
    """Waits for the end of a run and shows it as :func:`perform` does. BUSY when the time was over before."""
    timeout_ms = None if timeout is None else round(timeout * 1000)
    with where.open() as target:
        run = target.wait_run(run_id, timeout_ms=timeout_ms)
        saved = _save(target, run, save, quiet=as_json) if save and run.ended else []
    show(run, saved, as_json=as_json)
    if not run.ended:
        click.get_current_context().exit(Exit.BUSY)


def show(run: Run, saved: list[Path], *, as_json: bool) -> None:
    """Prints a run. Ends the command with FAILED or REFUSED for one that failed."""
    _show(run, saved, as_json=as_json)
    if run.ended and not run.ok:
        refused = (run.error or {}).get("type") == "PolicyRefused"
        click.get_current_context().exit(Exit.REFUSED if refused else Exit.FAILED)


def _environment(params: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the parameters that tell how far the build of the run's environment is."""
    if "name" in params:
        return {"skill": params["name"]} | ({"version": params["version"]} if "version" in params else {})
    if params.get("packages"):
        return {"packages": params["packages"]}
    return {"environment": params["environment"]} if params.get("environment") else None


def _with_blobs(target: Target, args: dict[str, Any], inputs: list[BlobInput], *, quiet: bool) -> dict[str, Any]:
    from skillyard.faces.cli.inputs import place_blobs, upload

    place_blobs(args, inputs, [blob.name for blob in inputs])  # so that a mistake is found before the upload
    ids = [upload(target, blob, quiet=quiet) for blob in inputs]
    params: dict[str, Any] = {"args": place_blobs(args, inputs, ids)}
    return params | ({"input_blobs": ids} if ids else {})


def _save(target: Target, run: Run, directory: Path, *, quiet: bool) -> list[Path]:
    from skillyard.faces.cli.commands.blob import fetch_into

    directory.mkdir(parents=True, exist_ok=True)
    files = {file.blob_id for file in run.files}
    others = [blob_id for blob_id in run.output_blobs if blob_id not in files]
    return [
        *target.save_files(run, directory),
        *(fetch_into(target, blob_id, directory, quiet=quiet) for blob_id in others),
    ]


def _show(run: Run, saved: list[Path], *, as_json: bool) -> None:
    from skillyard.faces.cli.render import calm, emit_foreign, emit_json

    if as_json:
        emit_json(dict(run))
        return
    if not run.ended:
        click.echo(run.run_id)
        click.echo(calm(f"{run.run_id} {run.status}: skillyard runs wait {run.run_id}"), err=True)
        return
    emit_foreign(run.logs_preview, err=True)
    if run.ok:
        emit_json(run.output)
    _report(run, saved)


def _raised(run: Run) -> bool:
    """Returns whether the code of a run raised its error, whose type says what kind it is."""
    from skillyard.domain.work.record import ERROR_TYPES, Outcome

    return (
        run.get("outcome", Outcome.EXIT) == Outcome.EXIT and (run.error or {}).get("type") not in ERROR_TYPES.values()
    )


def _report(run: Run, saved: list[Path]) -> None:
    from skillyard.faces.cli.render import calm

    error = run.error or {}
    kind = f"{error.get('type')}: "
    said, told = f"{kind}{error.get('message')}", run.summary
    if not _raised(run):  # the sentence is our own, and says all
        said, told = said.removeprefix(kind), told.removeprefix(kind)
    if error.get("traceback"):
        click.echo(calm(str(error["traceback"])).rstrip(), err=True)
    elif not run.ok and said.startswith(told):
        told = said
    elif not run.ok:
        click.echo(calm(said), err=True)
    click.echo(calm(f"{run.run_id} {run.status}: {told}"), err=True)
    if error.get("type") == "ModuleNotFoundError" and not run.get("skill"):
        click.echo("packages: --environment NAME of `skillyard environment list`, or --package NAME", err=True)
    refused = run.get("network", {}).get("refused")
    if (cell := run.get("interpreter")) and (lost := cell["lost"] or cell["reason"]):
        click.echo(calm(f"the names of earlier cells are lost: {lost}"), err=True)
    if run.ok and refused:
        what = "a connection was" if refused == 1 else f"{refused} connections were"
        click.echo(calm(f"{what} refused: skillyard runs show {run.run_id}"), err=True)
    if run.ok and run.get("least"):
        click.echo(calm(f"the run got the least policy: {run['least']}"), err=True)
    files = {file.blob_id: file.path for file in run.files}
    blobs = [f"{blob_id} {files.get(blob_id, '')}".rstrip() for blob_id in run.output_blobs]
    for name, items in (("note:", [note for note in run.notes if note not in told]), ("blob", blobs), ("wrote", saved)):
        for item in items:
            click.echo(calm(f"{name} {item}"), err=True)
    if run.logs_blob and len(run.logs_preview.encode()) > _FULL_PREVIEW:
        click.echo(f"whole log: skillyard runs logs {run.run_id}", err=True)


@click.command("exec")
@click.argument("file")
@click.option("--entrypoint", metavar="NAME", help="The function to call.  [default: main, or the code as a script]")
@click.option("--environment", metavar="NAME", help="A prepared set of packages, such as data.")
@click.option(
    "--package",
    "packages",
    multiple=True,
    metavar="REQUIREMENT",
    help="A package that the code may import, such as 'numpy>=2'; where policy admits it. Can be repeated.",
)
@click.option("--session", metavar="NAME", help="As a cell of this session's interpreter, which keeps names.")
@click.option("--restart", is_flag=True, help="Begin with a new interpreter of the session.")
@wait_option
@click.option("--agent", metavar="NAME", help="The agent that the session belongs to, where the token allows it.")
@run_options
def exec_(
    file: str,
    entrypoint: str | None,
    environment: str | None,
    packages: tuple[str, ...],
    session: str | None,
    restart: bool,
    wait: float | None,
    agent: str | None,
    **options: Any,
) -> None:
    """Run the Python source in FILE (- for standard input), in a fresh sandbox or a session.

    The source defines main(args), or is a script. Standard output is the returned value as JSON; logs and the summary
    go to standard error. Files that it leaves in /workspace/out come back (--save). Ctrl-C cancels the run.

    \b
      echo 'def main(args): return {"sum": sum(args["n"])}' | skillyard exec - --args '{"n": [1, 2]}'
    """
    params: dict[str, Any] = {"language": "python", "code": _source(file, options)}
    if entrypoint:
        params["entrypoint"] = entrypoint
    if environment:
        params["environment"] = environment
    if packages:
        params["packages"] = list(packages)
    if wait is not None:
        params["wait_ms"] = round(wait * 1000)
    cell = {"session_id": session, "restart": restart, "agent": agent}
    perform("run_code", params | {name: value for name, value in cell.items() if value}, **options)


def _source(file: str, options: dict[str, Any]) -> str:
    if file != "-":
        return read_text(Path(file))
    if options["args_text"] == "-":
        raise Failure("standard input is the code, so it cannot be --args too")
    return read_stdin("code")


@click.command()
@click.argument("skill", metavar="NAME[@VERSION]")
@click.option("--version", help="A version of the skill; the latest when left out.")
@run_options
def run(skill: str, version: str | None, **options: Any) -> None:
    """Run an action skill in a fresh sandbox and print its result.

    Standard output is the returned value as JSON; logs and the summary go to standard error. Ctrl-C cancels
    the run.

    \b
      skillyard run examples.csv.summarize --blob blob=sales.csv --args '{"top": 3}' --save reports
      skillyard run examples.csv.summarize --blob sales.csv --args '{"blob": "{blob:sales.csv}"}'
    """
    name, wanted = chosen(skill, version)
    params = {"name": name} | ({"version": wanted} if wanted else {})
    perform("execute_skill", params, **options)
