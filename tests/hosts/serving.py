"""A server on a host that lacks something."""

from __future__ import annotations

import re
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.hosts.conftest import BOUND_S, Host

_READY = re.compile(r"skillyard is ready at (http://127\.0\.0\.1:(\d+))\n")


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    port: int
    process: subprocess.Popen[str]


@contextmanager
def serving(host: Host, *knocks: str, env: dict[str, str] | None = None) -> Iterator[Served]:
    """``skillyard serve`` while the block lasts; it must stop well."""
    log = host.data_dir.with_name("server.log")
    with log.open("w") as errors:
        process = subprocess.Popen(
            host.command("serve", "--port", "0", knocks=knocks),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=host.environment(env),
        )
    assert process.stdout is not None
    try:
        readable, _, _ = select.select([process.stdout], [], [], BOUND_S)
        found = _READY.fullmatch(process.stdout.readline() if readable else "")
        assert found, log.read_text()
        yield Served(found[1], int(found[2]), process)
        process.terminate()
        assert process.wait(BOUND_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait(BOUND_S)
        process.stdout.close()
