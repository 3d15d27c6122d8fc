"""Attacks by way of terminals, as E2B's SDK gives them: out of the sandbox, into others, and against the server."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2b import PtySize
from e2b.exceptions import SandboxException

from tests.faces.e2b.conftest import Yard

Until = Callable[[Callable[[], object]], None]
SIZE = PtySize(rows=20, cols=80)


def typed(sandbox: Any, text: str) -> str:
    """Types into a shell on a terminal of its own; returns all that it shows."""
    terminal = sandbox.pty.create(SIZE, envs={"PS1": ""}, timeout=120)
    sandbox.pty.send_stdin(terminal.pid, f"{text}\nexit\n".encode())
    shown: list[bytes] = []
    with contextlib.suppress(SandboxException):
        terminal.wait(on_pty=shown.append)
    return b"".join(shown).decode(errors="replace")


def test_a_terminal_is_of_its_own_sandbox_alone(yard: Yard, sandbox: Any, until: Until) -> None:
    """Each sees its own; what one writes to every terminal that it can open reaches no other sandbox."""
    other = yard.create(timeout=300)
    try:
        heard: list[bytes] = []
        victim = sandbox.pty.create(SIZE, envs={"PS1": ""}, timeout=120)
        write = (
            "import os\n"
            "names = sorted(os.listdir('/dev/pts'))\n"
            "for name in names:\n"
            "    with open(f'/dev/pts/{name}', 'wb', buffering=0) as file: file.write(b'from mallory')\n"
            "print(names, os.path.realpath('/dev/ptmx'), os.stat('/dev/pts').st_dev != os.stat('/').st_dev)\n"
        )
        other.files.write("write.py", write)
        with contextlib.suppress(SandboxException):
            other.commands.run("python3 write.py")
        sandbox.pty.send_stdin(victim.pid, b"echo in''tact; exit\n")
        with contextlib.suppress(SandboxException):
            victim.wait(on_pty=heard.append)
        assert b"intact" in b"".join(heard)
        assert b"mallory" not in b"".join(heard)
        assert "'1'" not in other.commands.run("ls /dev/pts; true").stdout
        assert yard.envd(other, "/process.Process/SendInput", _input(victim.pid)).status_code == 404
    finally:
        other.kill()


def _input(pid: int) -> dict[str, Any]:
    return {"process": {"pid": pid}, "input": {"pty": base64.b64encode(b"x").decode()}}


def test_nobody_types_into_the_terminal_of_another_program(sandbox: Any) -> None:
    """Requests that put words into a terminal's input, or take the console, are refused (ioctl_tty(2))."""
    sandbox.files.write(
        "type.py",
        "import ctypes, errno, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "names = [f'/dev/pts/{name}' for name in os.listdir('/dev/pts') if name != 'ptmx']\n"
        "fds = [0, *(os.open(name, os.O_RDWR | os.O_NOCTTY) for name in names)]\n"
        "for fd in fds:\n"
        "    for request in (0x5412, 0x541C, 0x541D, 0x5423, 0x100005412):\n"
        "        ctypes.set_errno(0)\n"
        "        libc.ioctl(fd, ctypes.c_ulong(request), ctypes.create_string_buffer(b'x'))\n"
        "        print('said', errno.errorcode.get(ctypes.get_errno(), 'DONE'))\n",
    )
    shown = typed(sandbox, "python3 type.py")
    assert shown.count("said") >= 10
    assert "DONE" not in shown


def test_a_terminal_leads_out_of_nothing(sandbox: Any) -> None:
    shown = typed(
        sandbox,
        "tty; cat /proc/self/status | grep -E 'CapEff|NoNewPrivs|Seccomp:'; id -u; "
        "for f in console tty0 ttyS0 pts/../kmsg; do (exec 3<>/dev/$f) 2>/dev/null && echo OPEN''ED /dev/$f; done",
    )
    assert "CapEff:\t0000000000000000" in shown
    assert "NoNewPrivs:\t1" in shown
    assert "Seccomp:\t2" in shown
    assert "OPENED" not in shown  # the echo of the line has it in two pieces


@pytest.mark.parametrize(
    "size", [{"rows": -1, "cols": 80}, {"rows": 65536, "cols": 80}, {"rows": "x", "cols": 1}, {"rows": 1.5}, [], "x",
             {"rows": 10**30, "cols": 1}, {"rows": True, "cols": 1}]
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused_and_the_terminal_works_on(yard: Yard, sandbox: Any, size: Any) -> None:
    terminal = sandbox.pty.create(SIZE, timeout=120)
    try:
        told = yard.envd(sandbox, "/process.Process/Update", {"process": {"pid": terminal.pid}, "pty": {"size": size}})
        assert told.status_code in (200, 400, 412), told.text
        assert told.status_code != 200 or not size
        assert yard.envd(sandbox, "/process.Process/SendInput", _input(terminal.pid)).status_code == 200
    finally:
        terminal.kill()


def test_a_flood_of_a_terminal_harms_nobody_else(yard: Yard, sandbox: Any) -> None:
    """Neither a program that writes without end, nor one that never reads its input."""
    noisy = yard.create(timeout=300)
    try:
        terminal = noisy.pty.create(SIZE, timeout=0)
        noisy.pty.send_stdin(terminal.pid, b"yes flood & yes flood & exec sleep 1000\n")
        deaf = noisy.pty.create(SIZE, timeout=0)
        noisy.pty.send_stdin(deaf.pid, b"exec sleep 1000\n")
        with contextlib.suppress(SandboxException):
            for _ in range(20):
                noisy.pty.send_stdin(deaf.pid, b"x" * 65536, request_timeout=1)
        assert sandbox.commands.run("echo lives").stdout == "lives\n"
        assert noisy.commands.run("echo lives").stdout == "lives\n"
        assert terminal.kill()
    finally:
        assert noisy.kill()


def test_who_ignores_the_hangup_ends_with_its_sandbox(yard: Yard, until: Until) -> None:
    made = yard.create(timeout=300)
    terminal = made.pty.create(SIZE, timeout=120)
    made.pty.send_stdin(terminal.pid, b"(trap '' HUP TERM; setsid sleep 987 & sleep 986) & sleep 1; exit\n")
    with contextlib.suppress(SandboxException):
        terminal.wait()
    assert made.commands.run("echo lives").stdout == "lives\n"
    assert made.kill()
    until(lambda: not _sleeps())


def _sleeps() -> list[str]:
    """Returns processes of this host that the attack left."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes()
            if words in (b"sleep\x00987\x00", b"sleep\x00986\x00"):
                found.append(name)
    return found


def test_terminals_are_few_and_free_again(yard: Yard) -> None:
    """A program takes all that the sandbox may have; others of the host are not touched."""
    made = yard.create(timeout=300)
    try:
        made.files.write(
            "take.py",
            "import errno, os\n"
            "held = []\n"
            "while len(held) < 2000:\n"
            "    try:\n"
            "        held.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))\n"
            "    except OSError as error:\n"
            "        print(len(held), errno.errorcode[error.errno]); break\n",
        )
        count, why = made.commands.run("python3 take.py").stdout.split()
        assert (int(count) <= 256, why) == (True, "ENOSPC"), count
        assert "again" in typed(made, "echo ag''ain")
    finally:
        assert made.kill()
