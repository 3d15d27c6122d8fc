"""The order for a stage and the content that a machine lacks."""

from __future__ import annotations

import io
import json
import os
import resource
import stat
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from skillyard.domain.errors import SandboxFault
from skillyard.domain.sandbox.content import Content, HostDirectory
from skillyard.domain.sandbox.spec import EnvironmentRef, Mount, Owner, SandboxSpec
from skillyard.domain.work.limits import Limits
from skillyard.sandbox.e2b import stage
from skillyard.sandbox.e2b.lifetime import MARGIN_S, span
from skillyard.sandbox.e2b.order import lacking, order, pack
from skillyard.sandbox.guest_argv import guest_bundle


def _unpacked(packed: IO[bytes], into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the stage unpack content below a directory."""
    packed.seek(0)
    (into / "guest.pyz").write_bytes(guest_bundle())
    (into / "content").mkdir()
    monkeypatch.setattr(stage, "AGENT", str(into / "guest.pyz"))
    monkeypatch.setattr(stage, "CONTENT", str(into / "content"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    stage.unpack(packed.fileno())


def test_content_comes_whole_and_is_readable_by_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, machine = tmp_path / "tree", tmp_path / "machine"
    (tree / "sub").mkdir(parents=True)
    machine.mkdir()
    (tree / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (tree / "sub" / "run.sh").chmod(0o6700)
    os.utime(tree / "sub" / "run.sh", (1_000_000_000, 1_000_000_000))
    (tree / "link").symlink_to("sub/run.sh")
    (tree / "large").write_bytes(bytes(range(256)) * 16_384)
    (tree / "empty").touch()
    os.mkfifo(tree / "pipe")
    (tmp_path / "file").write_text("one")
    with (tmp_path / "packed").open("w+b") as packed:
        pack({"a" * 64: tree, "b" * 64: tmp_path / "file"}, packed)
        _unpacked(packed, machine, monkeypatch)
        assert packed.read() == b""
    found = machine / "content" / ("a" * 64)
    assert {child.name for child in found.iterdir()} == {"sub", "link", "large", "empty"}
    assert (found / "large").read_bytes() == bytes(range(256)) * 16_384
    assert (found / "link").readlink() == Path("sub/run.sh")
    told = (found / "sub" / "run.sh").stat()
    assert (stat.S_IMODE(told.st_mode), told.st_mtime) == (0o555, 1_000_000_000)
    assert (machine / "content" / ("b" * 64)).read_text() == "one"
    assert stat.S_IMODE((machine / "content" / ("b" * 64)).stat().st_mode) == 0o444


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x"])
def test_content_that_leads_elsewhere_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = json.dumps([[name, stage.FILE, 0, 0]]).encode()
    with (tmp_path / "packed").open("w+b") as packed:
        packed.write(b"%08x" % len(index) + index)
        with pytest.raises(ValueError, match="leads elsewhere"):
            _unpacked(packed, tmp_path, monkeypatch)


def test_content_that_does_not_come_whole_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = json.dumps([["a", stage.FILE, 5, 0]]).encode()
    with (tmp_path / "packed").open("w+b") as packed:
        packed.write(b"%08x" % len(index) + index + b"four")
        with pytest.raises(ValueError, match="whole"):
            _unpacked(packed, tmp_path, monkeypatch)


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
