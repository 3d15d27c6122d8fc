"""Sessions in real sandboxes: files stay, nothing else does, whatever a call leaves for the next one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from skillyard import SyncRuntime
from skillyard.config.settings import load_settings

pytestmark = [pytest.mark.ordinary, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncRuntime]:
    home = tmp_path_factory.mktemp("sessions")
    for name in ("acme.notes", "acme.other"):
        skill = home / "skills" / name
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Notes\n---\n# {name}\n")
    settings = load_settings(data_dir=home / "data", skills_dirs=[home / "skills"], limits={"disk_mb": 32})
    with SyncRuntime(settings=settings) as runtime:
        yield runtime
        end_all(runtime)


def end_all(runtime: SyncRuntime) -> None:
    """Ends what would wait for the next runtime on this data directory."""
    for row in runtime.sessions()["sessions"]:
        runtime.end_session(row["session_id"])


def ran(runtime: SyncRuntime, command: str, session: str, skill: str = "acme.notes", **asked: Any) -> dict[str, Any]:
    return runtime.run_cmd(skill, command, session_id=session, **asked)


def said(runtime: SyncRuntime, command: str, session: str, **asked: Any) -> str:
    answer = ran(runtime, command, session, **asked)
    assert answer["exit_code"] == 0, answer
    return str(answer["stdout"])


def test_files_stay_and_the_view_is_that_of_the_skill(runtime: SyncRuntime) -> None:
    assert said(runtime, "echo one > a.txt; echo two > ../b.txt; pwd", "files") == "/workspace/skill\n"
    assert said(runtime, "cat a.txt ../b.txt; head -c 5 SKILL.md", "files") == "one\ntwo\n---\nn"
    other = said(runtime, "ls; cat /workspace/b.txt; grep '^#' SKILL.md", "files", skill="acme.other")
    assert other == "SKILL.md\ntwo\n# acme.other\n"
    assert said(runtime, "cat a.txt", "files") == "one\n"
    kept = ran(runtime, "true", "files", outputs=[{"path": "a.txt"}, {"path": "/workspace/b.txt"}, {"path": "none"}])
    assert [file["path"] for file in kept["created_artifacts"]] == ["skill/a.txt", "b.txt"]
    assert kept["output_errors"] == [{"path": "skill/none", "error": "not found"}]


def test_large_files_move_to_the_sandbox_of_another_skill(runtime: SyncRuntime) -> None:
    assert said(runtime, "head -c 5000000 /dev/urandom > ../large; mkdir ../a ../b", "large") == ""
    first = said(runtime, "sha256sum < ../large", "large")
    assert said(runtime, "sha256sum < ../large", "large", skill="acme.other") == first


def test_inputs_come_into_a_session(runtime: SyncRuntime) -> None:
    blob_id = runtime.put_blob(b"1\n2\n", "text/csv").blob_id
    given = [{"artifact_id": blob_id, "mount_path": "in.csv"}]
    assert said(runtime, "sort -r in.csv; ls /tmp", "inputs", inputs=given) == "2\n1\nblobs\n"
    assert said(runtime, "cat in.csv; ls /tmp /dev/shm", "inputs") == "1\n2\n/dev/shm:\n\n/tmp:\n"


LEAVES = """
echo left > /tmp/left; mkdir -p /tmp/deep/er; chmod 000 /tmp/deep /tmp; echo left > /dev/shm/left; chmod 000 /dev/shm
mkfifo /workspace/pipe; chmod 000 /workspace
(trap '' TERM; setsid sleep 1000 < /dev/null > /dev/null 2>&1 &)
python3 - <<'END'
import os, socket, time
listening = socket.socket()
listening.bind(("127.0.0.1", 5555))
listening.listen()
hidden = socket.socket(socket.AF_UNIX)
hidden.bind("\\0hidden")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
END
"""
LOOKS = """
ls /tmp /dev/shm; stat -c %a /tmp /dev/shm
set -- /proc/[0-9]*; echo $#
python3 - <<'END'
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", 5555)), (socket.AF_UNIX, "\\0hidden")):
    try:
        socket.socket(family).connect(address)
        print("reached")
    except ConnectionRefusedError:
        print("refused")
