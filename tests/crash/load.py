"""Clients of a server that is killed all the time: each writes down what it was told, and nothing else."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

from tests.crash.ledger import KILLED, Bytes, Ledger, Promise
from tests.crash.programs import BRIEF, FAMILY, QUICK
from tests.crash.server import SMALL, Server
from tests.crash.witness import SKILL, Witness, contents_of, output_of

CALL_S = 60.0
GUIDE = "skills.protocol.guide"
MADE = """
import random
from runtime import blobs

def main(args):
    numbers = random.Random(args["seed"])
    for size in args["sizes"]:
        blobs.write_bytes(numbers.randbytes(size))
    print("l" * args["log"])
    return {"made": len(args["sizes"])}
"""
READ = """
import hashlib
from runtime import blobs

def main(args):
    return {"sha256": hashlib.sha256(blobs.read_bytes(args["blob_id"])).hexdigest()}
"""
_BUSY, _NO_BLOB = -32005, -32602


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.error = error


class Client:
    """One caller with its own connections, which end with the server."""

    def __init__(self, server: Server, witness: Witness, ledger: Ledger, seed: str) -> None:
        self._http = httpx2.AsyncClient(
            base_url=server.url,
            headers={"authorization": f"Bearer {server.token}"},
            timeout=CALL_S,
            trust_env=False,
        )
        self._site = witness
        self._ledger = ledger
        self._chance = random.Random(seed)
        self._stored: list[str] = []

    async def work(self) -> None:
        """Call until the server is gone."""
        calls: tuple[tuple[Callable[[], Awaitable[None]], int], ...] = (
            (self._quick, 5),
            (self._make, 5),
            (self._brief, 2),
            (self._family, 1),
            (self._cancel, 2),
            (self._detach, 2),
            (self._reach, 2),
            (self._detach_and_reach, 3),
            (self._upload, 3),
            (self._read_back, 2),
            (self._delete, 1),
            (self._command, 2),
            (self._task, 3),
            (self._service, 1),
            (self._session, 2),
            (self._job, 1),
        )
        choices, weights = zip(*calls, strict=True)
        try:
            while True:
                await self._tolerant(self._chance.choices(choices, weights)[0])
        except httpx2.TransportError:
            self._ledger.counts["calls cut off"] += 1
        finally:
            await self._http.aclose()

    async def _tolerant(self, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except Refused as refused:
            if refused.error["code"] != _BUSY:
                self._ledger.wrong.append(f"{call.__name__}: {refused.error}")
            self._ledger.counts["refused"] += 1

    async def _quick(self) -> None:
        number = self._chance.randrange(1 << 30)
        key = self._key() if self._chance.random() < 0.5 else None
        run = await self._run(QUICK, {"n": number}, key=key)
        self._expect(run, {"n": number})
        if key is not None and self._chance.random() < 0.3:
            await self._run(QUICK, {"n": number}, key=key)

    async def _make(self) -> None:
        sizes = [self._chance.choice((10, 5_000, 300_000)) for _ in range(self._chance.randint(1, 4))]
        seed, log = self._chance.randrange(1 << 30), self._chance.choice((0, 10_000, 300_000))
        run = await self._run(MADE, {"seed": seed, "sizes": sizes, "log": log})
        numbers = random.Random(seed)
        made = [Bytes.of(numbers.randbytes(size)) for size in sizes]
        self._ledger.blobs.update(zip(run["output_blobs"], made, strict=False))
        if self._expect(run, {"made": len(sizes)}):
            if len(run["output_blobs"]) != len(sizes):
                self._ledger.wrong.append(f"{run['run_id']} made {sizes} and told {run['output_blobs']}")
            if "logs_blob" in run:
                self._ledger.blobs[run["logs_blob"]] = Bytes.of(b"l" * log + b"\n")
            elif log > 4096:
                self._ledger.wrong.append(f"{run['run_id']} printed {log} bytes and told of no log")

    async def _brief(self) -> None:
        number = self._chance.randrange(1 << 30)
        run = await self._run(BRIEF, {"n": number, "seconds": self._chance.uniform(0, 0.4)})
        self._expect(run, {"n": number})

    async def _family(self) -> None:
        """It never ends by itself: its caller goes away."""
        await self._run(FAMILY, timeout_ms=3_600_000, key=self._key(), patience_s=self._chance.uniform(0, 1))

    async def _cancel(self) -> None:
        """Any run that works, of this caller or another."""
        running = (await self._call("runs.list", {"status": "running", "limit": 20}))["runs"]
        if not running:
            return
        run_id = self._chance.choice(running)["run_id"]
        answer = await self._call("runs.cancel", {"run_id": run_id})
        if answer["cancelled"] and answer["run"]["outcome"] != "cancelled":
            self._ledger.wrong.append(f"{run_id} was cancelled, and its record says {answer['run']['outcome']}")
        self._ledger.counts["cancels"] += answer["cancelled"]

    async def _detach(self) -> None:
        """Go away from a run, which outlives the server too, and perhaps wait for it with its key."""
        number, key = self._chance.randrange(1 << 30), self._key()
        args = {"n": number, "seconds": self._chance.uniform(0, 0.6)}
        params = {"language": "python", "code": BRIEF, "args": args, "limits": SMALL, "idempotency_key": key}
        run = await self._call("run_code", {**params, "detach": True})
        self._ledger.promised[run["run_id"]] = Promise({"n": number})
        self._ledger.counts["promised"] += 1
        if self._chance.random() < 0.5:
            self._expect(await self._run(BRIEF, args, key=key), {"n": number})

    async def _reach(self) -> None:
        """Reach the service with a secret. The network of a run that is waited for may end with its gate."""
        args = self._steps(patience=1)
        run = await self._call("execute_skill", {"name": SKILL, "args": args, "limits": SMALL})
        self._ledger.run(run)
        wanted, given = output_of(args), run.get("output") or {}
        if str(given.get("answer")).startswith("nothing: "):
            self._ledger.counts["cut off from the service"] += 1
            wanted["answer"] = given["answer"]
        self._expect(run, wanted)

    async def _detach_and_reach(self) -> None:
        """The same by a run that outlives its server and its gate, with its network."""
        args = self._steps(patience=120)
        params = {"name": SKILL, "args": args, "limits": SMALL, "detach": True}
        run = await self._call("execute_skill", params)
        blobs = tuple(map(Bytes.of, contents_of(args)))
        self._ledger.promised[run["run_id"]] = Promise(output_of(args), blobs)
        self._ledger.counts["promised with a network"] += 1

    def _steps(self, patience: float) -> dict[str, Any]:
        args = {"seed": self._chance.randrange(1 << 30), "steps": self._chance.randint(1, 7), "exit": 0}
        pause = self._chance.uniform(0, 0.3)
        return {
            **args,
            "size": self._chance.choice((10, 20_000)),
            "pause": pause,
            "at": self._site.at,
            "patience": patience,
        }

    async def _upload(self) -> None:
        data = self._chance.randbytes(self._chance.choice((100, 50_000, 3_000_000)))
        pieces = [data[at : at + 200_000] for at in range(0, len(data), 200_000)]
        answer = await self._http.put("/blobs", content=_stream(pieces), headers={"content-type": "text/plain"})
        if answer.status_code != 201:
            raise Refused(answer.json().get("error", {"code": answer.status_code, "text": answer.text}))
        blob_id = answer.json()["blob_id"]
        self._ledger.blobs[blob_id] = Bytes.of(data)
        self._stored.append(blob_id)

    async def _read_back(self) -> None:
        """One that was uploaded to this server, from inside a run."""
        if self._stored:
            blob_id = self._chance.choice(self._stored)
            run = await self._run(READ, {"blob_id": blob_id}, input_blobs=[blob_id])
            self._expect(run, {"sha256": self._ledger.blobs[blob_id].sha256})

    async def _delete(self) -> None:
        if self._stored:
            blob_id = self._stored.pop(self._chance.randrange(len(self._stored)))
            self._ledger.doubtful.add(blob_id)
            await self._call("blobs.delete", {"blob_id": blob_id})
            self._ledger.deleted.add(blob_id)

    async def _command(self) -> None:
        number = self._chance.randrange(1 << 30)
        ran = await self._call("skills.run_cmd", self._shell(f"echo {number}; echo aside {number} >&2"))
        self._ledger.counts[f"command {ran['reason'] or ran['status']}"] += 1
        told = (ran["status"], ran["stdout"], ran["stderr"])
        if (
            ran["reason"] == "exit"
            and ran["exit_code"] != KILLED
            and told != ("succeeded", f"{number}\n", f"aside {number}\n")
        ):
            self._ledger.wrong.append(f"the command {ran['run_id']} with {number} gave {told}")

    async def _task(self) -> None:
        number = self._chance.randrange(1 << 30)
        command = f"echo {number}; sleep {self._chance.uniform(0, 0.6):.3f}; echo {number}"
        task = await self._call("skills.run_cmd_async", self._shell(command))
        self._ledger.tasks[task["task_id"]] = f"{number}\n{number}\n"
        if self._chance.random() < 0.3:
            await self._call("skills.task_watch", {"task_id": task["task_id"], "timeout_sec": 2})

    async def _service(self) -> None:
        """One that serves for a moment."""
        number = self._chance.randrange(1 << 30)
        command = f"timeout 0.5 python3 -m http.server 8000 > /dev/null 2>&1; echo {number}"
        service = await self._call("skills.run_service", self._shell(command) | {"expose_ports": [8000]})
        self._ledger.tasks[service["task_id"]] = f"{number}\n"

    async def _session(self) -> None:
        """Files of a session that is there are those that its calls wrote, each once."""
        number, alias = self._chance.randrange(1 << 30), f"alias{self._chance.randrange(2)}"
        params = self._shell(f"echo {number} >> ../lines; cat ../lines") | {"session_id": alias, "wait_ms": 3000}
        ran = await self._call("skills.run_cmd", params)
        self._ledger.counts[f"session {ran['reason'] or ran['status']}"] += 1
        lines = ran["stdout"].splitlines()
        ended = ran["reason"] == "exit" and ran["exit_code"] != KILLED
        if ended and (lines[-1:] != [str(number)] or len(set(lines)) < len(lines)):
            self._ledger.wrong.append(f"the call {ran['run_id']} of {alias} wrote {number} and read {lines}")

    async def _job(self) -> None:
        """Two steps in a session of their own."""
        key = self._key()
        steps = [{"command": f"echo {step} >> ../steps; cat ../steps"} for step in range(2)]
        params = {"skill_name": GUIDE, "session_id": key, "steps": steps, "limits": SMALL, "max_wall_time_sec": 300}
        self._ledger.jobs[(await self._call("skills.start_job", params))["job_id"]] = ["0\n", "0\n1\n"]
        self._ledger.counts["jobs"] += 1

    def _shell(self, command: str) -> dict[str, Any]:
        return {"skill_name": GUIDE, "command": command, "limits": SMALL}

    def _key(self) -> str:
        return uuid.UUID(int=self._chance.getrandbits(128)).hex

    async def _run(
        self,
        code: str,
        args: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        patience_s: float = CALL_S,
        **more: Any,
    ) -> dict[str, Any]:
        """The Run object; empty when the caller's patience was at its end first."""
        params = {"language": "python", "code": code, "args": args or {}, "limits": SMALL, **more}
        if key is not None:
            params["idempotency_key"] = key
        try:
            async with asyncio.timeout(patience_s):
                run = await self._call("run_code", params)
        except TimeoutError:
            return {}
        if run["status"] == "running":  # a detached one, which its server left to the next
            return {}
        self._ledger.run(run, key)
        return run

    def _expect(self, run: dict[str, Any], output: dict[str, Any]) -> bool:
        """Whether it completed, and then with this output."""
        if not run or run["status"] != "completed":
            return False
        if run["output"] != output:
            self._ledger.wrong.append(f"{run['run_id']} gave {run['output']}, should be {output}")
        return True

    async def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer: dict[str, Any] = (await self._http.post("/rpc", json=request)).json()
        if "error" in answer:
            raise Refused(answer["error"])
        result: dict[str, Any] = answer["result"]
        return result


async def _stream(pieces: list[bytes]) -> Any:
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)
