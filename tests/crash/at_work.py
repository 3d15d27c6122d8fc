"""Tasks, services, jobs and sessions that call a service of the outside: starting them, and whether they did it all.

Each program makes a mark of its own when it starts and sends it with each call, so that the witness counts the starts.
"""

from __future__ import annotations

import base64
import random
import re
from typing import Any

import httpx2

from tests.crash.detached import kinds
from tests.crash.leftovers import until
from tests.crash.server import SMALL, Server
from tests.crash.witness import SKILL, Witness

BOUND_S = 90.0
LIMITS = {**SMALL, "cpus": 1}
PORT, STEPS = 8000, 4
CALLING = """
import http.client, os, random, sys, time, urllib.request

MARK = os.urandom(16).hex()

def called(seed, step, patience=100):
    headers = {{"X-Key": os.environ["KEY"], "X-Start": MARK}}
    until = time.monotonic() + patience
    while True:
        try:
            asking = urllib.request.Request(f"{at}/{{seed}}/{{step}}", headers=headers)
            return urllib.request.urlopen(asking, timeout=20).read().decode()
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() > until:
                return f"nothing: {{error}}"
            time.sleep(0.05)

def held(seed):  # waits until it may go on: its server may be killed meanwhile
    while True:
        try:
            return urllib.request.urlopen(f"{hold_at}/{{seed}}", timeout=20).read()
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)

def closed():
    try:
        urllib.request.urlopen("{elsewhere}", timeout=20).read()
    except OSError:
        return "closed"
    return "OPEN"
"""
WORKING = """
seed, numbers = {seed!r}, random.Random({seed!r})
print("begun", MARK, flush=True)
for step in range({steps}):
    print(step, numbers.randbytes({size}).hex(), flush=True)
    print("aside", step, numbers.randbytes({size}).hex(), file=sys.stderr, flush=True)
    print(called(seed, step), os.environ["TOLD"], closed(), flush=True)
    if step == 1:
        held(seed)
open("made.bin", "wb").write(numbers.randbytes({size}))
sys.exit({code})
"""
SERVING = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        return

    def do_GET(self):
        step = self.path.rpartition("/")[2]
        body = f"{{MARK}} {{called({seed!r}, step)}} {{closed()}}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

print("serving", MARK, flush=True)
ThreadingHTTPServer(("127.0.0.1", {port}), App).serve_forever()
"""
STEP = """
print(called({seed!r}, 0), closed(), flush=True)
with open("/workspace/steps.txt", "a") as steps:
    steps.write("{number}\\n")
if {number} == 1:
    held({seed!r})
