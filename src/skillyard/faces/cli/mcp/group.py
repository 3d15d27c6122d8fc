"""``skillyard mcp`` serves one client on stdio; its commands set clients up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from skillyard.faces.cli.failures import Failure
from skillyard.faces.cli.mcp.install import install, uninstall
from skillyard.faces.cli.mcp.wrap.commands import unwrap, wrap
from skillyard.faces.cli.options import config_option, server_options

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Where


@click.group(invoke_without_command=True)
@click.option(
    "--profile",
    metavar="NAME",
    help="The profile of the settings that bounds the client, for work in this process. A server's tokens have theirs.",
)
@config_option
@server_options
@click.pass_context
def mcp(context: click.Context, profile: str | None, where: Where) -> None:
    """Serve skills and runs to one MCP client, on standard input and output.

    Clients start it by themselves: 'skillyard mcp install' puts it into their configuration. It passes messages to the
    server that --url names or that runs on the data directory; where none runs, it does the work in its own process.
    """
    if context.invoked_subcommand is None:
        _serve(where, profile)


mcp.add_command(install)
mcp.add_command(uninstall)
mcp.add_command(wrap)
mcp.add_command(unwrap)


def _serve(where: Where, profile: str | None) -> None:
    import asyncio

    from skillyard.faces.cli.target import running_server
    from skillyard.watches import new_event_loop, raise_descriptors

    server = running_server(where)
    if server is not None and profile is not None:
        raise Failure("--profile is for work in this process, and a server runs", "make a token with that profile")
    raise_descriptors()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        if server is not None:
            from skillyard.faces.mcp.bridge import bridge

            runner.run(bridge(server))
            return
        from skillyard.config.settings import load_settings
        from skillyard.faces.mcp.stdio import client_of, serve_stdio

        settings = load_settings(data_dir=where.data_dir, skills_dirs=where.skills_dirs or None)
        runner.run(serve_stdio(settings, client_of(settings, profile)))
