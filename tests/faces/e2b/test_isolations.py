"""Isolations other than native: what they have works, and what they lack is refused by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from e2b import PtySize
from e2b.exceptions import SandboxException

from tests.crash.server import Server, end_kept
from tests.faces.e2b.conftest import ENV, Yard


@contextmanager
def serving(place: Path, isolation: str) -> Iterator[Yard]:
    try:
        with Server(place / "data", **cast("Any", {**ENV, "SKILLYARD_POLICY__ISOLATION": isolation})) as server:
            yield Yard(server)
    finally:
        end_kept()


def test_landlock_is_refused_by_name(tmp_path: Path) -> None:
    with serving(tmp_path, "landlock") as yard:
        with pytest.raises(SandboxException, match="file system of its own"):
            yard.create()
        assert yard.api("GET", "/v2/sandboxes").json() == []


@pytest.mark.long
def test_gvisor_has_commands_files_and_code(tmp_path: Path) -> None:
    if "SKILLYARD_GVISOR__RUNSC" not in os.environ:
        pytest.skip("SKILLYARD_GVISOR__RUNSC names no runsc")
    with serving(tmp_path, "gvisor") as yard:
        made = yard.create(timeout=300)
        made.files.write("words", "b\na\n")
        assert made.commands.run("sort words; pwd").stdout == "a\nb\n/home/user\n"
        with pytest.raises(SandboxException, match="'gvisor' cannot be paused"):
            made.pause()
        with pytest.raises(SandboxException, match="'gvisor' has no pseudo-terminals"):
            made.pty.create(PtySize(rows=20, cols=80))
        port = {"Host": made.get_host(8000), "E2b-Traffic-Access-Token": str(made.traffic_access_token)}
        assert yard.ask("GET", "/", port).status_code == 404, "no port of a sandbox can be reached"
        assert made.kill()
