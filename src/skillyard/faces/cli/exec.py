"""``skillyard exec``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from skillyard.faces.cli.execution import perform, run_options
from skillyard.faces.cli.failures import Failure
from skillyard.faces.cli.inputs import read_text
from skillyard.faces.cli.streams import read_stdin


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
@run_options
def exec_(
    file: str, entrypoint: str | None, environment: str | None, packages: tuple[str, ...], **options: Any
) -> None:
    """Run Python source from FILE (- for standard input) in a fresh sandbox and print what it returned.

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
    perform("run_code", params, **options)


def _source(file: str, options: dict[str, Any]) -> str:
    if file != "-":
        return read_text(Path(file))
    if options["args_text"] == "-":
        raise Failure("standard input is the code, so it cannot be --args too")
    return read_stdin("code")
