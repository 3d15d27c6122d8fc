"""``skillyard bench``."""

from __future__ import annotations

from pathlib import Path

import click

from skillyard.faces.cli.options import json_option


@click.command()
@click.option("--quick", is_flag=True, help="Seconds instead of a minute or two, and no numpy: a sign of life.")
@click.option(
    "--ready",
    type=click.IntRange(1, 4000),
    metavar="N",
    help="Sandboxes to hold ready when their idle cost is measured.  [default: 100]",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Write the numbers there as JSON, too; - is --json.",
)
@json_option
def bench(quick: bool, ready: int | None, output: Path | None, as_json: bool) -> None:
    """Measure what a run costs here, beside others that do the same job.

    run_code in process and over HTTP, with sandboxes ready and on demand, with numpy and pandas preloaded;
    bytes and connections through the gate, and what a network policy adds to a run;
    beside a plain python3 -I without any walls and those of bubblewrap, sandlock, srt and docker that are
    installed. All take turns, so that ratios hold on a noisy machine. Works in a directory of its own.
    """
    from skillyard.bench.main import bench

    if str(output) == "-":
        output, as_json = None, True
    bench(quick, ready, output, as_json)
