"""Every command with what a shell, a cron job or a careless caller gives it: closed descriptors, a full disk, a reader
that is gone, bytes that are no text. None of it is an internal error, and each has its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import click
import pytest

from skillyard.faces.cli.main import cli
from tests.faces.cli.conftest import Cli
from tests.unit.client.yardserver import TOKEN, YardServer, completed

BOUND_S = 60
LATIN = b"# caf\xe9\ndef main(args): return 1\n"
READS = [
    ("exec", "-"),
    ("exec", "a.py", "--args", "-"),
    ("run", "a.b", "--args", "-"),
    ("token", "create", "ann", "--value", "-"),
    ("secret", "set", "A"),
    ("secret", "set", "A", "--from-file", "-"),
    ("secret", "key", "load", "a"),
]
"""What reads text from standard input."""
WRITES: list[tuple[str, ...]] = [
    ("version",),
    ("version", "--json"),
    ("--help",),
    ("runs", "list"),
    ("blob", "list"),
    ("run", "a.b"),
    ("exec", "a.py"),
    ("token", "list"),
    ("secret", "list"),
    ("secret", "key", "new"),
    ("skill", "list"),
    ("skill", "new", "a.b"),
    ("verify", "--list"),
]
"""What writes to standard output, and is fast here."""


@pytest.fixture
def place(yard: YardServer, tmp_path: Path) -> Path:
    """A working directory, and a server that says yes."""
    yard.methods["runs.list"] = lambda params: {"runs": [], "next_cursor": None}
    yard.methods["blobs.list"] = lambda params: {"blobs": [], "next_cursor": None}
    yard.methods["list_skills"] = lambda params: {"skills": [], "next_cursor": None}
    yard.methods["secrets.list"] = lambda params: {"secrets": [], "next_cursor": None}
    for method in ("execute_skill", "run_code"):
        yard.methods[method] = lambda params: completed({"n": 1}, logs_preview="said\n")
    (tmp_path / "a.py").write_text("def main(args): return {'n': 1}")
    return tmp_path


def shell(yard: YardServer, place: Path, line: str, *args: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    """``skillyard ARGS`` with the redirections of ``line``."""
    command = ["sh", "-c", f'exec "$@" {line}', "sh", sys.executable, "-m", "skillyard", *args]
    return subprocess.run(command, env=environ(yard, place), cwd=place, capture_output=True, timeout=BOUND_S, **more)


def environ(yard: YardServer, place: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("SKILLYARD_")},
        "SKILLYARD_URL": yard.url,
        "SKILLYARD_TOKEN": TOKEN,
        "SKILLYARD_DATA_DIR": str(place / "data"),
    }


@dataclass(frozen=True)
class Done:
    """The end of a command that ran in a fork."""

    words: tuple[str, ...]
    code: int
    stdout: bytes
    stderr: bytes


def leaves(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        yield words
        return
    with click.Context(command) as context:
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, (*words, name))


EACH = """
import gc, importlib, json, os, pkgutil, runpy, sys
import skillyard.faces.cli
for module in pkgutil.walk_packages(skillyard.faces.cli.__path__, "skillyard.faces.cli."):
    importlib.import_module(module.name)
gc.freeze()
for words in json.loads(sys.argv[1]):
    if not (pid := os.fork()):
        sys.argv = ["skillyard", *words]
        runpy.run_module("skillyard", run_name="__main__")
        os._exit(99)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with open("ended", "a") as ended:
        print(code, os.path.getsize("stdout"), os.path.getsize("stderr"), file=ended)
