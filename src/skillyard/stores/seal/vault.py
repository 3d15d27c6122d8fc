"""Secrets in HashiCorp Vault or OpenBao, engine KV, version 1 or 2, over the HTTP API.

It needs a token with the capability ``read`` on the paths. Answers of the server are bounded in size and time, only the
value is taken from them, and neither the token nor a value stands in an error.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import ssl
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from skillyard.config.secrets import VaultReaderSettings
from skillyard.domain.errors import InvalidInput, StoreFault, shape
from skillyard.domain.secret import Secret
from skillyard.stores.seal.readers import read_small
from skillyard.values import dataclass

if TYPE_CHECKING:
    import httpx2


MOST_CACHED = 1024
_MOST_TOKEN = 8192
WORDS = frozenset({"project", "skill", "name"})
_MOST_TEMPLATE = 512
MOST_BYTES = 2 * 1024 * 1024
"""Vault itself takes requests of at most 32 MiB, and its storage entries of 1 MiB (its page "Limits and maximums")."""

_STATUSES = {
    400: "takes the request for wrong: check mount, path and namespace",
    403: "refuses the token: it may have expired, or its policy lacks 'read' here",
    412: "has not caught up with its own storage; try again",
    429: "has too many requests at once",
    472: "is a standby of disaster recovery, which answers nothing",
    473: "is a performance standby that cannot answer this",
    503: "is sealed or in maintenance",
}


class VaultSecrets:
    """A :class:`skillyard.ports.secrets.SecretReader`. Answers are good for ``cache_s`` seconds; that something is
    missing is asked anew each time, and so is what failed. Used from one event loop."""

    label = "vault"

    def __init__(
        self,
        place: VaultReaderSettings,
        *,
        environ: Mapping[str, str] = os.environ,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises InvalidInput naming the setting."""
        self._place = place
        self._path = parse_template("secrets.vault.path", place.path)
        self._field = parse_template("secrets.vault.field", place.field)
        self._base = f"{_checked_address(place.address)}/v1/{_checked_mount(place.mount)}/" + "data/" * (place.kv == 2)
        self._environ = environ
        self._monotonic = monotonic
        self._client: httpx2.AsyncClient | None = None
        self._cached: dict[str, tuple[float, Answer]] = {}
        self._asking: dict[str, asyncio.Task[Answer | None]] = {}

    async def find(self, name: str, project: str, skill: str) -> Secret | None:
        path, field = self._path.path(project, skill, name), self._field.text(project, skill, name)
        answer = self._kept(path) or await asyncio.shield(self._asked(path))
        if answer is None or field not in answer.fields:
            return None
        value = answer.fields[field]
        if not isinstance(value, str):
            raise StoreFault(f"{self._where(path)} has a field '{field}' that is not text")
        return Secret(name, value, self.label if answer.version is None else f"{self.label}:{answer.version}")

    async def close(self) -> None:
        self._cached.clear()
        for task in list(self._asking.values()):
            task.cancel()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _kept(self, path: str) -> Answer | None:
        until, answer = self._cached.get(path, (0.0, None))
        return answer if self._monotonic() < until else None

    def _asked(self, path: str) -> asyncio.Task[Answer | None]:
        """Returns the one request for a path, which goes on when some of its callers go away."""
        task = self._asking.get(path)
        if task is None:
            task = self._asking[path] = asyncio.create_task(self._ask(path), name="vault")
            task.add_done_callback(lambda done: self._answered(path, done))
        return task

    def _answered(self, path: str, task: asyncio.Task[Answer | None]) -> None:
        self._asking.pop(path, None)
        if not task.cancelled():
            task.exception()  # seen, even if nobody waits any more

    async def _ask(self, path: str) -> Answer | None:
        self._cached.pop(path, None)
        status, body = await self._get(path)
        answer = understand(status, body, self._place.kv, self._where(path))
        if answer is not None and self._place.cache_s:
            while len(self._cached) >= MOST_CACHED:
                del self._cached[next(iter(self._cached))]
            self._cached[path] = (self._monotonic() + self._place.cache_s, answer)
        return answer

    async def _get(self, path: str) -> tuple[int, bytes]:
        """Raises StoreFault."""
        import httpx2

        headers = self._headers()
        if self._client is None:
            self._client = await asyncio.to_thread(self._connect)
        try:
            async with asyncio.timeout(self._place.timeout_s):
                async with self._client.stream("GET", self._base + path, headers=headers) as response:
                    return response.status_code, await _bounded(response, self._where(path))
        except (TimeoutError, httpx2.TimeoutException):
            raise StoreFault(f"{self._where(path)} gave no answer within {self._place.timeout_s:g} s") from None
        except httpx2.HTTPError as error:
            raise StoreFault(f"{self._where(path)} cannot be reached: {_reason(error)}") from None

    def _headers(self) -> dict[str, str]:
        headers = {"X-Vault-Token": self._token(), "X-Vault-Request": "true", "Accept-Encoding": "identity"}
        return headers | ({"X-Vault-Namespace": self._place.namespace} if self._place.namespace else {})

    def _token(self) -> str:
        """Returns the token, read anew each time, since its file may be renewed. Raises StoreFault naming its place."""
        file, variable = self._place.token_file, self._place.token_env
        if file is not None:
            where = f"the token file {file}"
            data = read_small(file, _MOST_TOKEN)
            text = None if data is None else data.decode("ascii", "replace").strip()
        else:
            where, text = f"the variable {variable}", self._environ.get(variable, "").strip()
        if not text:
            raise StoreFault(f"{where} holds no token for Vault")
        if not all("!" <= character <= "~" for character in text):
            raise StoreFault(f"{where} holds something that is not a token for Vault")
        return text

    def _connect(self) -> httpx2.AsyncClient:
        """Reads certificates, which takes a while."""
        import httpx2

        trust = _trust(self._place.ca_file) if self._base.startswith("https:") else False
        limits = httpx2.Limits(max_connections=16, max_keepalive_connections=4)
        timeout = httpx2.Timeout(self._place.timeout_s)
        return httpx2.AsyncClient(
            verify=trust, trust_env=False, follow_redirects=False, limits=limits, timeout=timeout, cookies=None
        )

    def _where(self, path: str) -> str:
        return f"Vault at {self._place.address} ({self._place.mount}/{path})"


