"""A Docker daemon of the tests' own, in a scratch directory, without networks; and an image made of this machine."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

START_S = 60.0
_TRIES = 3
_BUSY = "timeout waiting for containerd"
"""A daemon's last words on a host that is so busy that its containerd took 15 s to begin."""
RUN_S = 120.0
MOST_PATH = 104
"""Bytes of a socket's path that an engine takes."""
ROOT = Path(__file__).parents[2]
HERE = "skillyard-tests/here:1"
"""Directories and links only: programs and libraries are this machine's, mounted read-only."""


class Docker:
    """The daemon behind ``socket``; ``command`` starts it."""

    def __init__(self, socket: Path, command: Sequence[str] = ()) -> None:
        self.socket = socket
        self._host = f"unix://{socket}"
        self._command, self._log = command, socket.with_name("dockerd.log")
        self.daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the daemon. Skips, with the reason, where it does not start here."""
        assert len(bytes(self.socket)) <= MOST_PATH, f"{self.socket}: no engine takes such a long path of a socket"
        for _ in range(_TRIES):
            if self._starts():
                return
            self.stop()
            why = self._log.read_text(errors="replace").strip()[-300:]
            if _BUSY not in why:
                break
        pytest.skip(f"dockerd does not start here: {why}")

    def _starts(self) -> bool:
        with self._log.open("ab") as output:
            self.daemon = subprocess.Popen(self._command, stdout=output, stderr=output, start_new_session=True)
        deadline = time.monotonic() + START_S
        while self("version", check=False).returncode:
            if self.daemon.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        if self.daemon is not None:
            self.daemon.send_signal(by)
            try:
                self.daemon.wait(START_S)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
            self._await_containerd()

    def _await_containerd(self) -> None:
        """A daemon that is started while its containerd still ends would take it for a live one."""
        pids = self._log.parent / "exec/containerd/containerd.pid"
        deadline = time.monotonic() + START_S
        while pids.exists() and Path("/proc", pids.read_text().strip()).exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    def __call__(
        self, *words: str, check: bool = True, stdin: bytes = b"", seconds: float = RUN_S
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["docker", "-H", self._host, *words],
            input=stdin,
            capture_output=True,
            timeout=seconds,
            env={**os.environ, "DOCKER_BUILDKIT": "0"},
        )
        text = subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
        assert not check or done.returncode == 0, f"{words}: {text.stdout[-2000:]} {text.stderr[-2000:]}"
        return text

    def skillyard(
        self,
        *words: str,
        options: Sequence[str] = (),
        user: int = 0,
        stdin: str = "",
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """A command of this tree in a container with ``options``; never checked."""
        return self.program("-m", "skillyard", *words, options=options, user=user, stdin=stdin, env=env)

    def program(
        self,
        *words: str,
        options: Sequence[str] = (),
        user: int = 0,
        stdin: str = "",
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Python with ``words``, this tree in reach, in a container with ``options``; never checked."""
        variables = {"HOME": "/tmp", "SKILLYARD_DATA_DIR": "/tmp/data", "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
        given = [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
        shown = [word for path in shown_paths() for word in ("-v", f"{path}:{path}:ro")]
        fixed = ["--rm", "-i", "--network", "none", "--user", f"{user}:{user}", "--tmpfs", "/tmp:mode=1777"]
        command = [sys.executable, *words]
        return self("run", *fixed, *given, *shown, *options, HERE, *command, check=False, stdin=stdin.encode())


def shown_paths() -> list[str]:
    """What a Python with our tree needs of this machine."""
    wanted = ["/usr", sys.base_prefix, sys.prefix, str(ROOT)]
    return [path for path in dict.fromkeys(wanted) if not any(path.startswith(f"{other}/") for other in wanted)]


@contextmanager
def docker_daemon(scratch: Path, *options: str, hidden: Path | None = None) -> Iterator[Docker]:
    """Skips, with the reason, where there is none to be had. It sees nothing in the directory ``hidden``."""
    if os.geteuid() != 0:
        pytest.skip("a Docker daemon needs root")
    if shutil.which("dockerd") is None or shutil.which("docker") is None:
        pytest.skip("no dockerd here (Debian: apt install docker.io)")
    socket = scratch / "docker.sock"
    command = ["dockerd", "--data-root", f"{scratch}/data", "--exec-root", f"{scratch}/exec", "-H", f"unix://{socket}"]
    command += ["--pidfile", f"{scratch}/pid", "--iptables=false", "--ip6tables=false", "--bridge=none", *options]
    docker = Docker(socket, command if hidden is None else without(hidden, command))
    try:
        docker.start()
        yield docker
    finally:
        docker.stop()
        unmount_below(scratch)


def without(hidden: Path, command: Sequence[str]) -> list[str]:
    """Returns a command that sees nothing in a directory."""
    hides = 'mount -t tmpfs none "$0" && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", hides, str(hidden), *command]


def unmount_below(scratch: Path) -> None:
    """A daemon with live-restore leaves its mounts, and nobody could remove the directory."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if Path(mount).is_relative_to(scratch)]):
        subprocess.run(["umount", "-l", mount], timeout=RUN_S, check=False)


def import_here(docker: Docker) -> None:
    """The image HERE: a root for the machine's own ``/usr``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("usr", "etc", "tmp", "proc", "sys", "dev", "run", "var"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(directory)
        for name in ("bin", "sbin", "lib", "lib64"):
            if os.path.islink(f"/{name}"):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, os.readlink(f"/{name}")
                tar.addfile(link)
        text = b"root:x:0:0::/root:/bin/sh\n"
        passwd = tarfile.TarInfo("etc/passwd")
        passwd.size, passwd.mode = len(text), 0o644
        tar.addfile(passwd, io.BytesIO(text))
    docker("import", "-", HERE, stdin=buffer.getvalue())