print("over", flush=True)
"""
BEGUN = re.compile(r"begun ([0-9a-f]{32})\n")


def program(witness: Witness, text: str, **values: Any) -> str:
    """Returns a program that can call the witness, and no other name."""
    return (CALLING + text).format(at=witness.at, hold_at=witness.hold_at, elsewhere=witness.elsewhere, **values)


class Task:
    """A task, perhaps in a session."""

    def __init__(self, witness: Witness, seed: str, *, code: int = 0, size: int = 300) -> None:
        self.seed, self.code, self.size = seed, code, size
        self._program = program(witness, WORKING, seed=seed, steps=STEPS, size=size, code=code)
        self.id = ""

    def start(self, server: Server, session: str | None = None) -> None:
        with server.client() as client:
            asked: dict[str, Any] = {"language": "python", "limits": LIMITS, "outputs": [{"path": "made.bin"}]}
            asked |= {"timeout_sec": 600, "session_id": session}
            self.id = client.run_cmd_async(SKILL, self._program, **asked)["task_id"]

    def check(self, server: Server, kills: int) -> None:
        with server.client() as client:
            ended = client.task_watch(self.id, timeout_sec=BOUND_S)
            made = [client.read_artifact(made["artifact_id"]) for made in ended["created_artifacts"]]
        told = {stream: "".join(parts) for stream, parts in self._logs(server).items()}
        begun = BEGUN.match(told["stdout"])
        assert begun is not None, (ended, told)
        out, err, file = self.wanted()
        assert told == {"stdout": begun[0] + out, "stderr": err}
        assert (ended["status"], ended["exit_code"], ended["reason"]) == (
            "failed" if self.code else "succeeded",
            self.code,
            "exit",
        )
        assert [(one["filename"], bytes_of(one)) for one in made] == [("made.bin", file)]
        events = kinds(server, self.id)
        assert events.count("running") == 1, events
        assert 1 <= events.count("resumed") <= kills, events

    def _logs(self, server: Server) -> dict[str, list[str]]:
        told: dict[str, list[str]] = {"stdout": [], "stderr": []}
        offset, complete = 0, False
        with server.client() as client:
            while not complete:
                page = client.task_logs(self.id, offset=offset, max_bytes=1 << 20)
                assert not page["dropped"]
                for chunk in page["chunks"]:
                    told[chunk["stream"]].append(chunk["text"])
                offset, complete = page["next_offset"], page["complete"]
        return told

    def wanted(self) -> tuple[str, str, bytes]:
        """Returns what an undisturbed one says behind its first line, says aside, and leaves."""
        numbers, out, err = random.Random(self.seed), [], []
        for step in range(STEPS):
            out.append(f"{step} {numbers.randbytes(self.size).hex()}\n")
            err.append(f"aside {step} {numbers.randbytes(self.size).hex()}\n")
            out.append(f"saw {self.seed}/{step} [redacted] closed\n")
        return "".join(out), "".join(err), numbers.randbytes(self.size)


class Service:
    """A service on one port."""

    def __init__(self, witness: Witness, seed: str) -> None:
        self.seed = seed
        self._program = program(witness, SERVING, seed=seed, port=PORT)
        self.id, self.mark, self.asked = "", "", 0

    def start(self, server: Server) -> None:
        with server.client() as client:
            asked: dict[str, Any] = {"language": "python", "limits": LIMITS, "restart": "on-failure"}
            started = client.run_service(SKILL, self._program, expose_ports=[PORT], ready_pattern="^serving", **asked)
        self.id = started["task_id"]

    def answers(self, server: Server) -> None:
        """It is the same process that answers, and it reaches the outside as before."""
        until(lambda: self._answered(server), BOUND_S, f"{self.id} answers")

    def _answered(self, server: Server) -> bool:
        headers = {"authorization": f"Bearer {server.token}"}
        url = f"{server.url}/services/{self.id}/{PORT}/{self.asked}"
        try:
            answer = httpx2.get(url, headers=headers, timeout=BOUND_S, trust_env=False)
        except httpx2.TransportError:
            return False
        if answer.status_code == 503:  # it does not listen yet
            return False
        mark, told = answer.text.split(" ", 1)
        assert (mark, told) == (self.mark or mark, f"saw {self.seed}/{self.asked} closed")
        self.mark, self.asked = mark, self.asked + 1
        return True

    def end(self, server: Server) -> None:
        with server.client() as client:
            until(lambda: client.task_status(self.id)["startup_ready"], BOUND_S, "it is known to be ready")
            status = client.task_status(self.id)
            assert (status["status"], status["service"]["restarts"]) == ("running", 0), status
            assert client.task_cancel(self.id)["canceled"]
            ended = client.task_status(self.id)
        assert (ended["status"], ended["stdout_tail"]) == ("canceled", f"serving {self.mark}\n"), ended


class Job:
    """Steps that call outside, and a last one that reads what all of them left."""

    def __init__(self, witness: Witness, seed: str) -> None:
        self.seed = seed
        self._seeds = [f"{seed}-{number}" for number in range(STEPS)]
        self._steps: list[dict[str, Any]] = [
            {"command": program(witness, STEP, seed=each, number=number), "language": "python"}
            for number, each in enumerate(self._seeds)
        ]
        self._steps[-1] |= {"name": "last", "outputs": [{"path": "/workspace/steps.txt"}]}
        inputs = [{"artifact_id": "step:last/steps.txt", "mount_path": "copy.txt"}]
        self._steps.append({"command": "cat copy.txt /workspace/steps.txt", "inputs": inputs})
        self.id = ""

    def start(self, server: Server) -> None:
        with server.client() as client:
            asked: dict[str, Any] = {"limits": LIMITS, "max_wall_time_sec": 600}
            self.id = client.start_job(SKILL, self.seed, self._steps, **asked)["job_id"]

    def check(self, server: Server) -> None:
        with server.client() as client:
            ended = client.job_watch(self.id, timeout_sec=BOUND_S)
            client.end_session(self.seed)
        assert (ended["status"], ended["reason"]) == ("succeeded", ""), ended
        each = "".join(f"{number}\n" for number in range(len(self._seeds)))
        said = [*(f"saw {seed}/0 closed\nover\n" for seed in self._seeds), each * 2]
        assert [step["stdout_tail"] for step in ended["steps"]] == said, "a step worked twice, or not at all"
        for step in ended["steps"]:
            assert kinds(server, step["task_id"]).count("running") == 1


def bytes_of(page: dict[str, Any]) -> bytes:
    """Returns the bytes of a page of an artifact."""
    content: str = page["content"]
    return base64.b64decode(content) if page["encoding"] == "base64" else content.encode()
