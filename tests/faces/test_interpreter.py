"""Cells of a session's interpreter in real sandboxes: names stay, and nobody learns too late that they are lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from skillyard import SyncRuntime
from skillyard.client.run import Run
from skillyard.config.settings import load_settings
from skillyard.domain.errors import Busy, InvalidInput, ProtectionMissing
from tests.crash.leftovers import until

pytestmark = [pytest.mark.ordinary, pytest.mark.timeout(300)]
SKILL = "acme.notes"


def settings_for(home: Path, isolation: str = "native") -> Any:
    skill = home / "skills" / SKILL
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(f"---\nname: {SKILL}\ndescription: Notes\n---\n# Notes\n")
    limits = {"disk_mb": 16, "memory_mb": 128}
    places = {"data_dir": home / "data", "skills_dirs": [home / "skills"], "policy": {"isolation": isolation}}
    return load_settings(**places, limits=limits)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncRuntime]:
    with SyncRuntime(settings=settings_for(tmp_path_factory.mktemp("cells"))) as runtime:
        yield runtime
        end_all(runtime)


def end_all(runtime: SyncRuntime) -> None:
    for row in runtime.sessions()["sessions"]:
        runtime.end_session(row["session_id"])


def cell(runtime: SyncRuntime, code: str, session: str, **asked: Any) -> Run:
    return runtime.run_code(code, session_id=session, **asked)


def value(runtime: SyncRuntime, code: str, session: str, **asked: Any) -> Any:
    """Returns the value of a cell in an interpreter that has its names from before."""
    ran = cell(runtime, code, session, **asked)
    assert ran.ok, dict(ran)
    assert ran["interpreter"] == {"state": "kept", "reason": "", "lost": ""}, dict(ran)
    return ran.output.get("result")


def begun(runtime: SyncRuntime, code: str, session: str, **asked: Any) -> None:
    ran = cell(runtime, code, session, **asked)
    assert ran.ok, dict(ran)
    assert ran["interpreter"] == {"state": "started", "reason": "", "lost": ""}, dict(ran)


@pytest.mark.parametrize("isolation", ["native", "gvisor"])
def test_names_stay_through_errors_timeouts_and_commands(tmp_path: Path, isolation: str) -> None:
    with SyncRuntime(settings=settings_for(tmp_path, isolation)) as runtime:
        try:
            begun(runtime, "import time\nx = 40\ndef more(): return x + 1", "a", mount_skills=[SKILL])
        except ProtectionMissing as missing:
            pytest.skip(str(missing))
        mounted = {"mount_skills": [SKILL]}
        assert value(runtime, "x += 1\nmore()", "a", **mounted) == 42
        assert cell(runtime, "x += 1; 1/0", "a", **mounted).error["type"] == "ZeroDivisionError"  # type: ignore[index]
        late = cell(runtime, "x += 1\nwhile True: time.sleep(0.01)", "a", timeout_ms=1000, **mounted)
        assert (late["outcome"], late["interpreter"]["lost"]) == ("timeout", "")
        told = runtime.run_cmd(SKILL, "echo 1 > ../left", session_id="a")
        assert told["exit_code"] == 0, told
        assert value(runtime, "[more(), open('/workspace/left').read()]", "a", **mounted) == [44, "1\n"]
        end_all(runtime)


def test_the_value_of_the_last_expression_comes_back(runtime: SyncRuntime) -> None:
    begun(runtime, "import asyncio, sys\nclass Odd:\n    def __repr__(self): return 'odd'", "value")
    for code, told in (
        ("print('seen'); [1, {'a': 2}]", {"result": [1, {"a": 2}]}),
        ("None", {}),
        ("y = 1", {}),
        ("", {}),
        ("{'result': 1}", {"result": {"result": 1}}),
        ("Odd()", {"repr": "odd"}),
        ("{1, 2}", {"repr": "{1, 2}"}),
        ("await asyncio.sleep(0, 3)", {"result": 3}),
        ("for i in range(2): await asyncio.sleep(0)\ni", {"result": 1}),
        ("async def f(): return 7\nf()", {"result": 7}),
        ("__name__", {"result": "__main__"}),
        ("sys.exit()", {}),
    ):
        ran = cell(runtime, code, "value")
        assert (ran.ok, ran.output) == (True, told), (code, dict(ran))
        assert ran.logs_preview == ("seen\n" if "seen" in code else "")
    wrong = cell(runtime, "x = (", "value")
    assert wrong.error is not None
    assert (wrong.error["type"], "<cell" in wrong.error["traceback"]) == ("SyntaxError", True)
    assert value(runtime, "y", "value") == 1


def test_a_cell_sends_the_files_and_blobs_that_it_made(runtime: SyncRuntime) -> None:
    begun(runtime, "from runtime import blobs\nopen('/workspace/out/a', 'w').write('1')", "files")
    cell(runtime, "from runtime.blobs import write_text\nstale = blobs.writer()\nstale.write(b'x')", "files")
    made = "open('/workspace/out/b', 'w').write('2'); write_text('three')"
    again = cell(runtime, made, "files")
    assert [file.path for file in again.files] == ["b"], dict(again)
    assert again.output is not None
    assert again.output["result"] in again.output_blobs
    assert runtime.read_blob(again.output["result"])["preview"] == "three"
    refused = cell(runtime, "stale.close()", "files")
    assert (refused.ok, refused["interpreter"]["lost"]) == (False, ""), dict(refused)


def test_a_call_has_its_own_variables(runtime: SyncRuntime) -> None:
    begun(runtime, "import os\nos.environ['MINE'] = '1'\nos.chdir('/tmp')", "variables")
    assert value(runtime, "[os.environ['MINE'], os.getcwd()]", "variables") == ["1", "/tmp"]


def test_a_crash_loses_the_names_and_says_so(runtime: SyncRuntime) -> None:
    begun(runtime, "x = 1", "crash")
    crashed = cell(runtime, "import ctypes; ctypes.string_at(0)", "crash")
    assert crashed.error is not None
    assert (crashed.error["type"], crashed["interpreter"]["lost"]) == ("InterpreterLost", "it was ended by SIGSEGV")
    again = cell(runtime, "'x' in globals()", "crash")
    assert again.output == {"result": False}
    assert again["interpreter"] == {"state": "restarted", "reason": "it was ended by SIGSEGV", "lost": ""}
    assert cell(runtime, "import os; os._exit(3)", "crash")["interpreter"]["lost"] == "it exited with code 3"


def test_a_restart_begins_anew(runtime: SyncRuntime) -> None:
    begun(runtime, "x = 1", "restart")
    again = cell(runtime, "'x' in globals()", "restart", restart=True)
    assert (again.output, again["interpreter"]["state"]) == ({"result": False}, "restarted")
    assert value(runtime, "1", "restart") == 1


def test_another_sandbox_loses_the_names_and_says_so(runtime: SyncRuntime) -> None:
    begun(runtime, "x = 1", "moves")
    again = cell(runtime, "'x' in globals()", "moves", mount_skills=[SKILL])
    assert again.output == {"result": False}
    assert again["interpreter"] == {
        "state": "restarted", "reason": "its sandbox was replaced by another one", "lost": "",
    }  # fmt: skip


def test_a_cell_that_heeds_no_interrupt_is_ended_with_the_names(runtime: SyncRuntime) -> None:
    begun(runtime, "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nx = 1", "deaf")
    late = cell(runtime, "import time\nopen('on', 'w')\nwhile True: time.sleep(0.01)", "deaf", timeout_ms=1000)
    assert (late["outcome"], "went on" in late["interpreter"]["lost"]) == ("timeout", True)
    again = cell(runtime, "import os; ['x' in globals(), len([n for n in os.listdir('/proc') if n.isdigit()])]", "deaf")
    assert again.output == {"result": [False, 4]}, "init, the leader, its child and the cell"
    assert again["interpreter"]["state"] == "restarted"


def test_a_cancelled_cell_is_over_and_leaves_the_names(runtime: SyncRuntime) -> None:
    begun(runtime, "import os, time\nx = 1", "cancel")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(cell, runtime, "x = 2\nopen('/workspace/begun', 'w')\ntime.sleep(1000)", "cancel")
        until(lambda: at_work(runtime, "cancel") is not None, 60, "the cell is at work")
        with pytest.raises(Busy):
            cell(runtime, "1", "cancel", wait_ms=0)
        run_id = at_work(runtime, "cancel")
        runtime.cancel_run(str(run_id))
        assert call.result(60)["outcome"] == "cancelled"
    assert value(runtime, "x in (1, 2)", "cancel") is True


def at_work(runtime: SyncRuntime, session: str) -> str | None:
    [row] = [row for row in runtime.sessions()["sessions"] if row["session_id"] == session]
    run_id: str | None = row["run_id"]
    return run_id


def test_what_no_cell_has_is_refused_by_name(runtime: SyncRuntime) -> None:
    for name, asked in (
        ("args", {"args": {"a": 1}}),
        ("entrypoint", {"entrypoint": "f"}),
        ("detach", {"detach": True}),
    ):
        with pytest.raises(InvalidInput) as refused:
            cell(runtime, "1", "asked", **asked)
        assert refused.value.field == name
    for name, alone in (("restart", {"restart": True}), ("wait_ms", {"wait_ms": 5})):
        with pytest.raises(InvalidInput) as refused:
            runtime.run_code("1", **alone)
        assert refused.value.field == name
    with pytest.raises(InvalidInput, match="session_id"):
        cell(runtime, "1", "../x")


LEFT = """
import os, socket, sys, threading, time
out, channels = os.dup(1), [fd for fd in range(3, 64) if os.path.exists(f'/proc/self/fd/{fd}')]
channels = [os.dup(fd) for fd in channels if os.readlink(f'/proc/self/fd/{fd}').startswith('socket')][-1:]
def write():
    while True:
        for fd in (out, *channels):
            try: os.write(fd, b'left behind')
            except OSError: pass
        time.sleep(0.001)