END
"""


def test_nothing_but_files_is_left_for_the_next_call(runtime: SyncRuntime) -> None:
    untouched = said(runtime, LOOKS, "left")
    assert ran(runtime, LEAVES, "left", env={"LEFT": "left"})["exit_code"] == 0
    assert said(runtime, LOOKS, "left") == untouched
    assert untouched.split()[:4] == ["/dev/shm:", "/tmp:", "1777", "1777"]
    assert untouched.split()[-2:] == ["refused", "refused"]
    assert said(runtime, 'echo "$LEFT"; env | grep -c LEFT || true', "left") == "\n0\n"


def test_a_timeout_leaves_a_session_that_goes_on(runtime: SyncRuntime) -> None:
    answer = ran(runtime, "echo half > part; (setsid sleep 1000 &) ; sleep 1000", "late", timeout_sec=1)
    assert (answer["status"], answer["reason"]) == ("failed", "timeout")
    assert said(runtime, "cat part", "late") == "half\n"


def test_a_poisoned_workspace_hides_no_skill(runtime: SyncRuntime) -> None:
    assert said(runtime, "cd ..; chmod 000 .skill-*; rm skill; mkdir skill; echo mine > skill/SKILL.md", "poison") == ""
    assert said(runtime, "grep '^#' SKILL.md; grep '^#' /workspace/skill/SKILL.md", "poison") == "# acme.notes\n" * 2
    assert said(runtime, "cd ..; view=$(readlink skill); rm -rf $view; ln -s /tmp $view; ls", "poison") == "skill\n"
    assert said(runtime, "grep '^#' SKILL.md; ls /tmp", "poison") == "# acme.notes\n"


def test_two_first_calls_at_once_make_one_session(runtime: SyncRuntime) -> None:
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda n: ran(runtime, f"echo {n} >> ../all", "once", wait_ms=120_000), range(6)))
    assert {answer["status"] for answer in answers} == {"succeeded"}
    assert len(said(runtime, "cat ../all", "once").split()) == 6
    assert [row["runs"] for row in runtime.sessions()["sessions"] if row["session_id"] == "once"] == [7]


def test_usage_is_that_of_the_call(runtime: SyncRuntime) -> None:
    busy = ran(runtime, "python3 -c 'import time\nwhile time.process_time() < 0.6: pass'", "usage")
    idle = ran(runtime, "true", "usage")
    assert busy["usage"]["cpu_ms"] >= 500 > idle["usage"]["cpu_ms"]
    assert idle["timing"]["duration_ms"] > 0


def test_an_ended_session_says_so_and_its_files_are_gone(runtime: SyncRuntime) -> None:
    said(runtime, "echo one > ../a.txt", "ended")
    told = runtime.end_session("ended", reason="enough")
    assert (told["state"], told["ended_by"], told["reason"]) == ("ended", "local", "enough")
    assert said(runtime, "ls ..", "ended") == "skill\n"


CONNECTS = """python3 - <<'END'
import socket
try:
    socket.create_connection(("www.example.com", 443), 10)
except OSError:
    print("not reached")
END"""


def test_each_call_has_the_network_that_it_asks_for(tmp_path: Path) -> None:
    skill = tmp_path / "skills" / "acme.notes"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: acme.notes\ndescription: Notes\n---\n# Notes\n")
    rules = ["*.example.com:443"]
    network = {"rules": rules, "run_code": rules}
    settings = load_settings(data_dir=tmp_path / "data", skills_dirs=[tmp_path / "skills"], network=network)
    with SyncRuntime(settings=settings) as runtime:
        calls: list[list[str] | None] = [None, None, [], None]
        for asked in calls:
            answer = ran(runtime, CONNECTS, "net", network=asked)
            assert answer["status"] == "succeeded", answer
            told = runtime.call("runs.show", {"run_id": answer["run_id"]})["run"]["network"]
            hosts = [] if told is None else [each["host"] for each in told["connections"]]
            assert (hosts, answer["stdout"]) == ((["www.example.com"], "") if asked is None else ([], "not reached\n"))
        assert [row["runs"] for row in runtime.sessions(ended=True)["sessions"]] == [4]
        end_all(runtime)
