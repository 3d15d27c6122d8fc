"""Services that attack: programs in a sandbox that are asked over HTTP on loopback.

They are asked by path and by name, as programs and browsers do.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from skillyard.domain.errors import SkillyardError
from skillyard.testing.attacks.attack import Family, Judgement, Need, NotShown, not_applicable
from skillyard.verify.front import VISITOR, Answer, Front
from skillyard.verify.home import SKILL, front_of
from skillyard.verify.site import Site, patiently

PAUSE_S = 0.1
_PATIENCE_S = 60.0
_PORTS = count(18_000, 2)
"""Ports of services, two each: at some isolations all sandboxes have the same ones."""
_KEY = base64.b64encode(b"verify-websocket")
OFFER = (
    b"connection: Upgrade, close\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: %b\r\n" % _KEY
)
"""The fields by which a caller asks for a websocket."""

_LISTENING = r"""
import base64, hashlib, socket, threading, time

PORT = %d
OK = b"HTTP/1.1 200 OK\r\n"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
POISON = b"HTTP/1.1 299 Poison\r\ncontent-length: 6\r\nset-cookie: poison=1\r\n\r\npoison"


def whole(body, more=b"", first=OK):
    return first + more + b"content-length: %%d\r\n\r\n" %% len(body) + body


def accept(head):
    key = [line[18:].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:")][0]
    proof = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    return b"sec-websocket-accept: " + base64.b64encode(proof) + b"\r\n"


def answer(peer, path, head, port):
%s


def one(peer, port):
    with peer:
        try:
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    got = peer.recv(65536)
                    if not got:
                        return
                    data += got
                head, _, data = data.partition(b"\r\n\r\n")
                path = head.split(b" ")[1].partition(b"?")[0].decode()
                if path in ("/", "/good"):
                    peer.sendall(whole(b"good"))
                else:
                    answer(peer, path, head, port)
        except OSError:
            pass


def listening(port):
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        threading.Thread(target=one, args=(listener.accept()[0], port), daemon=True).start()


for port in (PORT, PORT + 1):
    threading.Thread(target=listening, args=(port,), daemon=True).start()
threading.Event().wait()
"""


@dataclass(frozen=True, slots=True)
class Service:
    """A service at work. ``port`` is exposed, and the next one is not."""

    site: Site
    front: Front
    task_id: str
    port: int

    @property
    def host(self) -> bytes:
        name = f"{self.port}-{self.task_id.removeprefix('run_')}"
        return f"{name}.{self.front.domain}:{self.front.port}".encode()

    @property
    def prefix(self) -> str:
        return f"/services/{self.task_id}/{self.port}"

    def request(self, path: str, more: bytes = b"", *, port: int = 0, token: str = "", last: bool = True) -> bytes:
        """Returns a request by path."""
        first = f"GET /services/{self.task_id}/{port or self.port}{path} HTTP/1.1\r\n".encode()
        rights = f"authorization: Bearer {token or self.front.token}\r\n".encode()
        ends = b"connection: close\r\n" if last and b"connection:" not in more else b""
        return first + b"host: " + self.front.host + b"\r\n" + rights + more + ends + b"\r\n"

    async def ask(self, path: str, more: bytes = b"", *, port: int = 0, token: str = "") -> Answer:
        return await self.front.say(self.request(path, more, port=port, token=token))

    async def named(self, path: str, more: bytes, *, host: bytes = b"") -> Answer:
        """Asks by name, with these fields alone."""
        ends = b"" if b"connection:" in more else b"connection: close\r\n"
        head = b"GET " + path.encode() + b" HTTP/1.1\r\nhost: " + (host or self.host) + b"\r\n" + more + ends
        return await self.front.say(head + b"\r\n")

    async def cookie(self) -> bytes:
        """Returns the field of a browser that has opened the service."""
        opened = await self.site.call_as(VISITOR, "skills.open_service", {"task_id": self.task_id, "port": self.port})
        at = urlsplit(opened["url"])
        given = (await self.named(f"{at.path}?{at.query}", b"")).values(b"set-cookie")
        if not given:
            raise NotShown("a ticket gave no cookie")
        return b"cookie: " + given[0].partition(b";")[0] + b"\r\n"


class _NoPorts(Exception):
    """This isolation forwards no ports."""


@asynccontextmanager
async def _service(site: Site, body: str) -> AsyncIterator[Service]:
    """Gives a service whose ``answer`` has this body, once it answers. Raises NotShown, _NoPorts."""
    front, port = front_of(site), next(_PORTS)
    asked = {
        "skill_name": SKILL, "language": "python", "command": _LISTENING % (port, body), "expose_ports": [port],
        "limits": {"memory_mb": 96}, **({"isolation": site.isolation} if site.isolation else {}),
    }  # fmt: skip
    try:
        started = await patiently(lambda: site.call_as(VISITOR, "skills.run_service", asked))
    except SkillyardError as error:
        if "forwarding" in error.message:
            raise _NoPorts(error.message) from None
        raise
    task_id = started["task_id"]
    try:
        service = Service(site, front, task_id, port)
        await _until_it_answers(service)
        yield service
    finally:
        await site.call_as(VISITOR, "skills.task_cancel", {"task_id": task_id})


async def _until_it_answers(service: Service) -> None:
    end = asyncio.get_running_loop().time() + _PATIENCE_S
    while (said := await service.ask("/good")).status != 200:
        if said.status != 503 or asyncio.get_running_loop().time() > end:
            raise NotShown(f"the service does not answer: {said.raw[:300]!r}")
        await asyncio.sleep(PAUSE_S)


Judge = Callable[[Service], Awaitable[Judgement]]


def add(family: Family, name: str, tries: str, body: str, judge: Judge, **options: Any) -> None:
    """Adds an attack of a service. ``body`` is that of ``answer(peer, path, head, port)`` in its program."""

    async def steps(site: Site) -> Judgement:
        try:
            async with _service(site, body) as service:
                return await judge(service)
        except _NoPorts as error:
            return not_applicable(str(error))

    family.steps(name, tries, steps, needs=[Need.IN_PROCESS], **options)