"""


def test_what_a_cell_left_writes_into_no_later_run(runtime: SyncRuntime) -> None:
    """A process that a cell forked holds its output and its channel, and lives on with the interpreter."""
    begun(runtime, f"{LEFT}\nif os.fork() == 0: os.setsid(); time.sleep(0.3); write()", "left")
    for number in range(5):
        ran = cell(runtime, f"time.sleep(0.2); print({number}); {number}", "left")
        assert (ran.output, ran.logs_preview) == ({"result": number}, f"{number}\n"), dict(ran)
    told = runtime.run_cmd(SKILL, "echo own; sleep 0.2", session_id="left-other")
    assert told["stdout"] == "own\n"


CALLS = """
import os, socket, subprocess, sys
name = [row.split()[-1] for row in open('/proc/net/unix') if '@python-run_' in row][0]
asks = "import socket, sys\\n"
asks += "s = socket.socket(socket.AF_UNIX); s.connect('\\\\0' + sys.argv[1][1:]); print(s.recv(9) or 'turned away')"
subprocess.run([sys.executable, '-c', asks, name], capture_output=True, text=True, timeout=60).stdout
"""


def test_no_program_of_a_cell_is_taken_for_a_cell(runtime: SyncRuntime) -> None:
    begun(runtime, "pass", "asks")
    with ThreadPoolExecutor(1) as pool:  # the leader takes the next connection when this cell is over
        call = pool.submit(
            cell,
            runtime,
            CALLS.replace("subprocess.run", "subprocess.Popen").replace(
                ", capture_output=True, text=True, timeout=60).stdout", ", stdout=open('/workspace/told', 'w'))"
            ),
            "asks",
        )
        assert call.result(60).ok
    until(lambda: value(runtime, "open('/workspace/told').read()", "asks") == "turned away\n", 60, "it was told")


@pytest.mark.parametrize(
    "attack",
    [
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL); import time; time.sleep(1000)",
        "import os; os.closerange(3, 4096); 1",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'.' * 3)\n    except OSError: pass",
        pytest.param("import os\nwhile True: os.write(1, b'x' * 65536)", marks=pytest.mark.long),
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'R' + bytes(4))\n    except OSError: pass",
        pytest.param(
            "import sys, threading\ndef f():\n    while True: threading.Thread(target=f).start()\nf()",
            marks=pytest.mark.long,
        ),
        pytest.param("import os\nwhile True: os.fork()", marks=pytest.mark.long),
        "import builtins, json, os, sys\nfor name in dir(os):\n    if name[0] != '_': delattr(os, name)",
    ],
    ids=["leader", "closes", "says done", "floods", "result", "threads", "forks", "empties os"],
)  # fmt: skip
def test_a_hostile_cell_harms_its_own_interpreter_alone(runtime: SyncRuntime, attack: str) -> None:
    alias = f"hostile-{abs(hash(attack))}"
    begun(runtime, "open('/workspace/kept', 'w').write('kept')", alias)
    harmed = cell(runtime, attack, alias, timeout_ms=3000)
    assert runtime.run_cmd(SKILL, "true", session_id="beside")["exit_code"] == 0
    after = cell(runtime, "import os; os.path.exists('/workspace/kept')", alias, restart=True)
    stands = harmed["interpreter"]["lost"] != "its sandbox ended"  # as after a command that reached these limits
    assert after.output == {"result": stands}, dict(after)
    assert value(runtime, "1", alias) == 1
    runtime.end_session(alias)
