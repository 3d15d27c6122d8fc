"""``skillyard``: commands by name, loaded when called."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from skillyard._version import __version__
from skillyard.faces.cli.failures import exit_codes_help, reported
from skillyard.faces.cli.inputs import stand_in, take_variables

_HERE = "skillyard.faces.cli"
_GROUPS = ("environment", "blob", "runs", "job", "service", "session", "policy", "secret", "token", "image")
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": (f"{_HERE}.commands.installation", "serve"),
    "run": (f"{_HERE}.commands.run", "run"),
    "exec": (f"{_HERE}.commands.run", "exec_"),
    "sh": (f"{_HERE}.commands.task", "sh"),
    "task": (f"{_HERE}.commands.task", "task"),
    "skill": (f"{_HERE}.skill.group", "skill"),
    "mcp": (f"{_HERE}.mcp.group", "mcp"),
    "tools": (f"{_HERE}.mcp.tools", "tools"),
    "jail": (f"{_HERE}.jail.group", "jail"),
    **{name: (f"{_HERE}.commands.{name}", name) for name in _GROUPS},
    **{name: (f"{_HERE}.commands.backup", name) for name in ("backup", "restore")},
    "drain": (f"{_HERE}.commands.installation", "drain"),
    "doctor": (f"{_HERE}.commands.doctor", "doctor"),
    **{name: (f"{_HERE}.commands.installation", name) for name in ("verify", "bench", "version")},
}
"""The module and the name of each command."""


class Commands(click.Group):
    """Imports a command's module only when the command is called, and reports what it raises."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        with reported():
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        sys.exit(status if isinstance(status, int) else 0)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=exit_codes_help(),
)
@click.version_option(__version__, "-V", "--version", prog_name="skillyard", message="%(prog)s %(version)s")
@click.option(
    "--env-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take variables from this file, such as a .env; those of the environment go before.",
)
def cli(env_file: Path | None) -> None:
    """Store agent skills and blobs, and run skills and code in kernel-isolated sandboxes.

    Commands talk to the server that --url or SKILLYARD_URL names, else to the one running on the data
    directory, else they do the work in their own process.
    """
    if env_file is not None:
        take_variables(env_file)


def main() -> None:
    """Runs the ``skillyard`` script."""
    gc.set_threshold(100_000)  # imports leave no garbage, and were looked through a hundred times
    stand_in()
    cli(prog_name="skillyard")
