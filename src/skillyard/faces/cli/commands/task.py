"""``skillyard sh`` runs commands and starts services; ``skillyard task`` follows tasks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillyard.client.errors import BadReply
from skillyard.faces.cli.calls import Call, Given, add_calls
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.inputs import BlobInput, parse_limits, parse_network, upload
from skillyard.faces.cli.options import (
    isolation_option,
    json_option,
    label_option,
    limit_option,
    network_option,
    server_options,
    skill_argument,
    wait_option,
)
from skillyard.faces.cli.render import calm, emit_fields, emit_foreign, emit_json, moment

if TYPE_CHECKING:
    from skillyard.faces.cli.options import Named
    from skillyard.faces.cli.target import Target, Where

_WAIT_MS = 20_000
agent_option = click.option("--agent", metavar="NAME", help="The agent that it belongs to, where the token allows it.")
task_argument = click.argument("task_id")
_files = {
    "--input": "Write FILE to PATH, relative to --workdir, before the command starts. FILE can be - or a blob id too.",
    "--output": "A file to keep, or a pattern, relative to --workdir. May repeat.",
    "--save": "Write the files that --output names into DIR.",
}


@click.command()
@skill_argument()
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...")
@click.option("--timeout", type=click.FloatRange(min=0.001), metavar="SECONDS", help="Wall clock.")
@click.option("--env", "env", metavar="NAME=VALUE", multiple=True, help="A variable of the command. May repeat.")
@click.option("--workdir", metavar="DIR", help="Below /workspace.  [default: skill, a writable copy of the skill]")
@click.option("--session", metavar="NAME", help="Share /workspace with the other commands of this session.")
@wait_option
@click.option("--input", "inputs", metavar="[PATH=]FILE", multiple=True, help=_files["--input"])
@click.option("--output", "outputs", metavar="PATH", multiple=True, help=_files["--output"])
@click.option("--save", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help=_files["--save"])
@click.option("--limit", "limits", metavar="NAME=NUMBER", multiple=True, help="memory_mb, cpus, pids or disk_mb.")
@isolation_option("The boundary to run behind, where policy offers a choice.")
@click.option("--image", metavar="DIGEST", help="The image of the sandbox, by digest, where policy admits it.")
@network_option("Narrow what it may reach, as api.x.com:443; none for no network. May repeat.")
@label_option("A label that `skillyard runs list` finds it by. May repeat.")
@agent_option
@click.option("--detach", is_flag=True, help="Start it as a task and print the task's id at once.")
@click.option(
    "--expose",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    multiple=True,
    help="Start it as a service that listens on PORT, and print its id at once. May repeat.",
)
@click.option("--ready", metavar="PATTERN", help="With --expose: it is ready when its output has PATTERN.")
@click.option(
    "--startup", type=click.FloatRange(min=0.001), metavar="SECONDS", help="With --expose: time to be ready in."
)
@click.option("--restart", is_flag=True, help="With --expose: start it again when it fails.")
@click.option(
    "--attempts",
    type=click.IntRange(1, 10),
    metavar="N",
    help="With --detach: start it up to N times while its sandbox is lost.",
)
@json_option
@server_options
def sh(
    skill: Named,
    command: tuple[str, ...],
    timeout: float | None,
    env: tuple[str, ...],
    workdir: str | None,
    session: str | None,
    wait: float | None,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    save: Path | None,
    limits: tuple[str, ...],
    isolation: str | None,
    image: str | None,
    network: tuple[str, ...],
    labels: dict[str, str],
    agent: str | None,
    detach: bool,
    expose: tuple[int, ...],
    ready: str | None,
    startup: float | None,
    restart: bool,
    attempts: int | None,
    as_json: bool,
    where: Where,
) -> None:
    """Run a shell command in a skill, in a fresh sandbox or with --session in one that is kept.

    One word is a text for the shell; several are a program and its arguments. The output and the exit code are the
    command's own. Ctrl-C ends it; with --detach it is a task that goes on, with --expose a service.

    \b
      skillyard sh acme.notes -- 'grep -r todo . | wc -l'
      skillyard sh acme.notes --detach --timeout 7200 -- scripts/import.sh
      skillyard sh acme.notes --expose 8000 --restart -- exec python3 -m http.server 8000
    """
    if not expose and (ready is not None or startup is not None or restart):
        raise click.UsageError("--ready, --startup and --restart go with --expose, which starts a service.")
    if (detach or expose) and save is not None:
        raise click.UsageError("--save goes with `skillyard task watch`, not with --detach or --expose.")
    if attempts is not None and not detach:
        raise click.UsageError("--attempts goes with --detach: only tasks are started again.")
    if save is not None and not outputs:
        raise click.UsageError("--save needs --output: only files that it names are kept.")
    asked: dict[str, Any] = {
        "skill_name": skill["name"],
        "version": skill.get("version"),
        "command": command[0] if len(command) == 1 else shlex.join(command),
        "timeout_sec": timeout,
        "env": _variables(env),
        "workdir": workdir,
        "session_id": session,
        "wait_ms": None if wait is None else round(wait * 1000),
        "outputs": [{"path": path} for path in outputs],
        "limits": parse_limits(limits),
        "isolation": isolation,
        "image": image,
        "labels": labels,
        "agent": agent,
        "expose_ports": list(expose),
        "ready_pattern": ready,
        "startup_timeout_sec": startup,
        "restart": "on-failure" if restart else None,
        "max_attempts": attempts,
    }
    params = {name: value for name, value in asked.items() if value not in (None, {}, [])}
    if network:
        params["network"] = parse_network(network)
    with where.open() as target:
        if inputs:
            params["inputs"] = [_input(target, text, quiet=as_json) for text in inputs]
        method = "skills.run_service" if expose else "skills.run_cmd_async" if detach else "skills.run_cmd"
        answer = target.call(method, params)
        saved = _saved(target, answer, save) if save is not None else []
    if detach or expose:
        _show_started(answer, as_json=as_json)
        return
    _show_ended(answer, saved, as_json=as_json)
    if answer["status"] != "succeeded":
        code = answer["exit_code"]
        click.get_current_context().exit(code if 0 < code < 256 else Exit.FAILED)
    if answer["output_errors"]:
        click.get_current_context().exit(Exit.FAILED)


def _variables(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if wrong := next((text for text, (_, equals, _) in zip(texts, pairs, strict=True) if not equals), None):
        raise click.UsageError(f"--env: {wrong!r} must be NAME=VALUE.")
    return {name: value for name, _, value in pairs}


def _input(target: Target, text: str, *, quiet: bool) -> dict[str, str]:
    path, equals, source = text.partition("=")
    blob = BlobInput(source if equals else text)
    return {"artifact_id": upload(target, blob, quiet=quiet), "mount_path": path if equals else blob.name}


def _saved(target: Target, answer: Mapping[str, Any], directory: Path) -> list[Path]:
    from skillyard.client.run import RunFile

    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for made in answer["created_artifacts"]:
        told = {"path": made["filename"], "blob_id": made["artifact_id"], "size": made["size"], "mime": made["mime"]}
        paths.append(RunFile.of(told).place(directory))
        target.get_blob(made["artifact_id"], paths[-1])
    return paths


def _show_started(answer: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(answer)
        return
    task_id = answer["task_id"]
    click.echo(task_id)
    come_back = f"skillyard service show {task_id}" if "exposed_endpoints" in answer else _come_back(task_id)
    click.echo(calm(f"{task_id} {answer['status']}: {come_back}"), err=True)


def _show_ended(answer: Mapping[str, Any], saved: list[Path], *, as_json: bool) -> None:
    if as_json:
        emit_json(answer)
        return
    emit_foreign(answer["stdout"], nl=False)
    emit_foreign(answer["stderr"], err=True, nl=False)
    if answer["stdout_truncated"] or answer["stderr_truncated"]:
        click.echo(f"whole output: skillyard runs logs {answer['run_id']}", err=True)
    if answer["status"] != "succeeded" and not (answer["reason"] == "exit" and answer["exit_code"] > 0):
        click.echo(calm(answer["error_message"]), err=True)
    _show_files(answer, saved)


def _show_files(answer: Mapping[str, Any], saved: list[Path]) -> None:
    for made in answer["created_artifacts"] if not saved else ():
        click.echo(calm(f"{made['artifact_id']} {made['filename']}"), err=True)
    for path in saved:
        click.echo(calm(f"wrote {path}"), err=True)
    for wrong in answer["output_errors"]:
        click.echo(calm(f"output {wrong['path']}: {wrong['error']}"), err=True)


def _come_back(task_id: str) -> str:
    return f"skillyard task watch {task_id}"


@click.group()
def task() -> None:
    """Look at tasks, follow them, and end them."""


@task.command()
@task_argument
@agent_option
@click.option("--save", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help=_files["--save"])
@json_option
@server_options
def watch(task_id: str, agent: str | None, save: Path | None, as_json: bool, where: Where) -> None:
    """Follow the output of a task until it has ended, and tell how.

    Ctrl-C ends this command alone: the task goes on.
    """
    with where.open() as target:
        try:
            for stream, text in output(target, task_id, agent, follow=True):
                if not as_json:
                    emit_foreign(text, err=stream == "stderr", nl=False)
            ended = target.call("skills.task_status", _asked(task_id, agent))
        except KeyboardInterrupt:
            said = "interrupted; the task goes on"
            raise Failure(said, f"come back with `{_come_back(task_id)}`", Exit.INTERRUPTED) from None
        saved = _saved(target, ended, save) if save is not None else []
    if as_json:
        emit_json(ended)
    else:
        code, why = ended["exit_code"], ended["error_message"]
        click.echo(calm(f"{task_id} {ended['status']}: {why or f'exit code {code}'}"), err=True)
        _show_files(ended, saved)
    if ended["status"] != "succeeded":
        click.get_current_context().exit(Exit.FAILED)


@task.command()
@task_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the task has ended.")
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), help="One of them alone.")
@agent_option
@json_option
@server_options
def logs(task_id: str, follow: bool, stream: str | None, agent: str | None, as_json: bool, where: Where) -> None:
    """Print the output of a task: its stdout to stdout, its stderr to stderr. Also while it works."""
    with where.open() as target:
        pieces = output(target, task_id, agent, follow=follow, stream=stream)
        if as_json:
            emit_json({"task_id": task_id, "chunks": [{"stream": name, "text": text} for name, text in pieces]})
            return
        for name, text in pieces:
            emit_foreign(text, err=name == "stderr", nl=False)


def _asked(task_id: str, agent: str | None, **more: Any) -> dict[str, Any]:
    given = {"agent": agent, **more}
    return {"task_id": task_id, **{name: value for name, value in given.items() if value is not None}}


def output(
    target: Target, task_id: str, agent: str | None, *, follow: bool, stream: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yields the output to its present end, or with ``follow`` until the task has ended."""
    offset, wait_ms, problem = 0, _WAIT_MS if follow else None, ""
    while True:
        page = target.call("skills.task_logs", _asked(task_id, agent, offset=offset, wait_ms=wait_ms, stream=stream))
        if page["next_offset"] < offset + page["dropped"] or page["dropped"] < 0:
            raise BadReply("the server's pages of the output do not follow each other")
        if page["dropped"]:
            click.echo(f"{page['dropped']} bytes of the output are not kept any more", err=True)
        if (now := page.get("log_problem", "")) != problem:
            problem = now
            emit_foreign(f"output is not taken now: {problem}" if problem else "output is taken again", err=True)
        for chunk in page["chunks"]:
            yield chunk["stream"], chunk["text"]
        if page["complete"] or (page["next_offset"] == offset and not follow):
            return
        offset = page["next_offset"]


