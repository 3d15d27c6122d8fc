"""What a zygote cloned and did not tell of is killed and reaped, and nothing else is."""

from __future__ import annotations

import os
import signal
import time

from skillyard.sandbox.native.keeper.loop import Loop
from skillyard.sandbox.native.keeper.zygotes import process
from skillyard.sandbox.native.linux import kernel


def test_only_what_nobody_knows_ends() -> None:
    zygote, (known, unknown) = _zygote(2)
    stranger = _sleeper()
    try:
        loop = Loop()
        process.end_orphans(loop, zygote, {known})
        deadline = time.monotonic() + 10
        loop.after(0.01, lambda: _stop_when(loop, deadline, unknown))
        loop.run()
        assert not _exists(unknown), "killed and reaped"
        assert _exists(known)
        assert _exists(stranger)
    finally:
        for pid in (known, stranger):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _stop_when(loop: Loop, deadline: float, pid: int) -> None:
    if _exists(pid) and time.monotonic() < deadline:
        loop.after(0.01, lambda: _stop_when(loop, deadline, pid))
    else:
        loop.running = False


def _exists(pid: int) -> bool:
    """A dead one that was not reaped exists too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _zygote(clones: int) -> tuple[int, list[int]]:
    """One that made children for us in its own process group and has ended."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            for _ in range(clones):
                child, _ = kernel.clone_sibling()
                if child == 0:
                    _sleep()
                os.write(writing, f"{child} ".encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    told = os.read(reading, 4096).split()
    os.close(reading)
    os.close(writing)
    return pid, [int(word) for word in told]


def _sleeper() -> int:
    pid = os.fork()
    if pid == 0:
        _sleep()
    return pid


def _sleep() -> None:
    time.sleep(60)
    os._exit(0)
