"""The bundled examples with packages of their own, from end to end: published over HTTP, approved, built from the
package index of the world, run, exported, and the same again on a server without an index."""

from __future__ import annotations

import csv
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from skillyard.bundled import EXAMPLES
from skillyard.client.sync import SyncClient
from skillyard.server_process import ServerProcess
from tests.unit.engine.packages import real_index

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(real_index.why_not()), reason=real_index.why_not() or "-"),
]
AGAIN = 7


def sales() -> bytes:
    rows = ["month,region,sales,cost", *(f"{n % 12 + 1},r{n % 4},{n * 3 % 97},{n * 0.5}" for n in range(200))]
    return "\n".join(rows).encode()


def churn() -> bytes:
    """Who is old and pays nothing leaves, but for every seventh."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["id", "age", "plan", "churned"])
    for n in range(400):
        age, plan = 18 + n * 37 % 60, ("free", "pro", "team")[n % 3]
        leaves = (age > 50 or plan == "free") != (n % 7 == 0)
        table.writerow([f"user {n}", age if n % 11 else "", plan, "yes" if leaves else "no"])
    return text.getvalue().encode()


def is_gif(_output: dict[str, Any], made: bytes) -> bool:
    return made.startswith(b"GIF89a") and made.count(b"\x21\xf9\x04") == 24


def is_workbook(output: dict[str, Any], made: bytes) -> bool:
    with zipfile.ZipFile(io.BytesIO(made)) as parts:
        sheet = parts.read("xl/worksheets/sheet1.xml").decode()
        chart = "xl/charts/chart1.xml" in parts.namelist()
    return chart and "<f>SUM(C2:C201)</f>" in sheet and output["totals"]["sales"] == "=SUM(C2:C201)"


def is_better_than_a_guess(output: dict[str, Any], made: bytes) -> bool:
    report = json.loads(made)
    return output["score"] > output["baseline"] + 0.1 and report["left_out"] == ["id"] and len(report["scores"]) == 5


@dataclass(frozen=True)
class Example:
    """``data`` becomes the blob of its arguments; ``made`` names the blob in its output, which ``good`` judges."""

    name: str
    args: dict[str, Any]
    data: bytes
    made: str
    good: Callable[[dict[str, Any], bytes], bool]


BALL = {"kind": "disc", "from": [20, 30], "to": [140, 30], "ease": "bounce"}
WAIT = {"kind": "text", "from": [80, 48], "size": 10, "text": "please wait"}
GIF = Example("examples.gif.animate", {"size": [160, 60], "shapes": [BALL, WAIT]}, b"", "gif_blob", is_gif)
SHEET = Example("examples.sheet.build", {"title": "Sales"}, sales(), "workbook_blob", is_workbook)
MODEL = Example("examples.model.fit", {"target": "churned"}, churn(), "report_blob", is_better_than_a_guess)


class Yard:
    """A server and its client. ``packages`` of the settings by name."""

    def __init__(self, home: Path, packages: dict[str, Any]) -> None:
        values = {f"SKILLYARD_PACKAGES__{key.upper()}": _text(value) for key, value in packages.items()}
        self.server = ServerProcess(home, settings=values)

    def __enter__(self) -> Yard:
        self.server.start()
        try:
            self.client = SyncClient(data_dir=self.server.data_dir, timeout=600)
        except BaseException:
            self.server.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.server.stop()

    def run(self, example: Example) -> Run:
        args, inputs = dict(example.args), []
        if example.data:
            args["blob"] = self.client.put_blob(example.data, "text/csv").blob_id
            inputs = [args["blob"]]
        began = time.perf_counter()
        ran = self.client.execute_skill(example.name, args, input_blobs=inputs)
        took = time.perf_counter() - began
        assert ran.ok, dict(ran)
        made = self.blob(ran.output[example.made])
        assert example.good(ran.output, made), ran.output
        return Run(took, {key: value for key, value in ran.output.items() if not key.endswith("_blob")}, made)

    def blob(self, blob_id: str) -> bytes:
        sink = io.BytesIO()
        self.client.get_blob(blob_id, sink)
        return sink.getvalue()

    def median_s(self, code: str, skills: list[str]) -> float:
        times = []
        for _ in range(AGAIN + 1):
            began = time.perf_counter()
            assert self.client.run_code(code, {}, mount_skills=skills).ok
            times.append(time.perf_counter() - began)
        return statistics.median(times[1:])


@dataclass(frozen=True)
class Run:
    seconds: float
    output: dict[str, Any]
    made: bytes


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


@pytest.fixture
def online(tmp_path: Path) -> Iterator[Yard]:
    with Yard(tmp_path / "online", real_index.packages()) as yard:
        yield yard


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Writes a line that people see, also when all is well."""

    def tell(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}")

    return tell


