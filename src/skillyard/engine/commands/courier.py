"""One request to the URL of a callback, through the gate.

The gate judges the host, looks its name up once and dials the very address that it checked.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Mapping
from pathlib import Path

from skillyard.domain.errors import SkillyardError
from skillyard.domain.network.policy import Policy
from skillyard.domain.network.session import ENDPOINT_USER, EgressLimits, EgressPlan, EndpointKind
from skillyard.domain.work.callback import Target
from skillyard.ports.gate import Gate

PATIENCE_S = 20.0
"""How long one request may take in all."""
_MOST_HEAD = 16 * 1024
_LIMITS = EgressLimits(connections=1, connections_total=1, sent_bytes=1 << 20, received_bytes=1 << 20)


class NotDelivered(SkillyardError):
    """Nobody took the request; the message says why."""

    type = "NotDelivered"


class Courier:
    """Sends requests to hosts that ``policy`` allows. ``ca_file`` has further certificates to trust."""

    def __init__(self, gate: Gate, policy: Policy, ca_file: Path | None) -> None:
        self.policy = policy
        self._gate = gate
        self._ca_file = ca_file

    async def post(self, key: str, target: Target, headers: Mapping[str, str], body: bytes) -> int:
        """Returns the status of the answer. ``key`` names the session of the gate. Raises NotDelivered."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                session = await self._gate.open(key, EgressPlan(self.policy, _LIMITS))
                try:
                    endpoint = await self._gate.endpoint(key, EndpointKind.TCP)
                    return await self._posted(endpoint.address, endpoint.credential, target, headers, body)
                finally:
                    await session.close()
        except TimeoutError:
            raise NotDelivered(f"no answer in {PATIENCE_S:g} s") from None
        except NotDelivered:
            raise
        except (SkillyardError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise NotDelivered(f"the connection failed: {_why(error)}") from error

    async def _posted(
        self, address: str, credential: str, target: Target, headers: Mapping[str, str], body: bytes
    ) -> int:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=_MOST_HEAD)
        try:
            login = base64.b64encode(f"{ENDPOINT_USER}:{credential}".encode()).decode()
            at = target.authority
            writer.write(f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\nProxy-Authorization: Basic {login}\r\n\r\n".encode())
            if (status := await _status(reader)) != 200:
                raise NotDelivered(f"the gate did not reach {at} (HTTP {status}): {await _said(reader)}")
            if target.secure:
                await writer.start_tls(self._tls(), server_hostname=target.host)
            fields = {"host": at, **headers, "content-length": str(len(body)), "connection": "close"}
            head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            writer.write(f"POST {target.path} HTTP/1.1\r\n{head}\r\n".encode() + body)
            await writer.drain()
            return await _status(reader)
        finally:  # nothing is left to send, and a farewell in TLS may wait for ever for the other side
            writer.transport.abort()

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self._ca_file is not None:
            context.load_verify_locations(self._ca_file)
        return context


async def _status(reader: asyncio.StreamReader) -> int:
    """Returns the status of an answer, behind its head. Interim answers are passed over."""
    status = 100
    while 100 <= status < 200:
        line = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0].split(b" ", 2)
        if len(line) < 2 or not line[0].startswith(b"HTTP/1.") or not line[1].isdigit() or len(line[1]) != 3:
            raise NotDelivered("the answer is not HTTP")
        status = int(line[1])
    return status


async def _said(reader: asyncio.StreamReader) -> str:
    """Returns the reason that the gate gives."""
    text = (await reader.read(512)).decode("ascii", "replace")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:300]


def _why(error: BaseException) -> str:
    if isinstance(error, SkillyardError):
        return error.message
    return error.strerror or str(error) if isinstance(error, OSError) else "the answer has no proper end"
