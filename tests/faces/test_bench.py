"""``python -m bench --quick`` and ``skillyard bench --quick`` for real: their shape, and that they measured."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.backends.components import COMPONENTS
from bench.backends.held import battery, conformance
from bench.backends.page import BEGIN, END, reasons, tables
from skillyard.sandbox.registry import BACKENDS
from skillyard.testing.sandbox_suite import CHECKS

PROJECT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(480)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output: Path = tmp_path_factory.mktemp("bench") / "bench.json"
    command = [sys.executable, "-m", "bench", "--quick", "--json", "--ready", "4", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=440, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    printed: dict[str, Any] = json.loads(done.stdout)
    written = json.loads(output.read_text())
    assert written["latency"] == printed["latency"]
    return printed


@pytest.mark.long
def test_the_command_measures_mcp() -> None:
    command = [sys.executable, "-m", "bench", "mcp", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=440, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["one program over /mcp: of the bytes of 50 calls over /mcp"] < 0.5


def by_id(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in rows}


def test_the_command_measures_runs_beside_a_plain_interpreter() -> None:
    command = [sys.executable, "-m", "skillyard", "bench", "--quick", "--json", "--ready", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    rows = by_id(found["latency"])
    assert {"ready", "on_demand", "http", "http_on_demand", "python", "python_bare"} == rows.keys()
    assert rows["python"]["vs_python"] == 1
    assert found["idle"]["sandboxes"] == 2
    assert "budget" not in found


def test_two_installations_are_compared_in_turns_and_by_process() -> None:
    """The other one is this one again, so processor time is about the same whatever the machine does."""
    command = [sys.executable, "-m", "skillyard", "bench", "--quick", "--json", "--against", sys.prefix]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    same = {row["mode"]: row for row in found["rows"] if row["subject"] == "against"}
    assert 0.5 < same["8 at once"]["ours_cpu"] < 2
    for row in found["profile"]:
        assert {"server", "keeper", "zygote", "sandboxes"} <= row.keys()


def test_it_says_what_and_where(report: dict[str, Any]) -> None:
    assert report["format"] == 4
    baseline = Path(report["host"]["baseline"]["python"])
    assert baseline == Path(os.path.realpath(baseline))
    assert "shims" not in baseline.parts
    assert report["quick"] is True
    processor = report["processor"]
    assert {row["judged"] for row in report["budget"]} == {not processor["too_busy_to_judge"]}
    subjects = {row["subject"] for row in processor["rows"]}
    assert "skillyard" in subjects
    assert "rough prototype" in subjects | {one["title"].removeprefix("the ") for one in report["skipped"]}
    assert all(row["p50_ms"] > 0 and row["cpu_ms"] > 0 for row in processor["rows"])
    assert report["host"]["cpus"] >= 1
    assert report["host"]["protections"]["seccomp"] == "kernel"


def test_ours_stand_beside_a_plain_interpreter(report: dict[str, Any]) -> None:
    rows = by_id(report["latency"])
    assert {"ready", "on_demand", "http", "http_on_demand", "python", "python_bare", "fork"} <= rows.keys()
    for row in rows.values():
        assert row["samples"] >= row["rounds"] >= 1
        assert 0 < row["min_ms"] <= row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        assert row["vs_python"] > 0
    assert rows["python"]["vs_python"] == 1


def test_the_numbers_are_plausible(report: dict[str, Any]) -> None:
    """Loosely: a machine that is busy with other things stretches everything."""
    rows = by_id(report["latency"])
    assert rows["ready"]["min_ms"] <= rows["on_demand"]["p50_ms"] * 1.5
    assert rows["ready"]["min_ms"] <= rows["http"]["p50_ms"] * 1.5
    assert rows["ready"]["vs_python"] < 1


def test_throughput_is_there_for_each_concurrency(report: dict[str, Any]) -> None:
    levels = {row["concurrency"] for row in report["throughput"] if row["id"] == "ready"}
    assert levels == {1, 2, 8}
    assert all(row["runs_per_s"] > 0 for row in report["throughput"])
    beside = {row["id"]: row["vs_python"] for row in report["throughput"] if row["concurrency"] == 8}
    assert beside["python"] == 1
    assert beside["http"] > 0


def test_the_ways_out_stand_beside_a_direct_connection_and_a_plain_proxy(report: dict[str, Any]) -> None:
    rows = by_id(report["network"])
    assert {"direct", "proxy", "gate", "gate_connect", "direct_tls", "gate_tls", "gate_secret"} <= rows.keys()
    for row in rows.values():
        assert row["mib_per_s"] > 0
        assert row["connection_ms"] > 0
        assert row["vs_direct"] > 0
        assert row["vs_proxy"] > 0
    assert rows["direct"]["vs_direct"] == rows["direct_tls"]["vs_direct"] == 1
    assert report["policy_added_ms"] is not None


def test_a_catalogue_is_measured(report: dict[str, Any]) -> None:
    catalogue = report["catalogue"]
    assert catalogue["bundles"] == 5 * catalogue["skills"] == 200
    assert catalogue["start_s"] > 0
    assert catalogue["first_start_s"] > 0
    assert {row["id"] for row in catalogue["asked"]} == {"page", "page_http", "first", "again", "first_http"}
    assert 0 < catalogue["noticed_s"] < 60
    assert catalogue["index_bytes"] > 0


def test_commands_and_tasks_are_measured(report: dict[str, Any]) -> None:
    told = report["commands_and_tasks"]
    assert told["run_cmd true: of bash -c true"] > 1
    assert told["8 tasks queued and drained, each: of run_cmd true"] > 0
    assert told["8 watchers of one task, ms of processor time a second"] >= 0
    assert told["8 tasks without a watcher, ms of processor time a second"] >= 0
    assert told["lacking"].keys() | told["times"].keys() >= {"bwrap bash -c true", "srt bash -c true"}


def test_ports_of_services_are_measured(report: dict[str, Any]) -> None:
    told = report["services"]
    assert told["one small answer: the median adds, ms"] > 0
    for title in ("a large answer", "a large answer in chunks", "a large request"):
        assert told[f"{title}: of a plain connection's MiB/s"] > 0
    assert told["times"].keys() > {"one small answer"}


def test_waiting_and_beginning_are_measured(report: dict[str, Any]) -> None:
    assert report["idle"]["sandboxes"] == 4
    assert report["idle"]["processes"] >= 4
    titles = {row["title"] for row in report["startup"]}
    assert {"python3 -c pass", "import skillyard", "skillyard version", "skillyard runs list"} <= titles
    assert report["server_start"]["p50_ms"] > 0


def test_each_line_of_the_budget_is_judged_or_left_open(report: dict[str, Any]) -> None:
    for line in report["budget"]:
        assert line["met"] == (
            None
            if line["measured"] is None or not line["judged"]
            else (line["measured"] >= line["limit"] if line["at_least"] else line["measured"] <= line["limit"])
        )
    open_lines = {line["name"] for line in report["budget"] if line["met"] is None}
    assert "numpy and pandas preloaded, ready: of a run without" in open_lines
    assert "numpy preloaded, ready: of a run without packages" in open_lines


def test_who_is_absent_is_named_with_a_reason(report: dict[str, Any]) -> None:
    measured = {row["id"] for row in report["latency"]}
    for one in report["skipped"]:
        assert one["reason"]
        assert one["id"] not in measured or one["reason"].startswith("gave up")
    assert {"bubblewrap", "sandlock", "srt", "docker"} <= measured | {one["id"] for one in report["skipped"]}


def test_backends_are_compared(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nearlier\n{END}\nafter\n")
    command = [sys.executable, "-m", "bench", "backends", "--quick", "--only", "native", "--part", "programs"]
    command += ["--part", "cost", "--results", str(tmp_path / "results"), "--page", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=440, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    before, between, after = re.split(f"{re.escape(BEGIN)}|{re.escape(END)}", page.read_text())
    assert (before, after) == ("before\n", "\nafter\n")
    assert "earlier" not in between
    rows = [line.split(" | ") for line in between.splitlines() if line.startswith("| `native`")]
    assert len(rows) == 2
    assert rows[0][-1] == "3 of 3 |"
    assert rows[1][2] == "1.0", "of native, native costs once"
    found = json.loads((tmp_path / "results" / "native.json").read_text())
    assert found["cost"]["seconds"]["session"]["ours"] > 0
    assert found["host"]["processors"] >= 1


def test_each_backend_has_a_component() -> None:
    assert COMPONENTS.keys() == BACKENDS.keys()


def test_a_reason_stands_where_all_of_it_fits() -> None:
    for one in reasons():
        assert one["isolations"]
        assert set(one["isolations"]) <= BACKENDS.keys()
        for isolation, fits, explained in (
            (one["isolations"][0], True, True),
            (one["isolations"][0], False, False),
            (next(name for name in BACKENDS if name not in one["isolations"]), True, False),
        ):
            text = tables({isolation: {one["of"]: _measured(one, fits=fits)}}, [isolation])
            assert (one["why"] in text) == explained, (one, isolation, fits)


def _measured(one: Mapping[str, Any], *, fits: bool) -> dict[str, Any]:
    """Returns results that a reason explains, or others of the same name."""
    gave = one["gave"] if fits else "something else"
    match one["of"]:
        case "programs":
            return {"others": [[one["what"], "what the page says", gave]], "programs": 1, "as_told": 0}
        case "battery":
            return {"counts": {}, "failed": [[one["what"], gave, "what it saw"]]}
        case "conformance":
            return {"refused": [], "beyond": [], "failed": [[one["what"], gave]]}
        case _:
            each = {"ours": 9.0 if fits else 1.0, "native": 1.0, "bare": 1.0}
            return {"runs": 1, "seconds": dict.fromkeys(("sandbox", "run", "session", "runs"), each)}


def test_a_battery_goes_on_where_it_was_ended(tmp_path: Path) -> None:
    """It tries nothing again that is noted, but for an attack that was broken."""
    journal = tmp_path / "native.battery.jsonl"
    journal.write_text('["files-search", "ESCAPED", "noted"]\n["files-places", "broken", "noted"]\n')
    with COMPONENTS["native"](tmp_path) as component:
        found = asyncio.run(battery("native", component, journal, lambda _: None, quick=True))
    assert sorted(found["failed"]) == [["files-places", "broken", "noted"], ["files-search", "ESCAPED", "noted"]]
    assert found["counts"]["contained"] > 1
    names = [json.loads(line)[0] for line in journal.read_text().splitlines()]
    assert len(names) == len(set(names)) == sum(found["counts"].values())


def test_a_check_that_holds_is_not_beyond_its_backend(tmp_path: Path) -> None:
    """A reason that is not true any more would hide it."""
    journal, tried = tmp_path / "native.conformance.jsonl", "endings-signal_is_told"
    assert tried in [check.id for check in CHECKS]
    journal.write_text("".join(json.dumps([check.id, "passed", ""]) + "\n" for check in CHECKS if check.id != tried))
    with COMPONENTS["native"](tmp_path) as component:
        wary = replace(component, beyond={tried: "it was so once"})
        found = asyncio.run(conformance("native", wary, tmp_path / "home", journal, lambda _: None, quick=True))
    assert (found["beyond"], found["failed"]) == ([], [])
    assert json.loads(journal.read_text().splitlines()[-1]) == [tried, "passed", ""]


@pytest.mark.long
def test_what_failed_is_tried_again_alone(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    noted = ('["files-search", "ESCAPED", "noted"]', '["files-places", "contained", ""]')
    (results / "native.battery.done.jsonl").write_text("\n".join(noted) + "\n")
    command = [sys.executable, "-m", "bench", "backends", "--quick", "--only", "native", "--part", "battery"]
    done = subprocess.run(
        [*command, "--failed", "--results", str(results)], capture_output=True, text=True, timeout=440, cwd=PROJECT
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((results / "native.json").read_text())["battery"]
    assert found["failed"] == []
    lines = (results / "native.battery.done.jsonl").read_text().splitlines()
    assert noted[0] not in lines
    assert lines[0] == noted[1]


def test_a_component_that_is_lacking_is_named_in_the_table() -> None:
    text = tables({"srt": {"lacking": "srt is not installed"}}, ["srt"])
    assert "| `srt` | srt is not installed |" in text
    assert "of native" in text