def refused(yard: Yard, example: Example) -> str:
    """Why a published skill that nobody approved does not run."""
    ran = yard.client.execute_skill(example.name, dict(example.args) | ({"blob": "blob:none"} if example.data else {}))
    assert (ran["status"], ran["error"]["type"]) == ("failed", "PolicyRefused"), dict(ran)
    return str(ran["error"]["message"])


def wheels_of(yard: Yard, example: Example, directory: Path) -> Path:
    """What an offline server installs from, as the online one hands it out."""
    directory.mkdir()
    given = yard.client.call("environments.wheels", {"skill": example.name})
    with tarfile.open(fileobj=io.BytesIO(yard.blob(given["archive"]))) as archive:
        for wheel in archive:
            file = archive.extractfile(wheel)
            assert file is not None
            assert wheel.name == Path(wheel.name).name
            (directory / wheel.name).write_bytes(file.read())
    return directory


def own_examples(yard: Yard, example: Example) -> str:
    """What ``skillyard skill test`` says of the published version, on that server."""
    command = [
        sys.executable,
        "-m",
        "skillyard",
        "skill",
        "test",
        str(EXAMPLES / example.name),
        "--url",
        yard.server.url,
    ]
    token = (yard.server.data_dir / "token").read_text().strip()
    tested = subprocess.run(
        command, env={**os.environ, "SKILLYARD_TOKEN": token}, capture_output=True, text=True, timeout=300
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    return tested.stderr


@pytest.mark.parametrize(
    "example",
    [SHEET, pytest.param(GIF, marks=pytest.mark.long), pytest.param(MODEL, marks=pytest.mark.long)],
    ids=lambda example: example.name,
)
def test_the_whole_story(example: Example, online: Yard, tmp_path: Path, told: Callable[[str], None]) -> None:
    published = online.client.publish_skill(EXAMPLES / example.name)
    assert example.name in refused(online, example)
    online.client.call("catalogue.approve", {"name": example.name, "version": "1.0.0", "note": "looked at it"})
    first = online.run(example)
    later = [online.run(example) for _ in range(AGAIN)]
    assert all(run.output == first.output for run in later)
    assert {run.made for run in later} == {first.made} or example is SHEET  # a workbook says when it was made

    assert own_examples(online, example).endswith(", 0 failed\n")

    online.client.export_skill(example.name, tmp_path / "bundle.tar.gz", version="1.0.0")
    wheels = wheels_of(online, example, tmp_path / "wheels")
    nowhere = {"wheels": str(wheels), "offline": True, "index": "http://127.0.0.1:9/simple"}
    with Yard(tmp_path / "offline", nowhere) as offline:
        assert offline.client.publish_skill(tmp_path / "bundle.tar.gz").digest == published.digest
        offline.client.call("catalogue.approve", {"name": example.name, "version": "1.0.0"})
        there = offline.run(example)
        assert there.output == first.output
        assert there.made == first.made or example is SHEET

    bare = online.median_s("def main(args): return {}", [])
    imported = online.median_s(f"import skills.{example.name}\ndef main(args): return {{}}", [example.name])
    told(_line(example, first, later, there, bare, imported))


def _line(example: Example, first: Run, later: list[Run], offline: Run, bare: float, imported: float) -> str:
    second, middle = later[0].seconds, statistics.median(run.seconds for run in later)
    return (
        f"{example.name}: first run {first.seconds:.2f} s (offline {offline.seconds:.2f} s), "
        f"second {second * 1000:.0f} ms, median of {AGAIN} {middle * 1000:.0f} ms"
        f" = {middle / bare:.1f} of a bare run ({bare * 1000:.1f} ms); "
        f"its imports alone {imported * 1000:.1f} ms = {imported / bare:.1f}"
    )
