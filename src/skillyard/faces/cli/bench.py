"""``skillyard bench``."""

from __future__ import annotations

from pathlib import Path

import click

from skillyard.faces.cli.options import bench_options


@click.command()
@bench_options
def bench(quick: bool, ready: int | None, output: Path | None, as_json: bool) -> None:
    """Measure what a run costs here, beside a plain python3 that does the same job.

    run_code in process and over HTTP, with sandboxes ready and on demand, with numpy and pandas preloaded, beside
    python3 -I without any walls. All take turns, so that ratios hold on a noisy machine. Works in a directory of
    its own.
    """
    from skillyard.bench.main import bench

    if str(output) == "-":
        output, as_json = None, True
    bench(quick, ready, output, as_json)