"""
"""Each command in a fork of one interpreter, which has the descriptors that it was started with."""


def each(yard: YardServer, place: Path, line: str, commands: list[tuple[str, ...]]) -> Iterator[Done]:
    """Yields the ends of ``skillyard WORDS`` for each of the commands, all with the redirections of ``line``."""
    cwd = Path(mkdtemp(dir=place))
    (cwd / "a.py").write_bytes((place / "a.py").read_bytes())
    command = ["sh", "-c", f'exec "$@" {line}', "sh", sys.executable, "-c", EACH, json.dumps(commands)]
    with (cwd / "stdout").open("wb") as stdout, (cwd / "stderr").open("wb") as stderr:
        more: Any = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": stderr}
        subprocess.run(command, env=environ(yard, place), cwd=cwd, timeout=100, check=True, **more)
    told = (cwd / "stdout").read_bytes(), (cwd / "stderr").read_bytes()
    ends = [tuple(map(int, end.split())) for end in (cwd / "ended").read_text().splitlines()]
    assert len(ends) == len(commands), told
    for words, (_, out, err), (code, out_end, err_end) in zip(commands, [(0, 0, 0), *ends], ends, strict=False):
        yield Done(words, code, told[0][out:out_end], told[1][err:err_end])


@pytest.mark.parametrize(
    "line", [*(pytest.param(line, marks=pytest.mark.long) for line in ("<&-", "2>&-")), "<&- 2>&-"]
)
def test_help_of_every_command_needs_neither_input_nor_error(yard: YardServer, place: Path, line: str) -> None:
    for done in each(yard, place, line, [(*words, "--help") for words in sorted(leaves(cli))]):
        assert (done.code, b"Usage:" in done.stdout, done.stderr) == (0, True, b""), done.words


@pytest.mark.parametrize(("line", "said"), [(">&-", b"standard output is closed"), (">/dev/full", b"No space left")])
def test_what_cannot_be_written_is_said(yard: YardServer, place: Path, line: str, said: bytes) -> None:
    for done in each(yard, place, line, WRITES):
        assert (done.code, said in done.stderr) == (1, True), done
        assert b"Exception ignored" not in done.stderr
        assert b"internal error" not in done.stderr


@pytest.mark.parametrize("line", [pytest.param("2>&-", marks=pytest.mark.long), "2>/dev/full", "<&- 2>&-"])
def test_standard_error_is_nobodys_duty(yard: YardServer, place: Path, line: str) -> None:
    for done in each(yard, place, line, WRITES):
        assert (done.code, bool(done.stdout)) == (0, True), done


def test_a_process_of_its_own_says_what_it_cannot_write(yard: YardServer, place: Path) -> None:
    """The forks above have imported all commands before."""
    closed, full = (shell(yard, place, line, "runs", "list") for line in (">&-", ">/dev/full"))
    assert (closed.returncode, b"standard output is closed" in closed.stderr) == (1, True), closed.stderr
    assert (full.returncode, b"No space left" in full.stderr) == (1, True), full.stderr
    for line in ("2>&-", "2>/dev/full", "<&- 2>&-"):
        done = shell(yard, place, line, "run", "a.b")
        assert (done.returncode, bool(done.stdout)) == (0, True), line


def test_all_three_may_be_closed(yard: YardServer, place: Path) -> None:
    """And nothing that is opened gets their numbers: the database of secrets would be written over by messages."""
    here = ("--url", "")
    assert shell(yard, place, "<&- >&- 2>&-", "secret", "list", *here).returncode == 1
    assert shell(yard, place, "<&- >&- 2>&-", "secret", "rm", "A", *here).returncode == 2
    done = shell(yard, place, "", "secret", "list", *here)
    assert (done.returncode, done.stdout[:4]) == (0, b"NAME"), done.stderr


@pytest.mark.parametrize("words", [*READS, ("blob", "put", "-"), ("skill", "publish", "-")], ids=" ".join)
def test_closed_standard_input_is_named(yard: YardServer, place: Path, words: tuple[str, ...]) -> None:
    done = shell(yard, place, "<&-", *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"skillyard: standard input is closed (give it a file with <, or a pipe)\n"


@pytest.mark.parametrize(
    "locale", [pytest.param("C.UTF-8", marks=pytest.mark.long), "C", pytest.param("POSIX", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_input_that_is_not_utf_8_is_refused_in_every_locale(
    yard: YardServer, place: Path, words: tuple[str, ...], locale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    done = shell(yard, place, "", *words, input=LATIN)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"must be UTF-8 text" in done.stderr
    assert (b"0xe9 at offset 5" in done.stderr) == (words[:2] != ("secret", "set"))


def test_code_in_a_file_that_is_not_utf_8_is_refused(yard: YardServer, place: Path) -> None:
    (place / "latin.py").write_bytes(LATIN)
    done = shell(yard, place, "", "exec", "latin.py")
    assert (done.returncode, b"latin.py: must be UTF-8 text" in done.stderr) == (2, True), done.stderr


def test_json_stays_json_where_output_is_not_utf_8(
    yard: YardServer, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    yard.methods["run_code"] = lambda params: completed({"n": "\u00e9\U0001f600"}, logs_preview="caf\u00e9\n")
    done = shell(yard, place, "", "exec", "a.py")
    assert (done.returncode, done.stdout) == (0, b'{\n  "n": "\\u00e9\\ud83d\\ude00"\n}\n')
    assert "caf\u00e9".encode() in done.stderr


@pytest.mark.parametrize("depth", [98, 500, 2000, 100_000])
def test_arguments_that_are_nested_too_deep_are_refused(run: Cli, depth: int) -> None:
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        done = run("run", "a.b", "--args", '{"a":' + opened * depth + "1" + closed * depth + "}")
        assert (done.exit_code, done.stdout) == (2, "")
        assert "args: must be at most 97 arrays and objects deep" in done.stderr


def test_a_dash_is_standard_output(run: Cli, yard: YardServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored = run("blob", "put", "-", stdin=b"\x00bytes").stdout.strip()
    done = run("blob", "get", stored, "-o", "-")
    assert (done.exit_code, done.stdout_bytes) == (0, b"\x00bytes")
    assert run("blob", "get", stored, "-o", "-", "--json").exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["publish", "install"])
def test_an_empty_directory_is_named(run: Cli, tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    done = run("skill", command, str(tmp_path / "empty"))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "holds no file that can be part of a skill" in done.stderr


@pytest.mark.parametrize("words", [("serve",), ("run", "a.b"), ("skill", "list"), ("skill", "test", "x")], ids=" ".join)
def test_a_directory_of_skills_that_is_not_there_is_refused(bare: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = bare(*words, "--skills-dir", str(tmp_path / "nosuch"))
    assert done.exit_code == 2
    assert "nosuch" in done.stderr
    if words == ("serve",):
        assert bare("serve", env={"SKILLYARD_SKILLS_DIRS": str(tmp_path / "nosuch")}).exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("skill", "revoke", "no.such"),
        ("skill", "revoke", "examples.csv.summarize@9.9.9"),
        ("skill", "unpin", "no.such"),
        ("skill", "withdraw", "no.such@1.0.0"),
        ("skill", "needs", "no.such"),
        ("runs", "cancel", "run_nosuch"),
        ("blob", "rm", "--json", "blob:nosuch"),
        ("token", "revoke", "nosuch"),
        ("secret", "rm", "NOSUCH"),
        ("environment", "remove", "nosuch"),
    ],
    ids=" ".join,
)
def test_a_name_that_nothing_has_fails(bare: Cli, words: tuple[str, ...]) -> None:
    done = bare(*words)
    assert done.exit_code == 2, done.output
    assert "no" in done.stderr
