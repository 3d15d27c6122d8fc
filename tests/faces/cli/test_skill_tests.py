"""``skillyard skill test``: real sandboxes, in this process and on a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from skillyard.bundled import EXAMPLES
from skillyard.faces.cli.main import cli
from skillyard.runtime import SyncRuntime
from skillyard.server_process import ServerProcess
from skillyard.skilltest.runner import Runner, read_subject
from skillyard.stores.skills.review import review_source
from tests.unit.domain.review.corpus import ReaderHere
from tests.unit.stores.skills.skilldirs import action, write

Test = Callable[..., Result]

MAIN = """\
import os, sys, time
from runtime import blobs, log


def main(args):
    log.info("began")
    if args.get("fail"):
        raise ValueError("told to fail")
    if "table" in args:
        return {"text": blobs.read_text(args["table"]), "made": blobs.write_text("x,y", kind="text/csv")}
    return {"n": args.get("n", 0), "key": os.environ.get("KEY"), "long": "x" * args.get("long", 0)}
"""
EXAMPLES_OF_ALL_SORTS = """\
[[example]]
name = "fits"
args = { n = 2 }
expect = { output = { n = 2 }, log = "began", blobs = [], schema = { required = ["n"] } }

[[example]]
name = "differs"
args = { n = 3 }
expect = { output = { n = 2 }, log = ["began", "ended"], schema = { properties = { n = { maximum = 2 } } } }

[[example]]
name = "fails"
args = { fail = true }
expect = { error = "ValueError", message = "told to" }

[[example]]
name = "reads"
blobs = { table = "tests/a.csv" }
expect = { output = { text = "a\\n1\\n" }, blobs = [{ kind = "text/csv", contains = "x,y", bytes = "782c" }] }

[[example]]
name = "has a secret"
secrets = { KEY = "for this run alone" }
expect = { output = { key = "[redacted]" } }

[[example]]
name = "has none"
expect = { output = { key = "absent" } }

[[example]]
name = "says much"
args = { long = 9000 }
expect = { output = { n = 0 }, schema = { properties = { long = { minLength = 9000 } } } }

[[example]]
name = "script"
script = "scripts/a.sh"
argv = ["{table}", "b c"]
stdin = "in"
blobs = { table = "tests/a.csv" }
expect = { exit = 4, stdout = ["a 1", "b c", "in"], stderr = "oops" }

