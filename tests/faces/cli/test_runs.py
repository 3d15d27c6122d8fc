"""``run``, ``exec`` and ``runs`` against a scripted server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.unit.client.yardserver import Refusal, YardServer, completed, failed

Cli = Callable[..., Result]


def asked(yard: YardServer) -> dict[str, Any]:
    return yard.calls[-1][1]


def test_a_run_prints_its_output_and_keeps_the_rest_off_stdout(run: Cli, yard: YardServer) -> None:
    yard.methods["execute_skill"] = lambda params: completed(
        {"größe": 3}, logs_preview="[info] hello\n" * 160, output_blobs=["blob:made"], logs_blob="blob:log"
    )
    result = run("run", "a.b", "--args", '{"x": 1}', "--version", "1.2.0", "--timeout", "1.5")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"größe": 3})
    assert "größe" in result.stdout
    assert asked(yard) == {"name": "a.b", "version": "1.2.0", "args": {"x": 1}, "timeout_ms": 1500}
    assert result.stderr.splitlines() == [
        *["[info] hello"] * 160,
        "run_1 completed: Completed in 3 ms",
        "blob blob:made",
        "whole log: skillyard runs logs run_1",
    ]


def test_a_version_is_named_as_elsewhere(run: Cli, yard: YardServer) -> None:
    run("run", "a.b@1.2.0")
    assert [params["version"] for method, params in yard.calls if method == "execute_skill"] == ["1.2.0"]
    differs = run("run", "a.b@1.2.0", "--version", "1.3.0")
    assert (differs.exit_code, "another version" in differs.stderr) == (2, True)


@pytest.mark.parametrize(
    ("refused", "said"), [(0, ""), (1, "a connection was refused: "), (3, "3 connections were refused: ")]
)
def test_a_run_that_went_on_without_a_connection_says_so(run: Cli, yard: YardServer, refused: int, said: str) -> None:
    yard.methods["run_code"] = lambda params: completed({"n": 1}, network={"allowed": 2, "refused": refused})
    result = run("exec", "-", stdin="def main(args): return {}")
    assert result.exit_code == 0
    assert said in result.stderr
    assert ("skillyard runs show run_1" in result.stderr) == bool(refused)


def test_json_is_the_whole_run_object_alone(run: Cli, yard: YardServer) -> None:
    yard.methods["execute_skill"] = lambda params: completed({"n": 1}, logs_preview="noise")
    result = run("run", "a.b", "--json")
    assert json.loads(result.stdout) == completed({"n": 1}, logs_preview="noise")
    assert result.stderr == ""


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_failed_run_exits_with_1(run: Cli, yard: YardServer, flags: tuple[str, ...]) -> None:
    yard.methods["run_code"] = lambda params: failed("ValueError", "bad column")
    result = run("exec", "-", *flags, stdin="def main(args): ...")
    assert result.exit_code == 1
    if flags:
        assert json.loads(result.stdout)["error"]["type"] == "ValueError"
    else:
        assert result.stdout == ""
        assert "ValueError: bad column" in result.stderr


def test_the_traceback_of_the_code_is_shown(run: Cli, yard: YardServer) -> None:
    trace = 'Traceback\n  File "main.py", line 1\nKeyError: \x1b[31m'
    error = {"type": "KeyError", "message": "x", "traceback": trace}
    yard.methods["run_code"] = lambda params: failed("KeyError", "x") | {"error": error}
    result = run("exec", "-", stdin="code")
    assert 'File "main.py", line 1' in result.stderr
    assert "\x1b" not in result.stderr


def test_who_lacks_a_module_is_told_where_packages_come_from(run: Cli, yard: YardServer) -> None:
    yard.methods["run_code"] = lambda params: failed("ModuleNotFoundError", "No module named 'numpy'")
    assert "--package NAME" in run("exec", "-", stdin="code").stderr
    lacking = failed("ModuleNotFoundError", "No module named 'numpy'") | {"skill": "a.b"}
    yard.methods["execute_skill"] = lambda params: lacking
    assert "--package" not in run("run", "a.b").stderr


def test_exec_passes_everything(run: Cli, yard: YardServer, tmp_path: Path) -> None:
    yard.methods["run_code"] = lambda params: completed()
    (tmp_path / "code.py").write_text("def go(args): ...")
    (tmp_path / "args.json").write_text('{"a": [1]}')
    result = run(
        *("exec", str(tmp_path / "code.py"), "--args", f"@{tmp_path / 'args.json'}"),
        *("--entrypoint", "go", "--environment", "data"),
        *("--mount-skill", "a.b", "--mount-skill", "c"),
        *("--limit", "memory_mb=64", "--limit", "cpus=0.5"),
    )
    assert result.exit_code == 0, result.stderr
    assert asked(yard) == {
        "language": "python",
        "code": "def go(args): ...",
        "args": {"a": [1]},
        "entrypoint": "go",
        "environment": "data",
        "mount_skills": ["a.b", "c"],
        "limits": {"memory_mb": 64, "cpus": 0.5},
    }


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "sales.csv"
    path.write_text("a,b\n1,2\n")
    return path


def test_a_keyed_blob_becomes_an_argument(run: Cli, yard: YardServer, csv: Path) -> None:
    yard.methods["execute_skill"] = lambda params: completed()
    assert run("run", "a", "--blob", f"data={csv}", "--args", '{"top": 5}').exit_code == 0
    assert asked(yard)["args"] == {"top": 5, "data": "blob:t0"}
    assert asked(yard)["input_blobs"] == ["blob:t0"]
    assert yard.blobs["blob:t0"] == ("text/csv", b"a,b\n1,2\n")


def test_a_placeholder_becomes_the_id(run: Cli, yard: YardServer, csv: Path) -> None:
    yard.methods["execute_skill"] = lambda params: completed()
    args = '{"in": {"files": ["{blob:sales.csv}", "see {blob:sales.csv}"]}}'
    assert run("run", "a", "--blob", str(csv), "--args", args).exit_code == 0
    assert asked(yard)["args"] == {"in": {"files": ["blob:t0", "see blob:t0"]}}


def test_a_blob_that_nothing_names_joins_the_list(run: Cli, yard: YardServer, csv: Path) -> None:
    yard.methods["execute_skill"] = lambda params: completed()
    result = run("run", "a", "--blob", str(csv), "--blob", "blob:stored", "--blob", "k=-", stdin="piped")
    assert result.exit_code == 0
    assert asked(yard)["args"] == {"blobs": ["blob:t0", "blob:stored"], "k": "blob:t1"}
    assert asked(yard)["input_blobs"] == ["blob:t0", "blob:stored", "blob:t1"]
    assert yard.blobs["blob:t1"][1] == b"piped"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--args", "{"), "args: not JSON"),
        (("--args", "[1]"), "args: must be a JSON object (got array of 1)"),
        (("--args", '{"x": NaN}'), "args: not JSON: NaN is not allowed"),
        (("--args", "@/nonexistent"), "/nonexistent: No such file"),
        (("--args", '{"x": "{blob:gone.csv}"}'), "args: no --blob is named 'gone.csv'"),
        (("--args", '{"x": 1}', "--blob", "x=blob:a"), "blob: args has a key 'x' already"),
        (("--blob", "blob:a", "--blob", "blob:a"), "blob: two inputs have the same name"),
        (("--blob", "/nonexistent.csv"), "/nonexistent.csv: No such file"),
        (("--limit", "memory_mb=lots"), "limit: must be NAME=NUMBER"),
        (("--timeout", "0"), "--timeout"),
        (("--skills-dir", "."), None),
    ],
)
def test_bad_input_is_one_line_exits_with_2_and_runs_nothing(
    run: Cli, yard: YardServer, args: tuple[str, ...], message: str | None
) -> None:
    if message is None:
        args, message = (*args, "--url", yard.url), "does not go with --url"
    result = run("run", "a", *args)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert yard.calls == []
    assert yard.blobs == {}


@pytest.mark.parametrize(
    ("code", "kind", "status"),
    [
        (-32602, "SkillNotFound", 2),
        (-32001, "Unauthenticated", 3),
        (-32003, "Forbidden", 4),
        (-32004, "ProtectionMissing", 4),
        (-32005, "Busy", 5),
        (-32603, "InternalError", 70),
    ],
)
def test_exit_codes_tell_errors_apart(run: Cli, yard: YardServer, code: int, kind: str, status: int) -> None:
    def refuse(params: dict[str, Any]) -> dict[str, Any]:
        raise Refusal(code, "what went\nwrong", type=kind)

    yard.methods["execute_skill"] = refuse
    result = run("run", "a")
    assert (result.exit_code, result.stdout) == (status, "")
    assert result.stderr.startswith("skillyard: what went wrong")
    assert result.stderr.count("\n") == 1


def test_no_server_exits_with_3(bare: Cli) -> None:
    result = bare("run", "a", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 3
    assert "skillyard serve" in result.stderr


def test_a_wrong_token_exits_with_3_and_says_how_to_get_one(bare: Cli, yard: YardServer) -> None:
    result = bare("runs", "list", "--url", yard.url, "--token", "wrong")
    assert result.exit_code == 3
    assert "skillyard token create" in result.stderr


def test_blobs_of_a_run_are_saved(run: Cli, yard: YardServer, tmp_path: Path) -> None:
    yard.blobs["blob:report-1"] = ("application/json", b"{}")
    yard.blobs["blob:..x"] = ("x/unknown", b"raw")
    yard.methods["execute_skill"] = lambda params: completed(output_blobs=list(yard.blobs))
    yard.methods["blobs.stat"] = lambda params: {"blob": {"kind": yard.blobs[params["blob_id"]][0]}}
    result = run("run", "a", "--save", str(tmp_path / "out"))
    assert result.exit_code == 0, result.stderr
    saved = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert saved == {"report-1.json": b"{}", "x": b"raw"}
    assert f"wrote {tmp_path / 'out' / 'report-1.json'}" in result.stderr


RECORD = {
    "run_id": "run_1",
    "kind": "execute_skill",
    "skill": "a.b",
    "status": "failed",
    "outcome": "timeout",
    "created_at": 0.0,
    "started_at": 0.5,
    "ended_at": 2.0,
    "error": {"type": "TimeoutError", "message": "too\nlong\x1b[2J"},
}


def test_runs_list_takes_as_many_pages_as_it_needs(run: Cli, yard: YardServer) -> None:
    def page(params: dict[str, Any]) -> dict[str, Any]:
        start = int(params.get("cursor", 0))
        stop = min(start + params["limit"], start + 2)
        rows = [RECORD | {"run_id": f"run_{n}"} for n in range(start, stop)]
        return {"runs": rows, "next_cursor": str(stop) if stop < 10 else None}

    yard.methods["runs.list"] = page
    result = run("runs", "list", "--limit", "5", "--status", "failed", "--json")
    assert [record["run_id"] for record in json.loads(result.stdout)] == [f"run_{n}" for n in range(5)]
    assert [params["limit"] for _, params in yard.calls] == [5, 3, 1]
    assert all(params["status"] == "failed" for _, params in yard.calls)
    table = run("runs", "list", "--limit", "1").stdout.splitlines()
    assert table[0].split() == ["ID", "STATUS", "WHAT", "STARTED", "TOOK", "OUTCOME"]
    assert table[1].split() == ["run_0", "failed", "a.b", "1970-01-01T00:00:00Z", "1500", "ms", "TimeoutError"]


def test_runs_show(run: Cli, yard: YardServer) -> None:
    yard.methods["runs.show"] = lambda params: {"run": RECORD}
    assert json.loads(run("runs", "show", "run_1", "--json").stdout) == RECORD
    text = run("runs", "show", "run_1").stdout
    assert "started_at  1970-01-01T00:00:00Z" in text
    assert "\x1b" not in text


GUARANTEES = {
    "host_files": {"attestor": "kernel", "evidence": ["mount_namespace", "read_only_root"]},
    "disk": {"attestor": "supervised", "evidence": ["the keeper's watch\x1b[2J"]},
    "pids": {"attestor": "missing", "evidence": []},
}


def test_runs_show_the_guarantees_as_a_table(run: Cli, yard: YardServer) -> None:
    enforced = {"mount_namespace": "kernel", "own_uid": "missing", "disk": "supervised", "pids": "missing"}
    yard.methods["runs.show"] = lambda params: {"run": RECORD | {"guarantees": GUARANTEES, "enforced": enforced}}
    assert json.loads(run("runs", "show", "run_1", "--json").stdout)["guarantees"] == GUARANTEES
    text = run("runs", "show", "run_1").stdout
    lines = text.splitlines()
    table = [line.rstrip() for line in lines[lines.index("GUARANTEE   ATTESTED BY  EVIDENCE") :]]
    assert table == [
        "GUARANTEE   ATTESTED BY  EVIDENCE",
        "host_files  kernel       mount_namespace, read_only_root",
        "disk        supervised   the keeper's watch\\x1b[2J",
        "pids        missing",
        "missing walls: own_uid",
    ]
    assert "enforced" not in text
    assert "{" not in "".join(table)


def test_runs_show_the_walls_of_an_older_record(run: Cli, yard: YardServer) -> None:
    yard.methods["runs.show"] = lambda params: {"run": RECORD | {"enforced": {"seccomp": "kernel", "disk": "missing"}}}
    lines = [line.rstrip() for line in run("runs", "show", "run_1").stdout.splitlines()]
    assert lines[-3:] == ["WALL     LEVEL", "seccomp  kernel", "disk     missing"]


def connection(host: str, port: int, *, allowed: bool, **more: Any) -> dict[str, Any]:
    known = {"via": "http", "layer": "code", "rule": "", "reason": "", "count": 1, "sent_bytes": 0, "received_bytes": 0}
    return {"host": host, "port": port, "allowed": allowed, "secrets": [], **known, **more}


NETWORK = {
    "layers": [{"name": "operator", "rules": ["*"]}, {"name": "code", "rules": ["x.com", "y.com"]}],
    "changes": [],
    "connections": [
        connection("x.com", 443, allowed=True, rule="x.com", count=3, sent_bytes=2048, received_bytes=1 << 20),
        connection("2001:db8::1", 22, allowed=False, reason="no code rule allows \x1b[2J"),
    ],
    "dropped": 0,
    "complete": True,
}


def test_runs_show_the_connections_that_were_allowed_and_refused(run: Cli, yard: YardServer) -> None:
    yard.methods["runs.show"] = lambda params: {"run": RECORD | {"network": NETWORK}}
    assert json.loads(run("runs", "show", "run_1", "--json").stdout)["network"] == NETWORK
    text = run("runs", "show", "run_1").stdout
    lines = [line.split() for line in text.splitlines()]
    assert ["code", "x.com", "y.com"] in lines
    assert ["allowed", "x.com:443", "http", "3", "2.0", "KiB", "1.0", "MiB", "code", "x.com"] in lines
    assert "refused   [2001:db8::1]:22" in text
    assert "no code rule allows" in text
    assert "\x1b" not in text


def test_runs_show_what_was_changed(run: Cli, yard: YardServer) -> None:
    changed = NETWORK | {
        "changes": [{"at": 60.0, "by": "root", "layer": "admin", "rules": ["z.com"]}],
        "in_force": [{"name": "operator", "rules": ["*"]}, {"name": "admin", "rules": ["z.com"]}],
        "connections": [],
        "dropped": 4,
        "complete": False,
    }
    yard.methods["runs.show"] = lambda params: {"run": RECORD | {"network": changed}}
    text = run("runs", "show", "run_1").stdout
    assert "changed 1970-01-01T00:01:00Z by root: admin z.com" in text
    assert "admin     z.com" in text
    assert "4 more connections" in text
    assert "code" not in text.partition("LAYER")[2]


@pytest.mark.parametrize(
    ("rules", "sent"),
    [
        (("x.com", "y.com:80"), ["x.com", "y.com:80"]),
        (("--none",), []),
        (("none",), []),
        (("!x.com",), ["!x.com"]),
    ],
)
def test_the_network_of_a_run_at_work_is_changed(
    run: Cli, yard: YardServer, rules: tuple[str, ...], sent: list[str]
) -> None:
    yard.methods["runs.set_network"] = lambda params: {"run": RECORD | {"network": NETWORK}}
    result = run("runs", "network", "run_1", *rules)
    assert (result.exit_code, asked(yard)) == (0, {"run_id": "run_1", "network": sent})
    assert "operator" in result.stdout


@pytest.mark.parametrize(
    ("rules", "said"),
    [((), "`skillyard runs show` shows what is in force"), (("x.com", "--none"), "goes with no rule")],
)
def test_rules_or_none(run: Cli, yard: YardServer, rules: tuple[str, ...], said: str) -> None:
    wrong = run("runs", "network", "run_1", *rules)
    assert wrong.exit_code == 2
    assert said in wrong.stderr
    assert yard.calls == []


def test_why_a_run_was_refused_is_said_once(run: Cli, yard: YardServer) -> None:
    error = {"type": "PolicyRefused", "message": "not so"}
    refused = {"status": "failed", "run_id": "run_1", "summary": "PolicyRefused: not so", "error": error}
    yard.methods["execute_skill"] = lambda params: completed({}) | refused
    result = run("run", "a.b")
    assert (result.exit_code, result.stderr) == (4, "run_1 failed: PolicyRefused: not so\n")
    cut = refused | {"summary": "PolicyRefused: no"}
    yard.methods["execute_skill"] = lambda params: completed({}) | cut
    assert run("run", "a.b").stderr == "run_1 failed: PolicyRefused: not so\n"


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (("--network", "x.com", "--network", "!y.com:80"), ["x.com", "!y.com:80"]),
        (("--network", "none"), []),
        ((), None),
    ],
)
def test_a_run_narrows_its_network(
    run: Cli, yard: YardServer, options: tuple[str, ...], sent: list[str] | None
) -> None:
    yard.methods["execute_skill"] = lambda params: completed({})
    assert run("run", "a.b", *options).exit_code == 0
    assert asked(yard).get("network") == sent
    assert run("run", "a.b", "--network", "none", "--network", "x.com").exit_code == 2


def test_runs_logs_follow_to_the_end(run: Cli, yard: YardServer) -> None:
    pieces = iter(["one\n", "", "two\n", "three"])

    def page(params: dict[str, Any]) -> dict[str, Any]:
        content = next(pieces)
        return {
            "content": content,
            "next_offset": params["offset"] + len(content),
            "complete": content == "three",
        }

    yard.methods["runs.logs"] = page
    result = run("runs", "logs", "run_1", "--follow")
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\nthree")
    assert [params["offset"] for _, params in yard.calls] == [0, 4, 4, 8]
    assert all(params["wait_ms"] > 0 for _, params in yard.calls)


def test_runs_logs_without_follow_stop_at_the_present_end(run: Cli, yard: YardServer) -> None:
    def page(params: dict[str, Any]) -> dict[str, Any]:
        return {"content": "" if params["offset"] else "so far", "next_offset": 6, "complete": False}

    yard.methods["runs.logs"] = page
    assert json.loads(run("runs", "logs", "run_1", "--json").stdout) == {"run_id": "run_1", "content": "so far"}


def test_runs_logs_tell_of_bytes_that_were_dropped(run: Cli, yard: YardServer) -> None:
    pages = iter([("end of it\n", 10_009, 9_999, False), ("", 10_009, 0, True)])

    def page(_: dict[str, Any]) -> dict[str, Any]:
        content, next_offset, dropped, complete = next(pages)
        return {"content": content, "next_offset": next_offset, "dropped": dropped, "complete": complete}

    yard.methods["runs.logs"] = page
    result = run("runs", "logs", "run_1")
    assert (result.exit_code, result.stdout) == (0, "end of it\n")
    assert result.stderr == "9999 bytes of the log are not kept any more\n"


def test_runs_cancel(run: Cli, yard: YardServer) -> None:
    yard.methods["runs.cancel"] = lambda params: {"cancelled": True, "run": RECORD}
    result = run("runs", "cancel", "run_1", "--reason", "enough")
    assert (result.exit_code, result.stderr) == (0, "run_1 cancelled\n")
    assert asked(yard) == {"run_id": "run_1", "reason": "enough"}


def left(**paths: str) -> list[dict[str, Any]]:
    return [{"path": path, "blob_id": f"blob:{name}", "size": 2, "mime": "text/csv"} for name, path in paths.items()]


def test_files_of_a_run_are_saved_by_their_paths(run: Cli, yard: YardServer, tmp_path: Path) -> None:
    yard.blobs.update({f"blob:{name}": ("x/unknown", name.encode()) for name in "abc"})
    yard.methods["blobs.stat"] = lambda params: {"blob": {"kind": "x/unknown"}}
    ids = ["blob:a", "blob:b", "blob:c"]
    files = left(a="t.csv", b="deep/er/t.csv")
    yard.methods["execute_skill"] = lambda params: completed({}, output_blobs=ids, files=files, notes=["not kept: x"])
    result = run("run", "a", "--save", str(tmp_path / "out"))
    assert result.exit_code == 0, result.stderr
    saved = {str(p.relative_to(tmp_path / "out")): p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert saved == {"t.csv": b"a", "deep/er/t.csv": b"b", "c": b"c"}
    assert "note: not kept: x" in result.stderr
    assert "blob blob:b deep/er/t.csv" in result.stderr
    again = run("run", "a", "--save", str(tmp_path / "out"))
    assert again.exit_code != 0
    assert "exists; nothing was written over it" in again.stderr


def test_a_note_that_the_summary_tells_is_not_told_again(run: Cli, yard: YardServer) -> None:
    told = completed({}, summary="Completed in 1 ms; not kept: x", notes=["not kept: x"])
    yard.methods["execute_skill"] = lambda params: told
    assert run("run", "a").stderr.count("not kept: x") == 1


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "a\\b", "", "a\nb"])
def test_a_server_cannot_save_elsewhere(run: Cli, yard: YardServer, tmp_path: Path, path: str) -> None:
    yard.blobs["blob:a"] = ("x/unknown", b"1")
    yard.methods["execute_skill"] = lambda params: completed({}, output_blobs=["blob:a"], files=left(a=path))
    result = run("run", "a", "--save", str(tmp_path / "d" / "out"))
    assert result.exit_code != 0
    assert "leads elsewhere" in result.stderr
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_a_file_is_not_saved_behind_a_link(run: Cli, yard: YardServer, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").symlink_to(tmp_path)
    yard.blobs["blob:a"] = ("x/unknown", b"1")
    yard.methods["execute_skill"] = lambda params: completed({}, output_blobs=["blob:a"], files=left(a="a/x"))
    assert "is a link" in run("run", "a", "--save", str(tmp_path / "out")).stderr
    assert not (tmp_path / "x").exists()


def test_a_list_shows_the_exit_code_of_a_command(run: Cli, yard: YardServer) -> None:
    failed_command = {"kind": "run_cmd", "outcome": "exit", "output": {"exit_code": 3}, "error": {"type": "SystemExit"}}
    ended = {"run_id": "run_1", "status": "failed", "created_at": 1.0, **failed_command}
    timeout = {**ended, "run_id": "run_2", "outcome": "timeout", "error": {"type": "TimeoutError"}, "output": None}
    yard.methods["runs.list"] = lambda params: {"runs": [ended, timeout], "next_cursor": None}
    shown = run("runs", "list").stdout
    assert "exit 3" in shown
    assert "TimeoutError" in shown
    assert "SystemExit" not in shown
