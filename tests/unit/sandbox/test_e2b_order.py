"""The order for a stage and the archive of content that a machine lacks."""

from __future__ import annotations

import io
import os
import resource
import tarfile
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import SandboxFault
from skillyard.domain.sandbox.content import Content, HostDirectory
from skillyard.domain.sandbox.spec import EnvironmentRef, Mount, Owner, SandboxSpec
from skillyard.domain.work.limits import Limits
from skillyard.sandbox.e2b.lifetime import MARGIN_S, span
from skillyard.sandbox.e2b.order import lacking, order, pack


def test_an_archive_has_plain_members_of_root_that_everybody_reads(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (tree / "sub" / "run.sh").chmod(0o6700)
    (tree / "link").symlink_to("sub/run.sh")
    os.mkfifo(tree / "pipe")
    (tmp_path / "file").write_text("one")
    packed = io.BytesIO()
    pack({"a" * 64: tree, "b" * 64: tmp_path / "file"}, packed)
    packed.seek(0)
    with tarfile.open(fileobj=packed) as archive:
        found = {one.name: one for one in archive.getmembers()}
    name = "a" * 64
    assert set(found) == {name, f"{name}/sub", f"{name}/sub/run.sh", f"{name}/link", "b" * 64}
    assert {one.uid for one in found.values()} == {0}
    assert found[f"{name}/sub/run.sh"].mode == 0o555
    assert found["b" * 64].mode == 0o444
    assert found[f"{name}/link"].linkname == "sub/run.sh"


def test_content_that_is_missing_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(SandboxFault, match="cannot be read"):
        pack({"a" * 64: tmp_path / "none"}, io.BytesIO())


def test_content_is_uploaded_once_and_not_where_the_template_has_it(tmp_path: Path) -> None:
    one, two = Content("1" * 64, tmp_path), Content("2" * 64, tmp_path)
    mounts = (Mount(one, "/skills/a"), Mount(one, "/skills/b"), Mount(HostDirectory(tmp_path), "/wheels"))
    spec = SandboxSpec(mounts=mounts, environment=EnvironmentRef("x", two))
    names = [name for name, *_ in order(spec, "0" * 64, "/g", 2)["mounts"]]
    assert names[:2] == ["1" * 64] * 2
    assert names[2].startswith("host-")
    assert set(lacking(spec, frozenset({"2" * 64}))) == set(names)


def test_an_order_bounds_what_the_agent_starts() -> None:
    limits = Limits(memory_mb=64, disk_mb=16, pids=10, cpus=8.0, timeout_ms=1000)
    given = order(SandboxSpec(limits=limits, owner=Owner.RUN), "0" * 64, "/g", 2)
    assert given["group"]["cpus"] == 2
    assert given["group"]["memory"] > (64 + 16) << 20
    assert given["agent"]["lease_s"] > 0
    assert str(resource.RLIMIT_DATA) in given["agent"]["limits"]
    assert order(SandboxSpec(limits=limits, owner=Owner.TASK), "0" * 64, "/g", 2)["agent"]["lease_s"] is None


@pytest.mark.parametrize(
    ("ahead", "told"),
    [(True, {"single": True}), (False, {}), (False, {"single": True, "command": True}),
     (False, {"single": True, "language": "bash"})],
)  # fmt: skip
def test_the_interpreter_of_a_run_begins_ahead_and_of_nothing_else(ahead: bool, told: dict[str, Any]) -> None:
    assert order(SandboxSpec(**told), "0" * 64, "/g", 2)["agent"]["ahead"] is ahead


def test_a_machine_lives_for_the_deadline_and_a_margin_at_most_what_the_provider_allows() -> None:
    assert span(60_000, 3600) == 60 + MARGIN_S
    assert span(24 * 3600 * 1000, 3600) == 3600
