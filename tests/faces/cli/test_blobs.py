"""``blob`` against a scripted server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from tests.unit.client.yardserver import YardServer

Cli = Callable[..., Result]


def test_put_prints_the_id_alone(run: Cli, yard: YardServer, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    result = run("blob", "put", str(tmp_path / "a.json"))
    assert (result.exit_code, result.stdout) == (0, "blob:t0\n")
    assert yard.blobs["blob:t0"] == ("application/json", b"{}")
    assert "2 B of application/json" in result.stderr


def test_put_from_standard_input(run: Cli, yard: YardServer) -> None:
    result = run("blob", "put", "-", "--kind", "image/png", "--json", stdin=b"\xff\x00")
    stored = json.loads(result.stdout)
    assert {key: stored[key] for key in ("blob_id", "size_bytes", "kind")} == {
        "blob_id": "blob:t0",
        "size_bytes": 2,
        "kind": "image/png",
    }
    assert yard.blobs["blob:t0"] == ("image/png", b"\xff\x00")


def test_get_writes_bytes_to_standard_output(run: Cli, yard: YardServer) -> None:
    yard.blobs["blob:a"] = ("image/png", b"\xff\x00\n123")
    assert run("blob", "get", "blob:a").stdout_bytes == b"\xff\x00\n123"
    assert run("blob", "get", "blob:a", "--offset", "3", "--length", "2").stdout_bytes == b"12"


def test_get_into_a_file(run: Cli, yard: YardServer, tmp_path: Path) -> None:
    yard.blobs["blob:a"] = ("text/plain", b"0123")
    out = tmp_path / "out"
    result = run("blob", "get", "blob:a", "-o", str(out), "--offset", "1", "--json")
    assert out.read_bytes() == b"123"
    assert json.loads(result.stdout) == {
        "blob_id": "blob:a",
        "path": str(out),
        "kind": "text/plain",
        "size_bytes": 3,
        "total_bytes": 4,
    }


def test_get_of_nothing_exits_with_2_and_leaves_no_file(run: Cli, tmp_path: Path) -> None:
    result = run("blob", "get", "blob:none", "-o", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "skillyard blob list" in result.stderr
    assert not (tmp_path / "out").exists()


def test_json_and_bytes_do_not_share_standard_output(run: Cli) -> None:
    assert run("blob", "get", "blob:a", "--json").exit_code == 2


def test_list(run: Cli, yard: YardServer) -> None:
    rows = [{"blob_id": "blob:a", "size_bytes": 1536, "kind": "text/csv", "created_at": 0}]
    yard.methods["blobs.list"] = lambda params: {"blobs": rows, "next_cursor": None}
    assert json.loads(run("blob", "list", "--all", "--json").stdout) == rows
    assert yard.calls[-1] == ("blobs.list", {"all": True, "limit": 50})
    assert run("blob", "list").stdout.splitlines()[1] == "blob:a  1.5 KiB  text/csv  1970-01-01T00:00:00Z"


def test_rm(run: Cli, yard: YardServer) -> None:
    yard.methods["blobs.delete"] = lambda params: {"deleted": params["blob_id"] == "blob:a"}
    assert run("blob", "rm", "blob:a").exit_code == 0
    result = run("blob", "rm", "blob:a", "blob:b")
    assert (result.exit_code, result.stderr) == (2, "skillyard: no such blob: blob:b\n")
    assert json.loads(run("blob", "rm", "blob:b", "--json").stdout) == {"blob:b": False}
