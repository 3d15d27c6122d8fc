"""The one way to start a process of ours: a clean interpreter with the sockets it is given."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_CODE = (
    "import sys, json; from importlib import import_module; sys.path[:0] = json.loads(sys.argv[1]); "
    "import_module(sys.argv[2]).main(json.loads(sys.argv[3]))"
)


_KILL = """
import os, signal, sys
pidfd = int(sys.argv[1])
with open(f"/proc/self/fdinfo/{pidfd}") as file:
    pid = next(line.split()[1] for line in file if line.startswith("Pid:"))
if int(pid) > 0:
    with open(f"/proc/{pid}/status") as file:
        uid = next(int(line.split()[1]) for line in file if line.startswith("Uid:"))
    os.setresuid(uid, uid, uid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


async def start_own(
    program: str, needs: Iterable[str], config: Mapping[str, Any], env: Mapping[str, str], stderr: int
) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """Starts a process that calls ``main`` of the module ``program``; returns it and our socket.

    ``needs`` are the packages it imports. ``main`` gets ``config`` with ``channel``, the descriptor of its end, and
    ``read``, the directories its modules are in. Raises OSError.
    """
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        process = await asyncio.create_subprocess_exec(
            *command_of(program, needs, {**config, "channel": its.fileno()}),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=stderr,
            env=env,
            cwd="/",
            pass_fds=[its.fileno()],
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        its.close()
    return process, ours


async def kill_own(pidfd: int) -> None:
    """Kills a process of ours that may have another user by now. Raises PermissionError with the remedy.

    Root without CAP_KILL, which many containers lack, may signal its own user's processes alone. With CAP_SETUID it can
    send a process that becomes the other user (kill(2)).
    """
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError:
        executable = getattr(sys, "_base_executable", "") or sys.executable
        words = (executable, "-I", "-S", "-B", "-c", _KILL, str(pidfd))
        nothing = asyncio.subprocess.DEVNULL
        killer = await asyncio.create_subprocess_exec(
            *words, stdin=nothing, stdout=nothing, stderr=nothing, env={}, cwd="/", pass_fds=[pidfd]
        )
        if await killer.wait():
            raise PermissionError(
                errno.EPERM, "a process of another user cannot be killed: give the server CAP_KILL, or CAP_SETUID"
            ) from None


def command_of(program: str, needs: Iterable[str], config: Mapping[str, Any]) -> list[str]:
    """Returns the command that calls ``main`` of ``program`` with ``config`` and ``read``. Raises OSError."""
    roots = _roots(needs)
    whole = {**config, "read": [sys.base_prefix, *roots]}
    executable = getattr(sys, "_base_executable", "") or sys.executable
    return [executable, "-I", "-S", "-B", "-c", _CODE, json.dumps(roots), program, json.dumps(whole)]


def _roots(needs: Iterable[str]) -> list[str]:
    """Returns the directories that hold each package."""
    found = []
    for name in needs:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise OSError(f"{name} is not installed")
        found.append(str(Path(spec.origin).resolve().parents[1]))
    return list(dict.fromkeys(found))
