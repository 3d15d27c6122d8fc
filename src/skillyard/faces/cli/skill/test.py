"""``skillyard skill new``, ``validate`` and ``test``: make, check and try a skill."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from skillyard.domain.errors import SkillNotFound
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.options import isolation_option, json_option
from skillyard.faces.cli.render import calm, emit_json, emit_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skillyard.domain.skill.example import Example
    from skillyard.domain.skill.skill import Finding
    from skillyard.skilltest.runner import Result, Runner, Subject, Target


@click.command()
@click.argument("name")
@click.option("--dir", "parent", type=click.Path(path_type=Path, file_okay=False), default=".", help="Where to put it.")
@click.option(
    "--kind",
    type=click.Choice(["action", "instruction"]),
    help="action runs, instruction is text.  [default: action; instruction for an Agent Skill]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["skills-protocol", "agent-skills"]),
    default="skills-protocol",
    show_default=True,
    help="With skill.toml, or with SKILL.md alone.",
)
@json_option
def new(
    name: str,
    parent: Path,
    kind: Literal["action", "instruction"] | None,
    form: Literal["skills-protocol", "agent-skills"],
    as_json: bool,
) -> None:
    """Make a skill that works, to start from: DIR/NAME with documentation, code and examples that test it."""
    from skillyard.wiring import new_skill

    directory = parent / name
    files = new_skill(directory, name, kind, form)
    if as_json:
        emit_json({"name": name, "path": str(directory), "files": [str(file) for file in files]})
        return
    click.echo(str(directory))
    click.echo(f"next: skillyard skill validate {quote(str(directory))}", err=True)
    if directory / "tests" / "examples.toml" in files:
        click.echo(f"      skillyard skill test {quote(str(directory))}", err=True)
    if directory / "code" / "main.py" in files:
        where, args = quote(str(parent)), quote('{"text": "hello"}')
        click.echo(f"      skillyard run {quote(name)} --skills-dir {where} --args {args}", err=True)


_MARKS = ("skill.toml", "SKILL.md")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--lenient", is_flag=True, help="Only what would keep the server from using it, not the whole specification."
)
@json_option
def validate(paths: tuple[str, ...], lenient: bool, as_json: bool) -> None:
    """Check the skills in directories, without running anything of them. Exits with 2 when one is invalid.

    A PATH is a skill, or a directory of skills.
    """
    from skillyard.wiring import validate_skill

    each = (skill for path in paths for skill in _skills(path))
    found = {path: validate_skill(path, "lenient" if lenient else "strict") for path in each}
    if as_json:
        emit_json([_verdict(path, findings) for path, findings in found.items()])
    else:
        for path, findings in found.items():
            print_findings(path, findings)
    if not all(is_valid(findings) for findings in found.values()):
        click.get_current_context().exit(Exit.BAD_INPUT)


def _skills(path: str) -> list[str]:
    """Returns the path itself, or the directories of skills in it when it is not a skill.

    Versions of a skill lie one directory deeper.
    """
    root = Path(path)
    if any((root / name).is_file() for name in _MARKS):
        return [path]
    below = {found.parent for depth in ("*", "*/*") for name in _MARKS for found in root.glob(f"{depth}/{name}")}
    outermost = [found for found in below if found.parent not in below]
    return sorted(str(found) for found in outermost) or [path]


def is_valid(findings: Sequence[Finding]) -> bool:
    return not any(finding.level == "error" for finding in findings)


def print_findings(path: str, findings: Sequence[Finding]) -> None:
    """Prints each finding with its remedy below it, and the verdict on standard error."""
    for finding in findings:
        click.echo(calm(str(finding) if finding.file == path else f"{path}/{finding}"))
    click.echo(calm(f"{path}: {'valid' if is_valid(findings) else 'invalid'}"), err=True)


def _verdict(path: str, findings: Sequence[Finding]) -> dict[str, Any]:
    from dataclasses import asdict

    return {"path": path, "valid": is_valid(findings), "findings": [asdict(finding) for finding in findings]}


_COLOURS = {"passed": "green", "failed": "red"}


@click.command("test")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--only", metavar="NAME", multiple=True, help="Run this example. May repeat.")
@click.option("--keep-going", is_flag=True, help="Run the rest after one that failed.")
@click.option("--allow-none", is_flag=True, help="Exit with 0 for a skill without examples.")
@isolation_option("The boundary to run behind, where policy offers a choice.")
@click.option("--url", help="Run them on this server, which must have the same bundle.")
@click.option("--token", envvar="SKILLYARD_TOKEN", help="Its bearer token.  [env: SKILLYARD_TOKEN]")
@click.option(
    "--skills-dir",
    "skills_dirs",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    multiple=True,
    help="Where the skills are that it requires. May repeat.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Use this data directory: its settings, its secrets, its environments.  [default: one for this test alone]",
)
@json_option
def test(
    directory: Path,
    only: tuple[str, ...],
    keep_going: bool,
    allow_none: bool,
    isolation: str | None,
    url: str | None,
    token: str | None,
    skills_dirs: tuple[Path, ...],
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Run the examples of the skill in DIR, each in a fresh sandbox, and compare the results.

    The examples are in tests/examples.toml. Exits with 0 when all passed, with 1 when one failed, and with 2 when the
    skill is not valid or has no examples.
    """
    subject = _subject(directory, as_json=as_json)
    examples = _chosen(subject, only, allow_none=allow_none)
    if not examples:
        _report(subject, [], examples, as_json=as_json)
        return
    with _runner(subject, url, token, data_dir, skills_dirs, isolation) as runner:
        results: list[Result] = []
        for result in _told(runner, examples, keep_going=keep_going, quiet=as_json):
            results.append(result)
            _progress(result, len(results), len(examples), quiet=as_json)
    _report(subject, results, examples, as_json=as_json)
    if not all(result.passed for result in results):
        click.get_current_context().exit(Exit.FAILED)


