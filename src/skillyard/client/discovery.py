"""Finds the server and its token: arguments, then the environment, then the data directory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from urllib.parse import urlsplit

from skillyard.client.errors import BadArgument, Unreachable
from skillyard.values import dataclass

START_ONE = "start one with `skillyard serve`, or name one by --url or SKILLYARD_URL"
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}  # noqa: S104
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """``http://host:port/prefix``, taken apart. ``prefix`` has no slash at its end."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> ServerUrl:
        """Raises BadArgument for anything but a plain http or https URL."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise BadArgument(f"url: not a URL: {error}") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise BadArgument("url: must be like http://127.0.0.1:8765")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise BadArgument("url: must hold no user, query or fragment; pass the token as the token")
        if not (text.isascii() and text.isprintable() and " " not in text):
            raise BadArgument("url: must be printable ASCII without spaces")
        return cls(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], parts.path.rstrip("/"))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}{self.prefix}"

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def same_server(self, other: ServerUrl) -> bool:
        return self._identity() == other._identity()

    def _identity(self) -> tuple[str, str, int, str]:
        return self.scheme, _ANY_ADDRESS.get(self.host, self.host), self.port, self.prefix


@dataclass(frozen=True, slots=True)
class Server:
    """Where to connect. ``token`` None: the server may still serve us, when it runs without auth."""

    url: ServerUrl
    token: str | None = field(repr=False)


def default_data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """``SKILLYARD_DATA_DIR``, else ``skillyard`` below the XDG data home."""
    if named := environ.get("SKILLYARD_DATA_DIR"):
        return Path(named).expanduser()
    home = environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    return Path(home) / "skillyard"


def find_server(
    url: str | None = None,
    token: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Server:
    """The server to talk to. Raises Unreachable when none is known, BadArgument for a bad URL or token.

    The token of a data directory is given to that directory's own server only.
    """
    directory = Path(data_dir) if data_dir is not None else default_data_dir(environ)
    token = token or environ.get("SKILLYARD_TOKEN") or None
    named = url or environ.get("SKILLYARD_URL") or None
    own = recorded_url(directory)
    target = ServerUrl.parse(named) if named else own
    if target is None:
        raise Unreachable(f"no server is known ({directory} has none running): {START_ONE}")
    if token is None and own is not None and own.same_server(target):
        token = _own_token(directory)
    return Server(_reachable(target), checked_token(token))


def recorded_url(data_dir: Path) -> ServerUrl | None:
    """The URL that the server of ``data_dir`` wrote down, while its process is alive."""
    file = data_dir / "server.json"
    try:
        record, owner = json.loads(file.read_bytes()), file.stat().st_uid
        url, pid = ServerUrl.parse(str(record["url"])), int(record["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return url if _alive(pid, owner) else None


def checked_token(token: str | None) -> str | None:
    """Raises BadArgument for what cannot stand in a header."""
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise BadArgument("token: must be printable ASCII without spaces")
    return token


def _own_token(data_dir: Path) -> str | None:
    try:
        return (data_dir / "token").read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None


def _reachable(url: ServerUrl) -> ServerUrl:
    """A server that listens on every address is reached over loopback."""
    if url.host in ("0.0.0.0", "::"):  # noqa: S104
        return ServerUrl(url.scheme, _ANY_ADDRESS[url.host], url.port, url.prefix)
    return url


def _alive(pid: int, owner: int) -> bool:
    """Returns whether a process lives and is of the user ``owner``.

    Somebody else could take the number and the port of a server that was killed, and be given its token.
    """
    ours = True
    try:
        os.kill(pid, 0)
    except PermissionError:
        ours = False
    except (OSError, OverflowError):
        return False
    if pid <= 0:
        return False
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:  # there is no /proc, or it hides processes: then only root may signal those of others
        return ours and os.geteuid() == owner != 0
    return status.partition("\nUid:")[2].split()[:1] == [str(owner)]
