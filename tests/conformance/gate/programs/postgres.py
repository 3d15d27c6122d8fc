"""A PostgreSQL server of the tests: one directory, one process, over TCP with TLS and without."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PASSWORD = "of-the-tests"
USER = "yard"
_BOUND_S = 40.0


class Absent(Exception):
    """There is no PostgreSQL here; the message says where it was looked for."""


class Postgres:
    """Listens on ``address`` and ``port``; accepts :data:`USER` with :data:`PASSWORD`, encrypted or not. ``certified``
    are the files of its certificate and key. As root it runs as ``nobody``, since it refuses root. Raises Absent."""

    def __init__(self, address: str, port: int, certified: tuple[Path, Path]) -> None:
        self._bin = _binaries()
        _check_account()
        self._home = Path(tempfile.mkdtemp(prefix="skillyard-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port
        try:
            self._make(certified)
            self._start(address)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(_BOUND_S)
        shutil.rmtree(self._home, ignore_errors=True)

    def _make(self, certified: tuple[Path, Path]) -> None:
        word = self._home / "word"
        word.write_text(PASSWORD)
        for source, name in zip(certified, ("server.crt", "server.key"), strict=True):
            (self._home / name).write_bytes(source.read_bytes())
            (self._home / name).chmod(0o600)
        if os.geteuid() == 0:
            for path in (self._home, *self._home.iterdir()):
                shutil.chown(path, "nobody")
        words = [
            "-D",
            "data",
            "-U",
            USER,
            "-A",
            "scram-sha-256",
            "--pwfile",
            "word",
            "-N",
            "--locale",
            "C",
            "-E",
            "UTF8",
        ]
        subprocess.run([self._bin / "initdb", *words], check=True, capture_output=True, timeout=_BOUND_S, **self._as())
        with (self._home / "data" / "pg_hba.conf").open("a") as file:
            file.write("host all all all scram-sha-256\n")

    def _start(self, address: str) -> None:
        settings = {
            "listen_addresses": address, "port": self.port, "unix_socket_directories": self._home, "fsync": "off",
            "ssl": "on", "ssl_cert_file": self._home / "server.crt", "ssl_key_file": self._home / "server.key",
            "max_connections": 40, "shared_buffers": "8MB", "logging_collector": "off",
        }  # fmt: skip
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self._home / "log").open("wb") as log:
            command: Sequence[str | Path] = [self._bin / "postgres", "-D", "data", *words]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as())
        deadline = time.monotonic() + _BOUND_S
        while True:
            try:
                socket.create_connection((address, self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise AssertionError((self._home / "log").read_text()) from None
                time.sleep(0.02)

    def _as(self) -> dict[str, Any]:
        who = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid} if os.geteuid() == 0 else {}
        return {"cwd": self._home, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C"}, **who}


def _check_account() -> None:
    """Raises Absent for a user without a line in passwd(5), whom initdb refuses."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise Absent(f"initdb refuses the user id {os.geteuid()}, which has no account") from None


def _binaries() -> Path:
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = next((place for place in places if (place / "initdb").exists()), None)
    if found is None:
        raise Absent("no initdb in /usr/lib/postgresql/*/bin")
    return found