def _told(runner: Runner, examples: Sequence[Example], *, keep_going: bool, quiet: bool) -> Iterator[Result]:
    """Yields each result as it comes, and shows the progress of the environment's build."""
    from skillyard.faces.cli.progress import running

    skill = runner.subject.skill
    asked = {"skill": skill.name, "version": skill.version} if skill.needs.dependencies else None
    coming = runner.run(examples, keep_going=keep_going)
    while True:
        try:
            with running(cast("Any", runner.target), asked, quiet=quiet):
                result = next(coming, None)
        except SkillNotFound as error:
            raise Failure(error.message, "--skills-dir names a directory of the skills that it requires") from None
        if result is None:
            return
        yield result


def _subject(directory: Path, *, as_json: bool) -> Subject:
    from skillyard.skilltest.runner import read_subject

    subject, findings = read_subject(directory)
    if subject is None:
        if not as_json:
            print_findings(str(directory), findings)
        raise Failure(f"{directory} is not a valid skill", "`skillyard skill validate` says what is wrong")
    return subject


def _chosen(subject: Subject, only: tuple[str, ...], *, allow_none: bool) -> Sequence[Example]:
    known = {example.name for example in subject.examples}
    if unknown := sorted(set(only) - known):
        raise Failure(f"there is no example {unknown[0]!r}", f"there are: {', '.join(sorted(known)) or 'none'}")
    if not known and not allow_none:
        raise Failure(f"{subject.skill.name} has no examples", "write some into tests/examples.toml, or --allow-none")
    return [example for example in subject.examples if not only or example.name in only]


@contextmanager
def _runner(
    subject: Subject,
    url: str | None,
    token: str | None,
    data_dir: Path | None,
    skills_dirs: tuple[Path, ...],
    isolation: str | None,
) -> Iterator[Runner]:
    if url and (skills_dirs or data_dir):
        raise click.UsageError("--skills-dir and --data-dir are for work in this process; they do not go with --url.")
    from skillyard.skilltest.runner import Runner

    if url:
        with _server(subject, url, token) as target:
            yield Runner(target, subject, own=False, isolation=isolation)
    else:
        with _runtime(subject, data_dir, skills_dirs) as target:
            yield Runner(target, subject, own=data_dir is None, isolation=isolation)


@contextmanager
def _server(subject: Subject, url: str, token: str | None) -> Iterator[Target]:
    from skillyard.client.sync import SyncClient
    from skillyard.skilltest.runner import why_another

    with SyncClient(url, token) as client:
        target = cast("Target", client)
        if other := why_another(target, subject):
            raise Failure(other, "publish or pin what is to be tested, or leave --url out")
        yield target


@contextmanager
def _runtime(subject: Subject, data_dir: Path | None, skills_dirs: tuple[Path, ...]) -> Iterator[Target]:
    from tempfile import TemporaryDirectory

    from skillyard.faces.cli.target import Where

    with TemporaryDirectory(prefix="skillyard-test-", ignore_cleanup_errors=True) as temporary:
        place = data_dir or Path(temporary) / "data"
        with Where(data_dir=place, skills_dirs=(subject.directory, *skills_dirs)).open() as target:
            yield cast("Target", target)


def _progress(result: Result, number: int, of: int, *, quiet: bool) -> None:
    if not quiet:
        said = "passed" if result.passed else "failed"
        click.echo(calm(f"[{number}/{of}] {result.name}: {said} ({result.seconds:.2f} s)"), err=True)


def _report(subject: Subject, results: Sequence[Result], examples: Sequence[Example], *, as_json: bool) -> None:
    failed = [result for result in results if not result.passed]
    if as_json:
        emit_json(_as_dict(subject, results, examples))
        return
    ran = {result.name for result in results}
    told = sys.stdout.isatty() and sys.stderr.isatty()  # one terminal, which has a line about each already
    rows = (
        []
        if told
        else [(result.name, "passed" if result.passed else "failed", f"{result.seconds:.2f} s") for result in results]
    )
    rows += [(example.name, "not run", "") for example in examples if example.name not in ran]
    if rows:
        emit_table(("example", "result", "time"), rows, colours=_COLOURS)
    for result in failed:
        _explain(result)
    click.echo(calm(f"{subject.skill.name}: {len(results) - len(failed)} passed, {len(failed)} failed"), err=True)


def _explain(result: Result) -> None:
    click.echo(calm(f"\n{result.name} ({result.run_id})"))
    for difference in result.differences:
        click.echo(calm(f"  {difference.path}: expected {difference.expected}"))
        click.echo(calm(f"  {' ' * len(difference.path)}       got {difference.got}"))
    for line in result.log.splitlines()[-10:]:
        click.echo(calm(f"  log: {line}"))


def _as_dict(subject: Subject, results: Sequence[Result], examples: Sequence[Example]) -> dict[str, Any]:
    return {
        "skill": subject.skill.name,
        "version": subject.skill.version,
        "passed": sum(result.passed for result in results),
        "failed": sum(not result.passed for result in results),
        "not_run": len(examples) - len(results),
        "examples": [result.as_dict() for result in results],
    }