[[example]]
name = "has too little time"
code = "def main(args):\\n    while True: pass"
limits = { timeout_ms = 300 }
expect = { error = "TimeoutError" }
"""
SCRIPT = 'echo $(cat "$1") "$2" $(cat)\necho oops >&2\nexit 4\n'


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Test:
    for name in ("SKILLYARD_URL", "SKILLYARD_TOKEN", "SKILLYARD_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))

    def invoke(*args: str) -> Result:
        return CliRunner().invoke(cli, ["skill", "test", *args])

    return invoke


@pytest.fixture(scope="module")
def skill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = action(tmp_path_factory.mktemp("skills"), main=MAIN)
    manifest = (directory / "skill.toml").read_text()
    permissions = '[permissions]\nsecrets = [{ name = "KEY", optional = true }]\n'
    files = {"tests/examples.toml": EXAMPLES_OF_ALL_SORTS, "tests/a.csv": "a\n1\n", "scripts/a.sh": SCRIPT}
    return write(directory, {**files, "skill.toml": manifest + permissions})


def results(done: Result) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(done.stdout)
    return {example["name"]: [d["path"] for d in example["differences"]] for example in told["examples"]}


def test_examples_of_all_sorts(run: Test, skill: Path) -> None:
    done = run(str(skill), "--keep-going", "--json")
    assert done.exit_code == 1, done.output
    assert results(done) == {
        "fits": [],
        "differs": ["output.n", "log", "output.n"],
        "fails": [],
        "reads": [],
        "has a secret": [],
        "has none": ["output.key"],
        "says much": [],
        "script": [],
        "has too little time": [],
    }
    told = json.loads(done.stdout)
    assert (told["passed"], told["failed"], told["not_run"]) == (7, 2, 0)
    assert (told["skill"], told["version"]) == ("acme.text.count", "1.0.0")
    assert len({example["run_id"] for example in told["examples"]}) == 9


def test_the_first_that_fails_is_the_last(run: Test, skill: Path) -> None:
    done = run(str(skill))
    assert done.exit_code == 1
    rows = [line.split()[:2] for line in done.stdout.splitlines()]
    assert rows[1:3] == [["fits", "passed"], ["differs", "failed"]]
    assert "not run" in done.stdout
    assert "output.n: expected 2" in done.stdout
    assert "got 3" in done.stdout
    assert "log: " in done.stdout
    assert "acme.text.count: 1 passed, 1 failed" in done.stderr


def test_what_cannot_be_tested(run: Test, tmp_path: Path) -> None:
    directory = action(tmp_path)
    assert run(str(directory)).exit_code == 2
    assert run(str(directory), "--allow-none").exit_code == 0
    assert run(str(directory), "--allow-none", "--only", "x").exit_code == 2
    write(directory, {"skill.toml": "name = 1\n"})
    done = run(str(directory))
    assert (done.exit_code, "skill.toml:1: error" in done.stdout) == (2, True)
    assert run(str(tmp_path / "absent")).exit_code == 2
    assert run(str(directory), "--url", "http://127.0.0.1:1", "--data-dir", str(tmp_path / "d")).exit_code == 2


def test_only_some_are_run_and_nothing_is_left(
    run: Test, skill: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    before = sorted(path.relative_to(skill) for path in skill.rglob("*"))
    done = run(str(skill), "--only", "fails", "--only", "fits", "--json")
    assert (done.exit_code, list(results(done))) == (0, ["fits", "fails"])
    assert list((tmp_path / "tmp").iterdir()) == []
    assert sorted(path.relative_to(skill) for path in skill.rglob("*")) == before
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("form", ["skills-protocol", "agent-skills"])
def test_a_new_skill_passes_its_own_test(run: Test, tmp_path: Path, form: str) -> None:
    name = "acme-counts" if form == "agent-skills" else "acme.counts"
    made = CliRunner().invoke(cli, ["skill", "new", name, "--dir", str(tmp_path), "--format", form])
    assert made.exit_code == 0, made.output
    done = run(made.stdout.strip(), "--json")
    assert done.exit_code == 0, done.output
    assert set(map(tuple, results(done).values())) == {()}


def test_a_required_skill_is_found(run: Test, skill: Path, tmp_path: Path) -> None:
    main = "from skills.acme.text.count import main as other\n\ndef main(args):\n    return other({'n': 7})\n"
    directory = action(tmp_path, "acme.text.more", main=main)
    manifest = (directory / "skill.toml").read_text()
    example = '[[example]]\nname = "a"\nexpect = { output = { n = 7 } }\n'
    write(directory, {"skill.toml": f'requires = ["acme.text.count"]\n{manifest}', "tests/examples.toml": example})
    alone = run(str(directory))
    assert (alone.exit_code, "--skills-dir names" in alone.stderr) == (2, True)
    done = run(str(directory), "--skills-dir", str(skill.parent))
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, skill: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data", skills_dirs=[skill.parent]) as server:
        yield server


def test_on_a_server(run: Test, skill: Path, server: ServerProcess, tmp_path: Path) -> None:
    """The same examples over HTTP; the server's own secrets hold there."""
    token = json.loads(
        CliRunner().invoke(cli, ["token", "create", "t", "--data-dir", str(server.data_dir), "--json"]).stdout
    )["token"]
    ways = ("--url", server.url, "--token", token)
    done = run(str(skill), *ways, "--json", "--keep-going")
    assert done.exit_code == 1, done.output
    assert [name for name, found in results(done).items() if found] == ["differs", "has a secret", "has none"]
    changed = write(
        tmp_path / "acme.text.count",
        {p.relative_to(skill).as_posix(): p.read_bytes() for p in skill.rglob("*") if p.is_file()},
    )
    write(changed, {"code/main.py": MAIN + "\n"})
    done = run(str(changed), *ways)
    assert (done.exit_code, "has other content under acme.text.count@1.0.0" in done.output) == (2, True)


PLAIN = ("examples.csv.summarize", "examples.leads.sync", "examples.text.keywords")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncRuntime]:
    with SyncRuntime(tmp_path_factory.mktemp("bundled") / "data", skills_dirs=[EXAMPLES]) as runtime:
        yield runtime


@pytest.mark.parametrize("name", PLAIN)
def test_the_bundled_examples_pass_theirs(runtime: Any, name: str) -> None:
    subject, _ = read_subject(EXAMPLES / name)
    assert subject is not None
    assert subject.examples
    found = list(Runner(runtime, subject, own=True).run(subject.examples, keep_going=True))
    assert [result for result in found if not result.passed] == []


def test_a_served_skill_is_reviewed_from_its_snapshot(runtime: Any) -> None:
    found = runtime.review_skill("examples.leads.sync")
    assert found["counts"]["danger"] == 0
    assert [f["rule"] for f in found["findings"] if f["level"] == "warning"] == ["need-secret", "need-secret"]
    assert found["needs"]["secrets"][0]["name"] == "EXAMPLES_CRM_KEY"
    assert found["digest"] == asyncio.run(review_source(EXAMPLES / "examples.leads.sync", ReaderHere()))["digest"]
