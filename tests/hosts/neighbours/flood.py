"""One tenant that asks for as much as it can, in a process of its own: ``python flood.py URL TOKEN NAME SECONDS``.

Prints a line when the flood is under way and a line of JSON at its end: how often each HTTP status and each outcome
came, and whether each refusal said when to come again. It lasts until its standard input is closed, or SECONDS.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

LONG_MS = 60_000
SMALL = {"memory_mb": 64, "disk_mb": 16, "pids": 64, "timeout_ms": LONG_MS}

SPIN = "def main(args):\n    while True:\n        pass\n"
SLEEP = "import time\ndef main(args):\n    time.sleep(60)\n"
FORKS = """
import os, signal
def main(args):
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    while True:
        try:
            os.fork()
        except OSError:
            pass
"""
MEMORY = """
import os, time
def main(args):
    while True:
        if os.fork() == 0:
            held = [bytearray(1 << 20) for _ in range(40)]
            files = [open(f'/tmp/{os.getpid()}-{n}', 'wb').write(bytes(1 << 20)) for n in range(4)]
            os._exit(0)
        os.wait()
        os.system('rm -f /tmp/*')
"""
RESULT = "def main(args):\n    return {'text': 'x' * (15 << 20)}\n"
BLOBS = """
from runtime import blobs
def main(args):
    return {'ids': [blobs.write_bytes(bytes(8 << 20)) for _ in range(4)]}
"""
LOGS = """
import os
def main(args):
    while True:
        os.write(1, b'x' * (1 << 20))
"""
TAKE = "def main(args):\n    return {'size': len(args.get('text', ''))}\n"


class Flood:
    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx2.AsyncClient(
            base_url=url,
            headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
            timeout=300,
            limits=limits,
            trust_env=False,
        )
        self.statuses: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.refused_without_time = 0

    async def call(self, content: bytes) -> None:
        try:
            response = await self._http.post("/rpc", content=content)
        except httpx2.TransportError as error:
            self.statuses[type(error).__name__] += 1
            await asyncio.sleep(0.2)
            return
        self.statuses[str(response.status_code)] += 1
        answer = response.json()
        if response.status_code in (429, 503):
            after_ms = answer["error"]["data"].get("retry_after_ms", 0)
            if answer["error"]["code"] != -32005 or not after_ms or "retry-after" not in response.headers:
                self.refused_without_time += 1
            await asyncio.sleep(0.25)  # ruder than it was told to be
        elif "result" in answer:
            self.outcomes[str(answer["result"].get("outcome"))] += 1

    async def again_and_again(self, content: bytes) -> None:
        while True:
            await self.call(content)

    async def dribble(self, path: str) -> None:
        """A body that comes as slowly as is allowed."""
        host, port = self._url.removeprefix("http://").split(":")
        head = (
            f"{'PUT' if path == '/blobs' else 'POST'} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {self._token}\r\nContent-Type: application/json\r\nContent-Length: 33000000\r\n\r\n"
        )
        while True:
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(head.encode())
                for _ in itertools.count():
                    writer.write(b" " * 5000)
                    await writer.drain()
                    await asyncio.sleep(0.5)
            except OSError:
                continue
            finally:
                writer.close()
                reader.feed_eof()


def run(code: str, args: dict[str, Any] | None = None, **limits: int) -> bytes:
    params = {"language": "python", "code": code, "args": args or {}, "limits": {**SMALL, **limits}}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "run_code", "params": params}).encode()


def many(flood: Flood, count: int, content: bytes) -> list[Awaitable[None]]:
    return [flood.again_and_again(content) for _ in range(count)]


def values() -> bytes:
    """Small to send and large to hold."""
    return run(TAKE, {"lists": [[] for _ in range(450_000)]})


FLOODS: dict[str, Callable[[Flood], list[Awaitable[None]]]] = {
    "spinning": lambda flood: many(flood, 80, run(SPIN)),
    "five hundred sleeping": lambda flood: many(flood, 500, run(SLEEP)),
    "fork bombs": lambda flood: many(flood, 80, run(FORKS)),
    "memory hogs": lambda flood: many(flood, 80, run(MEMORY)),
    "five hundred runs": lambda flood: many(flood, 500, run(TAKE)),
    "huge bodies": lambda flood: many(flood, 12, run(TAKE, {"text": "x" * (31 << 20)}, memory_mb=512)),
    "many values": lambda flood: many(flood, 12, values()),
    "slow uploads": lambda flood: [flood.dribble(path) for path in ("/rpc", "/blobs") for _ in range(100)],
    "huge results": lambda flood: many(flood, 12, run(RESULT, memory_mb=256)),
    "blobs": lambda flood: many(flood, 12, run(BLOBS, memory_mb=256)),
    "logs": lambda flood: many(flood, 12, run(LOGS)),
}


async def main(url: str, token: str, name: str, seconds: float) -> None:
    os.nice(19)  # it stands for other machines: what it uses of this one is not the server's doing
    flood = Flood(url, token)
    work = [asyncio.ensure_future(one) for one in FLOODS[name](flood)]
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("under way", flush=True)
    try:
        async with asyncio.timeout(seconds):
            await reader.read()
    except TimeoutError:
        pass
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    told = {
        "statuses": flood.statuses,
        "outcomes": flood.outcomes,
        "refused_without_time": flood.refused_without_time,
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))
