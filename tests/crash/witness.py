"""A service of the outside that counts its callers, and a skill that calls it with a secret that the gate delivers."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from skillyard.stores.seal.secrets import SealedSecrets
from tests.bundles import action
from tests.conformance.gate.intercepted import TOKEN, Outside
from tests.conformance.gate.programs.web import Asked
from tests.crash.server import Server

HOLD_S = 10.0
TOLD = "told-to-the-run-and-never-shown"
"""The value of a secret that stands in the sandbox's environment."""
SKILL = "tests.steps"
MANIFEST = action(
    "tests.steps",
    "Takes steps, and tells a service of some of them",
    """
[permissions]
network = ["api.test:{port}"]
secrets = ["TOLD", {{ name = "KEY", delivery = "gate", hosts = ["api.test:{port}"] }}]
""",
)
STEPS = """
import http.client, os, random, sys, time, urllib.request
from runtime import blobs

MARK = os.urandom(16).hex()

def called(args, step):
    headers = {"X-Key": os.environ.get("KEY", "none"), "X-Start": MARK}
    until = time.monotonic() + args.get("patience", 120)
    while True:
        try:
            asking = urllib.request.Request(f"{args['at']}/{args['seed']}/{step}", headers=headers)
            return urllib.request.urlopen(asking, timeout=20).read().decode()
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() > until:
                return f"nothing: {error}"
            time.sleep(0.05)

def main(args):
    print("begun", MARK, flush=True)
    numbers, answer = random.Random(args["seed"]), ""
    for step in range(args["steps"]):
        print(step, numbers.randbytes(200).hex(), flush=True)
        print("aside", step, file=sys.stderr, flush=True)
        blobs.write_bytes(numbers.randbytes(args["size"]))
        if "at" in args and step % 5 == 0:
            answer = called(args, step)
            print(answer, os.environ.get("TOLD", "none"), flush=True)
        time.sleep(args["pause"])
    if args["exit"]:
        os._exit(args["exit"])
    return {"steps": args["steps"], "last": numbers.randbytes(8).hex(), "answer": answer}
"""
"""Its first line tells one start from another; all else is the same whenever it is called."""
BEGUN = re.compile(r"begun ([0-9a-f]{32})\n")


def keyed(args: dict[str, Any]) -> bool:
    """Returns whether a run with ``args`` has secrets: the skill's, at its TLS service."""
    return str(args.get("at", "")).startswith("https:")


def log_of(args: dict[str, Any]) -> str:
    """Returns the log of an undisturbed run behind its first line."""
    numbers, lines = random.Random(args["seed"]), []
    for step in range(args["steps"]):
        lines += [f"{step} {numbers.randbytes(200).hex()}\n", f"aside {step}\n"]
        numbers.randbytes(args["size"])
        if "at" in args and step % 5 == 0:
            lines.append(f"saw {args['seed']}/{step} {'[redacted]' if keyed(args) else 'none'}\n")
    return "".join(lines)


def contents_of(args: dict[str, Any]) -> list[bytes]:
    """Returns its blobs, in their order."""
    numbers, made = random.Random(args["seed"]), []
    for _ in range(args["steps"]):
        numbers.randbytes(200)
        made.append(numbers.randbytes(args["size"]))
    return made


def output_of(args: dict[str, Any]) -> dict[str, Any]:
    """Returns its result."""
    numbers = random.Random(args["seed"])
    for _ in range(args["steps"]):
        numbers.randbytes(200)
        numbers.randbytes(args["size"])
    last = (args["steps"] - 1) // 5 * 5
    answer = f"saw {args['seed']}/{last}" if "at" in args else ""
    return {"steps": args["steps"], "last": numbers.randbytes(8).hex(), "answer": answer}


class Witness:
    """The service, as far as ``calls`` by run and step, and the marks of ``starts`` by run.

    The skill calls it at ``at``. Code without secrets calls it at ``plain_at``. Programs that ask at ``hold_at`` are in
    ``held`` by the last part of the path, and answered once ``free`` is set. ``strangers`` are callers that did not
    show the secret, or showed one. ``env`` has servers know the skill and reach the service.
    """

    def __init__(self, home: Path) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.starts: defaultdict[str, set[str]] = defaultdict(set)
        self.strangers: list[Asked] = []
        self.held: set[str] = set()
        self.free = threading.Event()
        self._lock = threading.Lock()
        self._outside = Outside(home)
        self._outside.routes |= {"/count/": self._count, "/hold/": self._hold}
        port, plain = self._outside.https.port, f"plain.test:{self._outside.http.port}"
        self.at, self.plain_at = f"https://api.test:{port}/count", f"http://{plain}/count"
        self.hold_at, self.elsewhere = f"https://api.test:{port}/hold", f"https://other.test:{port}/"
        skill = home / "skills" / SKILL
        (skill / "code").mkdir(parents=True)
        (skill / "skill.toml").write_text(MANIFEST.format(port=port))
        (skill / "SKILL.md").write_text("---\nname: steps\ndescription: Takes steps\n---\nIt takes steps.\n")
        (skill / "code" / "main.py").write_text(STEPS)
        self.env = {
            "SKILLYARD_NETWORK__CA_FILE": str(self._outside.authority.ca_file),
            "SKILLYARD_NETWORK__HOSTS": json.dumps({"api.test": "127.0.0.1", "plain.test": "127.0.0.1"}),
            "SKILLYARD_NETWORK__RUN_CODE": json.dumps([plain]),
            "SKILLYARD_NETWORK__RULES": json.dumps([f"api.test:{port}", plain]),
            "SKILLYARD_SKILLS_DIRS": str(home / "skills"),
        }

    def __enter__(self) -> Witness:
        return self

    def __exit__(self, *_: object) -> None:
        self._outside.close()

    def server(self, data_dir: Path, *, ready: int = 0) -> Server:
        """Starts a server whose store has the secrets."""
        if not data_dir.exists():
            asyncio.run(self.seal(data_dir))
        return Server(data_dir, ready=ready, **self.env)

    async def seal(self, data_dir: Path) -> None:
        data_dir.mkdir(mode=0o700)
        store = SealedSecrets(data_dir)
        await store.set("KEY", TOKEN)
        await store.set("TOLD", TOLD)

    def wrong(self) -> list[str]:
        """Returns a line for each run that was started twice, and for each caller with a wrong secret."""
        with self._lock:
            twice = [
                f"run {seed} was started {len(marks)} times" for seed, marks in self.starts.items() if len(marks) > 1
            ]
            return [*twice, *(f"{asked.target} was asked for with {asked.headers}" for asked in self.strangers)]

    def _count(self, asked: Asked) -> tuple[int, dict[str, str], bytes]:
        seed, step = asked.target.split("/")[2:4]
        with self._lock:
            self.calls[seed, step] += 1
            self.starts[seed].add(asked.headers.get("x-start", ""))
            if asked.headers.get("x-key") != (TOKEN if asked.server == "https" else "none"):
                self.strangers.append(asked)
        return 200, {"content-type": "text/plain"}, f"saw {seed}/{step}".encode()

    def _hold(self, asked: Asked) -> tuple[int, dict[str, str], bytes]:
        self.held.add(asked.target.rpartition("/")[2])
        return 200 if self.free.wait(HOLD_S) else 503, {}, b""


def leaks(data_dir: Path) -> list[str]:
    """Returns the files below ``data_dir`` that show a secret."""
    values = (TOKEN.encode(), TOLD.encode())
    files = [path for path in data_dir.rglob("*") if path.is_file()]
    return [str(path) for path in files if any(value in path.read_bytes() for value in values)]
