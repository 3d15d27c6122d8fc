"""Detached runs under kill -9: the next server goes on with each, and none is started twice."""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import shutil
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skillyard.stores.seal.secrets import SealedSecrets
from tests.bundles import action
from tests.crash.detached import begun_mark, ended, whole_log
from tests.crash.leftovers import Footprint, gone, idle, until
from tests.crash.server import SMALL, Server
from tests.crash.witness import BEGUN

_PIDFD_GETFD = 438
STEPS = """
import os, random, sys, time
from runtime import blobs

def main(args):
    print("begun", os.urandom(16).hex(), flush=True)
    numbers = random.Random(args["seed"])
    for step in range(args["steps"]):
        print(step, numbers.randbytes(200).hex(), flush=True)
        print("aside", step, file=sys.stderr, flush=True)
        blobs.write_bytes(numbers.randbytes(args["size"]))
        time.sleep(args["pause"])
    if args["exit"]:
        os._exit(args["exit"])
    return {"steps": args["steps"], "last": numbers.randbytes(8).hex()}
"""
"""Its first line tells one start from another; all else is the same whenever it is called."""


def _args(number: int) -> dict[str, Any]:
    size = 300_000 if number % 5 == 0 else 3_000
    return {"seed": number, "steps": 30, "size": size, "pause": 0.1, "exit": 7 if number % 4 == 3 else 0}


def _log(args: dict[str, Any]) -> str:
    """Returns the log behind the first line."""
    numbers, lines = random.Random(args["seed"]), []
    for step in range(args["steps"]):
        lines += [f"{step} {numbers.randbytes(200).hex()}\n", f"aside {step}\n"]
        numbers.randbytes(args["size"])
    return "".join(lines)


def _blobs(args: dict[str, Any]) -> list[str]:
    """Returns the digests of the blobs, in their order."""
    numbers, made = random.Random(args["seed"]), []
    for _ in range(args["steps"]):
        numbers.randbytes(200)
        made.append(hashlib.sha256(numbers.randbytes(args["size"])).hexdigest())
    return made


def _start(server: Server, args: dict[str, Any], **more: Any) -> str:
    params = {"language": "python", "code": STEPS, "args": args, "limits": SMALL, "detach": True} | more
    with server.client() as client:
        run = client.call("run_code", params)
    assert run["status"] == "queued", run
    return str(run["run_id"])


def _check(server: Server, run_id: str, mark: str | None, args: dict[str, Any]) -> None:
    run = ended(server, run_id)
    log = whole_log(server, run_id)
    begun = BEGUN.match(log)
    assert begun is not None
    assert mark in (None, begun[1]), "it was started again"
    assert log[begun.end() :] == _log(args)
    with server.client() as client:
        digests = [client.call("blobs.stat", {"blob_id": b})["blob"]["sha256"] for b in run["output_blobs"]]
    assert digests == _blobs(args)
    if args["exit"]:
        assert (run["status"], run["outcome"]) == ("failed", "exit")
        assert "code 7" in run["error"]["message"]
    else:
        assert (run["status"], run["outcome"], run["output"]["steps"]) == ("completed", "exit", args["steps"])


def test_many_servers_one_after_another(tmp_path: Path) -> None:
    data_dir, chance = tmp_path / "data", random.Random(3)
    wanted = [{**_args(number), "pause": 0.2} for number in range(5)]
    with Server(data_dir) as server:
        runs = [_start(server, args) for args in wanted]
        marks = [begun_mark(server, run_id) for run_id in runs]
        server.kill()
    for _ in range(3):
        with Server(data_dir) as server:
            until(lambda: chance.random() < 0.1, 5, "it works a moment")
            server.kill()
    with Server(data_dir) as last:
        for run_id, mark, args in zip(runs, marks, wanted, strict=True):
            _check(last, run_id, mark, args)


def _break_connections(server: Server) -> int:
    """Breaks the server's connections to its keeper, as if their socket failed; returns their number."""
    broken, pidfd = 0, os.pidfd_open(server.pid)
    for name in os.listdir(f"/proc/{server.pid}/fd"):
        number = ctypes.CDLL(None).syscall(_PIDFD_GETFD, pidfd, int(name), 0)
        if number < 0:
            continue
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            os.close(number)
            continue
        with socket.socket(fileno=number) as sock, suppress(OSError):
            if sock.family == socket.AF_UNIX and str(sock.getpeername()).endswith("keeper.sock"):
                sock.shutdown(socket.SHUT_RDWR)
                broken += 1
    os.close(pidfd)
    return broken


