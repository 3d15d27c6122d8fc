"""Starting a keeper, or finding the one that an earlier server left."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skillyard.domain.errors import SandboxFault, SandboxGone
from skillyard.ipc.peers import peer

_START_BOUND_S = 60.0
_LOOK_AGAIN_S = 0.02
_CODE = "import sys, json; sys.path.insert(0, sys.argv[1]); from {} import main; main(json.loads(sys.argv[2]))"


async def start(run_dir: Path, program: str, options: Mapping[str, Any]) -> socket.socket:
    """Returns a connected, non-blocking socket of a new keeper. Raises SandboxFault, SandboxGone where another came.

    ``program`` is the module whose ``main`` becomes the keeper; it gets ``run_dir`` and ``options``.
    """
    make(run_dir)
    if (found := await find(run_dir)) is not None:
        found.close()
        raise SandboxGone("another keeper was there first")
    pid = await _start(run_dir, program, options)
    started = _connect(run_dir)
    if started is None:
        raise SandboxFault("the keeper started and cannot be reached")
    if (found_pid := peer(started)[0]) != pid:
        started.close()
        raise SandboxFault(f"{run_dir}: process {found_pid} answers in place of the keeper, which is {pid}")
    return started


def make(run_dir: Path) -> None:
    """Makes the directory of a keeper. Raises SandboxFault."""
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SandboxFault(f"the keeper cannot start: {run_dir}: {error.strerror}") from error


async def find(run_dir: Path) -> socket.socket | None:
    """Returns a connected, non-blocking socket of the keeper that is there, if any. Raises SandboxFault.

    One that starts or ends holds the lock and takes no connection: it is waited for.
    """
    try:
        async with asyncio.timeout(_START_BOUND_S):
            while (found := _connect(run_dir)) is None and keeper_lives(run_dir):  # noqa: ASYNC110 - a lock cannot be awaited
                await asyncio.sleep(_LOOK_AGAIN_S)
            return found
    except TimeoutError:
        raise SandboxFault("a keeper holds this data directory and cannot be reached") from None


def _connect(run_dir: Path) -> socket.socket | None:
    """Through a descriptor of the directory: its path may be longer than a socket address."""
    directory = os.open(run_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(f"/proc/self/fd/{directory}/keeper.sock")
    except OSError:
        sock.close()
        return None
    finally:
        os.close(directory)
    if (uid := peer(sock)[1]) not in (os.geteuid(), 0):
        sock.close()
        raise SandboxFault(f"{run_dir}: the user {uid} answers in place of the keeper; remove keeper.sock")
    sock.setblocking(False)
    return sock


async def _start(run_dir: Path, program: str, options: Mapping[str, Any]) -> int:
    """Starts the keeper and returns its pid. Raises SandboxFault."""
    config: dict[str, Any] = {"run_dir": str(run_dir.resolve()), **options}
    package_root = str(Path(__file__).resolve().parents[3])
    executable = getattr(sys, "_base_executable", "") or sys.executable
    try:
        process = await asyncio.create_subprocess_exec(
            executable,
            *("-I", "-S", "-B", "-c", _CODE.format(program), package_root, json.dumps(config)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"LANG": "C.UTF-8"},
            cwd="/",
        )
    except OSError as error:
        raise SandboxFault(f"the keeper cannot start: {executable}: {error.strerror}") from error
    try:
        async with asyncio.timeout(_START_BOUND_S):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise SandboxFault("the keeper did not start in time") from None
    said = _parse(out)
    if "pid" not in said:
        why = said.get("error") or err.decode("utf-8", "replace").strip()[-500:] or f"exit code {process.returncode}"
        raise SandboxFault(f"the keeper cannot start: {why}")
    return int(said["pid"])


def _parse(out: bytes) -> dict[str, Any]:
    try:
        said = json.loads(out)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def keeper_lives(run_dir: Path) -> bool:
    """Whether a keeper holds this directory's lock."""
    return version_of(run_dir) is not None


def version_of(run_dir: Path) -> int | None:
    """Returns the version that the living keeper of this directory speaks, None without one.

    It is 0 for a keeper that just starts, or did not write its version down.
    """
    try:
        fd = os.open(run_dir / "keeper.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        written = os.pread(fd, 16, 0)
        return int(written) if written.isdigit() else 0
    finally:
        os.close(fd)
    return None
