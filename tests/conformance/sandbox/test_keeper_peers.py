"""Who may speak with a keeper, and whom a server takes for one: as the kernel knows them (unix(7), SO_PEERCRED)."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillyard.config.backends import NativeSettings
from skillyard.domain.errors import SandboxFault
from skillyard.ipc.peers import peer
from skillyard.sandbox.native.backend import NativeBackend

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else"),
]

STRANGER = 64_329
CONNECT = """
import os, socket, sys
os.setgroups([]); os.setresgid({id}, {id}, {id}); os.setresuid({id}, {id}, {id})
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect("keeper.sock")
    sock.settimeout(20)
    print(sock.recv(4096))
"""
LISTEN = """
import os, socket
os.setgroups([]); os.setresgid({id}, {id}, {id}); os.setresuid({id}, {id}, {id})
with socket.socket(socket.AF_UNIX) as sock:
    sock.bind("keeper.sock")
    sock.listen()
    print("listening", flush=True)
    input()
"""


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[NativeBackend]:
    backend = NativeBackend(tmp_path / "run", NativeSettings(ready=0))
    if not (probe := await backend.probe()).ready:
        pytest.skip(probe.facts["why"])
    yield backend
    await backend.close()


def run(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-I", "-c", code.format(id=STRANGER)]
    return subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=60)


async def test_a_keeper_takes_no_other_user(backend: NativeBackend, tmp_path: Path) -> None:
    """Should the modes of its directory fail to keep others out."""
    run_dir = tmp_path / "run"
    (run_dir / "keeper.sock").chmod(0o777)
    for directory in (run_dir, *run_dir.parents[:-2]):
        directory.chmod(directory.stat().st_mode | stat.S_IXOTH)
    done = run(CONNECT, run_dir)
    assert done.stdout.strip() == "b''", (done.stdout, done.stderr)
    assert (await backend.stats())["pid"] == 1


async def test_a_server_takes_no_other_users_socket_for_a_keeper(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o777)
    run_dir.chmod(0o777)
    for directory in run_dir.parents[:-2]:
        directory.chmod(directory.stat().st_mode | stat.S_IXOTH)
    code = LISTEN.format(id=STRANGER)
    with subprocess.Popen(
        [sys.executable, "-I", "-c", code], cwd=run_dir, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as impostor:
        assert impostor.stdout is not None
        assert impostor.stdout.readline() == b"listening\n"
        with pytest.raises(SandboxFault, match=f"the user {STRANGER} answers in place of the keeper"):
            await NativeBackend(run_dir, NativeSettings(ready=0)).facts()
        impostor.kill()


async def test_who_connects_sees_the_keeper_itself(backend: NativeBackend) -> None:
    """And not the process that made the socket, which has ended."""
    link = backend._link
    assert link is not None
    pid, uid = peer(link._channel._sock)
    assert uid == 0
    assert Path(f"/proc/{pid}").exists()