def test_runs_go_on_when_the_connection_to_their_keeper_breaks(tmp_path: Path) -> None:
    data_dir, wanted = tmp_path / "data", [{**_args(number), "pause": 0.2} for number in range(4)]
    with Server(data_dir) as server:
        runs = [_start(server, args) for args in wanted]
        marks = [begun_mark(server, run_id) for run_id in runs]
        footprint = Footprint(data_dir)
        footprint.look()
        keepers = footprint.keepers()
        assert _break_connections(server) == 1
        for run_id, mark, args in zip(runs, marks, wanted, strict=True):
            _check(server, run_id, mark, args)
            with server.client() as client:
                events = client.call("runs.events", {"run_id": run_id})["events"]
            assert "resumed" in [event["kind"] for event in events]
        assert footprint.keepers() == keepers
        idle(footprint)
    gone(footprint)


def test_a_server_that_stops_leaves_them_at_work(tmp_path: Path) -> None:
    data_dir, args = tmp_path / "data", {**_args(0), "pause": 0.2}
    with Server(data_dir) as first:
        run_id = _start(first, args)
        mark = begun_mark(first, run_id)
        assert first.stop() == 0
    with Server(data_dir) as second:
        _check(second, run_id, mark, args)


def test_a_keeper_whose_data_directory_was_removed_ends(tmp_path: Path) -> None:
    """No server finds it again, so nobody would ever end what it holds."""
    data_dir = tmp_path / "data"
    footprint = Footprint(data_dir)
    with Server(data_dir) as first:
        begun_mark(first, _start(first, {**_args(0), "pause": 60}))
        footprint.look()
        first.kill()
    assert footprint.keepers()
    shutil.rmtree(data_dir)
    until(lambda: not footprint.keepers(), 30, "the keeper ends")


def test_cancel_of_a_run_of_an_earlier_server(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with Server(data_dir) as first:
        run_id = _start(first, {**_args(0), "pause": 60})
        begun_mark(first, run_id)
        first.kill()
    with Server(data_dir) as second, second.client() as client:
        answer = client.call("runs.cancel", {"run_id": run_id, "reason": "enough"})
        assert answer["cancelled"]
        assert answer["run"]["outcome"] == "cancelled"
        footprint = Footprint(data_dir)
        idle(footprint)


def test_deadline_is_kept_while_no_server_is_there(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with Server(data_dir) as first:
        run_id = _start(first, {**_args(0), "pause": 60}, timeout_ms=3000)
        begun_mark(first, run_id)
        first.kill()
    with Server(data_dir) as second:
        assert ended(second, run_id)["outcome"] == "timeout"


MANIFEST = action(
    "tests.tells",
    "Tells its secrets",
    """
[permissions]
secrets = ["ROTATED", "DELETED"]
""",
)
TELLS = """
import os, time

def main(args):
    told = [os.environ["ROTATED"], os.environ["DELETED"], args["later"]]
    print("begun", os.urandom(16).hex(), flush=True)
    print(*told, flush=True)
    time.sleep(3)
    print(*told, flush=True)
    return {"told": told}
"""


@pytest.mark.anyio
async def test_secrets_that_are_rotated_and_deleted_meanwhile_stay_out_of_the_output(tmp_path: Path) -> None:
    data_dir, skill = tmp_path / "data", tmp_path / "skills" / "tests.tells"
    (skill / "code").mkdir(parents=True)
    (skill / "skill.toml").write_text(MANIFEST)
    (skill / "SKILL.md").write_text("---\nname: tells\ndescription: Tells its secrets\n---\nIt tells.\n")
    (skill / "code" / "main.py").write_text(TELLS)
    data_dir.mkdir(mode=0o700)
    secrets = SealedSecrets(data_dir)
    await secrets.set("ROTATED", "rotated-old-value")
    await secrets.set("DELETED", "deleted-old-value")
    env = {"SKILLYARD_SKILLS_DIRS": str(tmp_path / "skills"), "SKILLYARD_SECRETS__VERSIONS": "1"}
    with Server(data_dir, ready=0, **env) as first:
        with first.client() as client:
            args = {"later": "rotated-new-value"}
            run_id = client.execute_skill("tests.tells", args, detach=True).run_id
        begun_mark(first, run_id)
        await secrets.set("ROTATED", "rotated-new-value")
        await secrets.set("ROTATED", "rotated-new-value")
        await secrets.delete("DELETED")
        await secrets.rotate()
        first.kill()
    with Server(data_dir, ready=0, **env) as second:
        run, log = ended(second, run_id), whole_log(second, run_id)
        assert (run["status"], run["output"]) == ("completed", {"told": ["[redacted]"] * 3}), run["error"]
        assert log.splitlines()[1:] == ["[redacted] [redacted] [redacted]"] * 2
        until(lambda: not list((data_dir / "run" / "secrets").glob("*.sealed")), 10, "the values are erased")