def show(told: dict[str, Any], _: Given) -> None:
    times = {name: moment(told[name]) for name in ("created_at", "started_at", "finished_at", "last_output_at")}
    tails = {name: told.pop(f"{name}_tail") for name in ("stdout", "stderr")}
    emit_fields({**told, **times})
    for name, text in tails.items():
        if text:
            click.echo(f"\n{name}{', its end' if told[f'{name}_truncated'] else ''}:")
            emit_foreign(text)


def canceled(answer: Mapping[str, Any], _: Given) -> str:
    said = "canceled" if answer["canceled"] else f"had ended before ({answer['status']})"
    return f"{answer['task_id']} {said}"


add_calls(
    task,
    {
        "list": Call(
            method="skills.tasks",
            help="List the tasks of an agent, newest first.",
            options=(limit_option, agent_option),
            key="tasks",
            paged=True,
            columns={
                "id": "task_id",
                "status": "status",
                "skill": "skill_name",
                "created": lambda row: moment(row.get("created_at")),
                "ended": lambda row: moment(row.get("finished_at")),
                "reason": "reason",
            },
        ),
        "show": Call(
            method="skills.task_status",
            help="Show how far a task is, with the end of its output.",
            options=(task_argument, click.option("--tail", "tail_bytes", type=int, help="Bytes of it."), agent_option),
            show=show,
        ),
        "cancel": Call(
            method="skills.task_cancel",
            help="End a task and everything it started.",
            options=(task_argument, click.option("--reason", help="Kept in the record."), agent_option),
            said=canceled,
        ),
    },
)
