"""The pages for operators say what the program does: its metrics and log levels, and the unit file for systemd."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from skillyard.engine.observer import Event
from skillyard.engine.table import METHODS
from skillyard.faces.observability import logs, tracing
from skillyard.faces.observability.metrics import Metrics
from tests.docs.test_examples import ROOT

PAGE = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
SERVE = (ROOT / "src" / "skillyard" / "faces" / "serve.py").read_text(encoding="utf-8")
UNIT = ROOT / "deploy" / "skillyard.service"


def test_every_metric_is_on_the_page_with_its_type() -> None:
    metrics = Metrics(METHODS)
    for name in re.findall(r'_metrics\.gauge\("(\w+)"', SERVE):
        metrics.gauge(name, "read from a server", lambda: 0)
    known = re.findall(r"^# TYPE (skillyard_\w+) (\w+)$", metrics.render().decode(), re.MULTILINE)
    told = re.findall(r"^\| `(skillyard_\w+)` \| (\w+) \|", PAGE, re.MULTILINE)
    assert sorted(told) == sorted((name, kind) for name, kind in known if not name.endswith("_created"))


def test_every_event_is_on_the_page_at_its_level() -> None:
    for kind in get_args(Event):
        level = logging.getLevelName(logs._LEVELS.get(kind, logging.INFO)).lower()
        name = re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).lower()
        assert re.search(rf"^\| `{level}` \|.*`{name}`", PAGE, re.MULTILINE), f"{name} at {level}"


def test_every_attribute_of_a_span_is_on_the_page() -> None:
    source = Path(tracing.__file__).read_text(encoding="utf-8")
    named = set(re.findall(r'"((?:skillyard|rpc|enduser)\.\w+)"', source))
    assert [name for name in sorted(named) if f"`{name}`" not in PAGE] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    """Only the program and the user, which this machine lacks, are replaced."""
    text = UNIT.read_text(encoding="utf-8")
    here = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE)
    copy = tmp_path / UNIT.name
    copy.write_text(re.sub(r"^(User|Group)=.*\n", "", here, flags=re.MULTILINE), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, timeout=60, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, complaints) == (0, [])


def test_the_unit_gives_runs_the_time_to_end() -> None:
    from skillyard.config.settings import Settings

    stop_s = int(re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)[0])
    assert stop_s > Settings.model_construct().server.grace_s
