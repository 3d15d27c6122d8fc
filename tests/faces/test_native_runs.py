"""The engine over real sandboxes: what the protocol promises, seen by code that runs inside."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillyard import SyncRuntime
from skillyard.client.run import Run
from skillyard.stores.seal.secrets import SealedSecrets

pytestmark = pytest.mark.ordinary

SKILL = """
from . import helper
import os
from runtime import blobs, log

def main(args):
    log.info("token is " + os.environ.get("API_TOKEN", "missing"))
    return {"total": helper.total(args["xs"]), "token": os.environ.get("API_TOKEN"), "cwd": os.getcwd()}

def double(n):
    return 2 * n
"""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncRuntime]:
    home = tmp_path_factory.mktemp("native")
    skill = home / "skills" / "demo.sum"
    (skill / "code").mkdir(parents=True)
    (skill / "code" / "main.py").write_text(SKILL)
    (skill / "code" / "helper.py").write_text("def total(xs):\n    return sum(xs)\n")
    (skill / "SKILL.md").write_text("---\nname: Sum\n---\n# Sum\n")
    (skill / "skill.toml").write_text(
        'name = "demo.sum"\nversion = "1.0.0"\ndescription = "Sums"\nkind = "action"\n'
        '[runtime]\nlanguage = "python"\nentrypoint = "code/main.py"\nexport = "main"\n'
        '[permissions]\nsecrets = ["API_TOKEN"]\n'
        '[inputs]\ntype = "object"\nrequired = ["xs"]\n'
    )
    with SyncRuntime(home / "data", skills_dirs=[home / "skills"]) as runtime:
        yield runtime


def set_token(runtime: SyncRuntime) -> None:
    """As ``skillyard secret set`` does it, beside the running runtime."""
    asyncio.run(SealedSecrets(runtime.settings.data_dir).set("API_TOKEN", "tok-secret-12345"))


def ran(run: Run) -> Any:
    assert run.ok, dict(run)
    return run.output


def test_code_runs_and_its_usage_is_counted(runtime: SyncRuntime) -> None:
    run = runtime.run_code("async def main(args):\n    print('hi')\n    return [args['a'], None]", {"a": 1})
    assert ran(run) == {"result": [1, None]}
    assert run.logs_preview == "hi\n"
    assert run["usage"]["cpu_ms"] > 0
    assert run["enforced"]["seccomp"] == "kernel"


def test_what_a_run_burns_is_counted_however_it_ends(runtime: SyncRuntime) -> None:
    burn = "import subprocess, sys, time\ndef main(args):\n    while time.process_time() < 0.2: pass\n"
    child = "    subprocess.run([sys.executable, '-c', 'import time\\nwhile time.process_time() < 0.2: pass'])\n"
    for code in (burn, burn, burn, burn + child, burn + "    raise ValueError"):
        run = runtime.run_code(code)
        assert 195 <= run["usage"]["cpu_ms"] <= 2000
    late = runtime.run_code("def main(args):\n    while True: pass", timeout_ms=1500)
    assert 150 <= late["usage"]["cpu_ms"] <= 2000


def test_a_skill_with_a_secret(runtime: SyncRuntime) -> None:
    missing = runtime.execute_skill("demo.sum", {"xs": [1]})
    assert missing.error is not None
    assert missing.error["type"] == "MissingSecret"
    set_token(runtime)
    run = runtime.execute_skill("demo.sum", {"xs": [1, 2, 3]})
    assert ran(run) == {"total": 6, "token": "[redacted]", "cwd": "/workspace"}
    assert "token is [redacted]" in run.logs_preview
    assert run.logs_blob is not None
    sink = io.BytesIO()
    runtime.get_blob(run.logs_blob, sink)
    assert b"tok-secret" not in sink.getvalue()
    invalid = runtime.execute_skill("demo.sum", {})
    assert invalid.error is not None
    assert invalid.error["type"] == "ValidationError"


def test_code_imports_a_mounted_skill_without_its_secret(runtime: SyncRuntime) -> None:
    code = (
        "import os\n"
        "from skills.demo.sum import double\n"
        "def main(args):\n"
        "    return {'d': double(4), 's': 'API_TOKEN' in os.environ}\n"
    )
    assert ran(runtime.run_code(code, mount_skills=["demo.sum"])) == {"d": 8, "s": False}
    run = runtime.run_code(code)
    assert run.error is not None
    assert run.error["type"] in ("ImportError", "ModuleNotFoundError")


def test_blobs_go_in_and_out(runtime: SyncRuntime) -> None:
    big = b"0123456789abcdef" * 65536
    stored = runtime.put_blob(big, "application/octet-stream")
    code = (
        "from runtime import blobs\n"
        "def main(args):\n"
        "    data = blobs.read_bytes(args['blob'])\n"
        "    with open('/blobs/' + args['blob'], 'rb') as f: assert f.read() == data\n"
        "    with open('/blobs/' + args['blob'][5:], 'rb') as f: assert f.read() == data\n"
        "    return {'copy': blobs.write_bytes(data, 'application/x-copy'), 'text': blobs.write_text('é')}\n"
    )
    run = runtime.run_code(code, {"blob": stored.blob_id}, input_blobs=[stored.blob_id])
    output = ran(run)
    assert run.output_blobs == (output["copy"], output["text"])
    sink = io.BytesIO()
    runtime.get_blob(output["copy"], sink)
    assert sink.getvalue() == big
    assert runtime.read_blob(output["text"])["preview"] == "é"
    refused = runtime.run_code(code, {"blob": stored.blob_id})
    assert refused.error is not None
    assert refused.error["type"] == "BlobNotMounted"


@pytest.mark.parametrize(
    ("code", "limits", "type_"),
    [
        ("def main(args):\n    while True: pass", {"timeout_ms": 300}, "TimeoutError"),
        ("def main(args):\n    x = bytearray(10**9)\n    return {}", {"memory_mb": 64}, None),
        (
            "def main(args):\n    open('x', 'wb').write(b'x' * 9_000_000)",
            {"disk_mb": 4},
            "DiskLimitExceeded",
        ),
        ("import os\ndef main(args):\n    os._exit(3)", {}, "SystemExit"),
        ("import os, signal\ndef main(args):\n    os.kill(os.getpid(), signal.SIGSEGV)", {}, "SignalError"),
        ("def main(args):\n    return {'x': float('nan')}", {}, "OutputNotSerializable"),
        ("def main(args):\n    raise KeyError('x')", {}, "KeyError"),
        ("def main(:", {}, "SyntaxError"),
    ],
)
def test_ways_to_fail(runtime: SyncRuntime, code: str, limits: dict[str, Any], type_: str | None) -> None:
    run = runtime.run_code(code, limits=limits)
    assert run.status == "failed"
    assert run.error is not None
    assert run.error["type"] in ((type_,) if type_ else ("MemoryLimitExceeded", "MemoryError")), dict(run)
    assert "skillyard" not in json.dumps(run.error)


def test_an_oversize_output_is_spilled(runtime: SyncRuntime) -> None:
    run = runtime.run_code("def main(args):\n    return {'x': 'y' * 10000}")
    output = ran(run)
    assert output["truncated"] is True
    sink = io.BytesIO()
    runtime.get_blob(output["blob_id"], sink)
    assert json.loads(sink.getvalue()) == {"x": "y" * 10000}


def test_a_run_is_cancelled_by_its_id(runtime: SyncRuntime) -> None:
    runs: list[Run] = []
    code = "import time\ndef main(args):\n    print('begun', flush=True)\n    time.sleep(60)"
    runtime.run_code("def main(args): return {}")  # where runs are refused, so that it is said here
    thread = threading.Thread(target=lambda: runs.append(runtime.run_code(code)))
    thread.start()
    deadline = time.monotonic() + 20
    run_id = None
    while run_id is None and time.monotonic() < deadline:
        for record in runtime.list_runs(status="running")["runs"]:
            if "begun" in runtime.run_logs(record["run_id"])["content"]:
                run_id = record["run_id"]
    assert run_id is not None
    answer = runtime.cancel_run(run_id, reason="enough")
    assert (answer["cancelled"], answer["run"]["outcome"]) == (True, "cancelled")
    thread.join(10)
    assert runs[0].logs_preview == "begun\n"


def test_the_servers_packages_are_not_visible(runtime: SyncRuntime) -> None:
    code = (
        "from importlib.util import find_spec\n"
        "def main(args):\n"
        "    return [name for name in ('click', 'pydantic', 'skillyard', 'uvicorn') if find_spec(name)]\n"
    )
    assert ran(runtime.run_code(code)) == {"result": []}


def test_files_left_in_out_come_back(runtime: SyncRuntime, tmp_path: Path) -> None:
    code = "open('/workspace/out/a.csv', 'w').write('x')\nopen('/workspace/b.txt', 'w')\n"
    run = runtime.run_code(code)
    assert [(file.path, file.size, file.mime) for file in run.files] == [("a.csv", 1, "text/csv")]
    assert "not kept: b.txt" in run.summary
    assert [path.read_text() for path in runtime.save_files(run, tmp_path / "saved")] == ["x"]
    failed = runtime.run_code(code + "1 / 0")
    assert (failed.status, [file.path for file in failed.files]) == ("failed", ["a.csv"])
    unread = runtime.run_code("import os\nopen('out/x', 'w')\nos.chmod('out/x', 0)")
    assert "x (it could not be read)" in unread.summary


def test_a_script_and_its_ending(runtime: SyncRuntime) -> None:
    run = runtime.run_code("print(6 * 7)\nraise SystemExit(0)")
    assert (run.output, run.logs_preview) == ({}, "42\n")
    assert "ran as a script" in runtime.run_code("print(1)").summary


def test_forty_megabytes_of_arguments_in_process_are_taken(runtime: SyncRuntime) -> None:
    assert ran(runtime.run_code("def main(args): return len(args['x'])", {"x": "a" * (40 << 20)})) == {
        "result": 40 << 20
    }


SPIN = "open('out/part.csv', 'w').write('x')\ndef spin():\n    while True: pass\nspin()"


def test_a_timeout_tells_the_last_stack_and_brings_back_what_was_left(runtime: SyncRuntime) -> None:
    run = runtime.run_code(SPIN, timeout_ms=1500)
    assert (run.status, [file.path for file in run.files]) == ("failed", ["part.csv"])
    assert run.error is not None
    assert run.error["type"] == "TimeoutError"
    assert run.error["message"].endswith('(it was at: File "/workspace/__run__.py", line 3, in spin)')
    assert run.error["traceback"] == (
        'Stack (most recent call last):\n  File "/workspace/__run__.py", line 4, in <module>\n'
        '  File "/workspace/__run__.py", line 3, in spin\n'
    )
    assert run["usage"]["cpu_ms"] > 100


def test_code_that_holds_the_interpreter_is_seen_where_it_was(runtime: SyncRuntime) -> None:
    code = "import re\ndef main():\n    re.match('(a+)+$', 'a' * 40 + 'b')"
    run = runtime.run_code(code, timeout_ms=700)
    assert run.error is not None
    assert 'File "/workspace/__run__.py", line 3, in main' in run.error["message"]
    assert "<re/__init__.py>" in run.error["traceback"]


@pytest.mark.parametrize(
    "hindered",
    [
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGXCPU])\n",
        "import os\nos.close(4)\n",
        "import os\nos.set_blocking(4, False)\nos.write(4, b'x' * 65536)\n",
        "import os\nos.write(4, b'Current thread 0x1:\\n  File \"/etc/shadow\\x1b[2J\", line 1 in \\xff\\n' * 300)\n",
        "import os, time\nfor _ in range(30):\n    if not os.fork():\n        while True: time.sleep(1)\n",
        "import os, signal\nif not os.fork():\n    os.kill(os.getppid(), signal.SIGSTOP)\n",
    ],
)
def test_foreign_code_hinders_neither_the_end_nor_the_files(runtime: SyncRuntime, hindered: str) -> None:
    started = time.monotonic()
    run = runtime.run_code(hindered + SPIN, timeout_ms=700)
    assert run.error is not None
    assert (run.error["type"], [file.path for file in run.files]) == ("TimeoutError", ["part.csv"])
    assert len(run.error.get("traceback", "").encode()) <= 2048
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("ending", ["os._exit(3)", "os.kill(os.getpid(), 9)", "os._exit(0)"])
def test_what_a_program_left_that_ended_without_a_word_comes_back(runtime: SyncRuntime, ending: str) -> None:
    run = runtime.run_code(f"import os\nopen('out/part.csv', 'w').write('x')\n{ending}")
    assert (run.status, [file.path for file in run.files]) == ("failed", ["part.csv"])


def test_a_sandbox_that_ended_with_its_program_says_that_files_are_lost(runtime: SyncRuntime) -> None:
    code = "import os, signal\nopen('out/x', 'w').write('y')\nx = bytearray(10**9)\nwhile True: x += x"
    run = runtime.run_code(code, limits={"memory_mb": 64})
    assert run.status == "failed"
    assert run.files or "lost" in " ".join(run.notes)