def _trust(file: Path | None) -> ssl.SSLContext:
    """The host's certificates, or those of ``file`` instead."""
    try:
        return ssl.create_default_context(cafile=None if file is None else str(file))
    except (OSError, ssl.SSLError) as error:
        raise StoreFault(f"secrets.vault.ca_file {file} cannot be used: {error.strerror or error}") from None


async def _bounded(response: httpx2.Response, where: str) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw(65536):
        body += chunk
        if len(body) > MOST_BYTES:
            raise StoreFault(f"{where} answers with more than {MOST_BYTES} bytes")
    return bytes(body)


def _reason(error: httpx2.HTTPError) -> str:
    """Returns the kind of an error in words of this side, without words of the other."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted ({cause.verify_message})"
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno in errno.errorcode:
            return os.strerror(cause.errno)
        if isinstance(cause, socket.gaierror):
            return str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def _checked_address(address: str) -> str:
    parts = urlsplit(address)
    host = parts.hostname or ""
    if not host or parts.username or parts.query or parts.fragment or parts.path.strip("/"):
        raise InvalidInput("secrets.vault.address", "must be such as https://vault.example.org:8200")
    if parts.scheme != "https" and not (parts.scheme == "http" and _loopback(host)):
        raise InvalidInput("secrets.vault.address", "must be https, or http on the loopback: it carries a token")
    return address.rstrip("/")


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _checked_mount(mount: str) -> str:
    segments = mount.strip("/").split("/")
    if any(segment in ("", ".", "..") for segment in segments):
        raise InvalidInput("secrets.vault.mount", "must be the path of a KV engine, such as 'secret'")
    return "/".join(quote(segment, safe="") for segment in segments)


@dataclass(frozen=True, slots=True)
class Answer:
    """``version`` is the number that KV version 2 counts."""

    fields: Mapping[str, object] = field(repr=False)
    version: int | None = None


def understand(status: int, body: bytes, kv: int, where: str) -> Answer | None:
    """Returns None when there is surely no such secret, or its version was deleted. No word of the answer is repeated.
    Raises StoreFault beginning with ``where``."""
    if status == 404:
        _check_really_missing(_object(body, where), where)
        return None
    if status != 200:
        raise StoreFault(f"{where} {_meaning(status)}")
    data = _object(body, where).get("data")
    if kv == 1 and isinstance(data, dict):
        return Answer(data)
    if kv == 2 and isinstance(data, dict) and isinstance(data.get("metadata"), dict):
        version, fields = data["metadata"].get("version"), data.get("data")
        if isinstance(fields, dict) and type(version) is int and version > 0:
            return Answer(fields, version)
    raise StoreFault(f"{where} answers with something that is not a secret of KV version {kv}")


def _check_really_missing(answer: Mapping[str, Any], where: str) -> None:
    """A path that is not there has empty errors, or the metadata of a deleted version. A mount that is not there has an
    error, and one of the other KV version a warning."""
    if answer.get("errors"):
        raise StoreFault(f"{where} knows no such mount")
    if answer.get("warnings"):
        raise StoreFault(f"{where} is of the other KV version: see secrets.vault.kv")


def _object(body: bytes, where: str) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise StoreFault(f"{where} answers with something that is not a JSON object")
    return answer


def _meaning(status: int) -> str:
    if status in _STATUSES:
        return _STATUSES[status]
    if 300 <= status < 400:
        return "sends us elsewhere; give the address of the active node or of the load balancer"
    return f"answers with status {status}"


@dataclass(frozen=True, slots=True)
class Template:
    """A text with words to be filled in. ``setting`` is its name for errors; ``parts`` are texts with the word that
    follows each, None at the end."""

    setting: str
    parts: tuple[tuple[str, str | None], ...]

    def text(self, project: str, skill: str, name: str) -> str:
        words = {"project": project, "skill": skill, "name": name}
        return "".join(text + (words[word] if word else "") for text, word in self.parts)

    def path(self, project: str, skill: str, name: str) -> str:
        """Returns a path for a URL. Raises StoreFault for words that would change the path."""
        segments = self.text(project, skill, name).split("/")
        if any(segment in ("", ".", "..") for segment in segments):
            raise StoreFault(f"{self.setting} gives no path for the secret '{name}' of skill '{skill}'")
        return "/".join(quote(segment, safe="") for segment in segments)


def parse_template(setting: str, text: str) -> Template:
    """Raises InvalidInput for other words in braces and for a text that is not a path or field."""
    if not text or len(text) > _MOST_TEMPLATE or text != text.strip("/ ") or not text.isprintable():
        raise InvalidInput(
            setting, f"must be 1 to {_MOST_TEMPLATE} characters, without slashes at its ends", shape(text)
        )
    try:
        found = [(before, word, rule, conversion) for before, word, rule, conversion in string.Formatter().parse(text)]
    except ValueError as error:
        raise InvalidInput(setting, f"is not a template: {error}") from None
    if any(word is not None and (word not in WORDS or rule or conversion) for _, word, rule, conversion in found):
        raise InvalidInput(setting, f"may hold {', '.join(f'{{{word}}}' for word in sorted(WORDS))} and no other words")
    return Template(setting, tuple((before, word) for before, word, _, _ in found))
