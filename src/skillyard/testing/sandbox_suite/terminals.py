"""Terminals of a sandbox's own: programs on them, their size, their end, and no others."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os

from skillyard.domain.errors import InvalidInput
from skillyard.domain.sandbox.spec import Argv, Owner, Terminal
from skillyard.domain.work.record import Outcome
from skillyard.ports.sandbox import OnTerminal, Process, Sandbox
from skillyard.testing.sandbox_suite.check import SURVIVAL, Failed, Section, expect
from skillyard.testing.sandbox_suite.ground import POLL_S, Ground, collect, done, fresh, python, start, until

terminals = Section("terminals")

_SIZE = Terminal(31, 97)
_RAW = """
import os, sys, tty
tty.setraw(0)
print('raw', flush=True)
"""


async def begin(sandbox: Sandbox, program: Argv | str, size: Terminal = _SIZE, **options: int) -> Process:
    """Starts a command, or Python source, on a terminal."""
    argv = python(program) if isinstance(program, str) else program
    on_terminal = Argv(argv.args, argv.env, argv.cwd, terminal=size)
    return await start(sandbox, on_terminal, timeout_ms=options.get("timeout_ms"))


async def resize(process: Process, size: Terminal) -> None:
    if not isinstance(process, OnTerminal):
        raise Failed("a process of a backend with terminals can be resized")
    await process.resize(size)


async def said(sandbox: Sandbox, program: Argv | str) -> bytes:
    """Returns all that a program said that ended well by itself."""
    result = await done(await begin(sandbox, program))
    expect(result.ending.outcome is Outcome.EXIT and result.ending.code == 0, "it ended well", result)
    expect(not result.stderr, "all output of a terminal is one stream", result.stderr)
    return result.stdout


@terminals.check("terminals")
async def it_controls_the_program(ground: Ground) -> None:
    source = """
import json, os
size = os.get_terminal_size(0)
print(json.dumps({"ttys": [os.isatty(fd) for fd in range(3)], "leads": os.getsid(0) == os.getpid() == os.getpgrp(),
    "foreground": os.tcgetpgrp(0) == os.getpgrp(), "size": [size.lines, size.columns], "name": os.ttyname(0),
    "own": os.isatty(os.open("/dev/tty", os.O_RDWR)), "term": os.environ["TERM"],
    "open": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:4]}))
"""
    async with ground.sandbox(terminals=True) as sandbox:
        seen = json.loads(await said(sandbox, source))
    expect(seen["ttys"] == [True] * 3, "its streams are the terminal", seen)
    expect(seen["leads"] and seen["foreground"], "it leads the terminal's session, in the foreground", seen)
    expect(seen["size"] == [_SIZE.rows, _SIZE.columns], "it has the size that was asked for", seen)
    expect(seen["own"] and seen["name"].startswith("/dev/pts/") and seen["term"], "it can be found by name", seen)


@terminals.check("terminals")
async def it_takes_another_size_while_it_runs(ground: Ground) -> None:
    source = """
import os, signal
def tell(*_):
    size = os.get_terminal_size(0)
    os.write(1, f"[{size.lines}x{size.columns}]".encode())
signal.signal(signal.SIGWINCH, tell)
tell()
while True: signal.pause()
"""
    async with ground.sandbox(terminals=True) as sandbox:
        process = await begin(sandbox, source)
        await until(process, b"[31x97]")
        for size in (Terminal(1, 1), Terminal(65535, 65535), Terminal(50, 200)):
            await resize(process, size)
            await until(process, f"[{size.rows}x{size.columns}]".encode())
        await process.kill()
        expect((await process.wait()).outcome is Outcome.CANCELLED, "it was ended")


@terminals.check("terminals")
async def a_size_that_no_terminal_has_is_refused(ground: Ground) -> None:
    for rows, columns in ((0, 80), (24, 65536), (-1, 80), (1 << 32, 80)):
        try:
            Terminal(rows, columns)
        except InvalidInput:
            continue
        raise Failed(f"{rows} rows and {columns} columns are refused")
    async with ground.sandbox(terminals=True) as sandbox:
        process = await start(sandbox, Argv(("cat",), stdin=True))
        try:
            await resize(process, _SIZE)
        except InvalidInput:
            await process.close_stdin()
            expect((await process.wait()).code == 0, "a program without a terminal goes on")
            return
    raise Failed("a program without a terminal has no size")


@terminals.check("terminals")
async def keys_are_typed(ground: Ground) -> None:
    source = """
import os, signal, sys
signal.signal(signal.SIGINT, lambda *_: os.write(1, b"interrupted"))
signal.signal(signal.SIGQUIT, lambda *_: os.write(1, b"quit"))
print("ready", flush=True)
while True:
    line = sys.stdin.readline()
    if not line: break
    print(f"got {line.strip()!r}", flush=True)
print("end")
"""
    async with ground.sandbox(terminals=True) as sandbox:
        process = await begin(sandbox, source)
        await until(process, b"ready")
        await process.send(b"one\n")
        seen = await until(process, b"got 'one'")
        expect(seen.count(b"one") == 2, "what is typed is shown", seen)
        await process.send(b"\x03")
        await until(process, b"interrupted")
        await process.send(b"\x1c")
        await until(process, b"quit")
        await process.send(b"tw\x7fwo\n")
        await until(process, b"got 'two'")
        await process.send(b"\x04")
        await until(process, b"end")
        expect((await process.wait()).code == 0, "Ctrl-D is the end of input")


@terminals.check("terminals")
async def the_end_of_input_is_told(ground: Ground) -> None:
    async with ground.sandbox(terminals=True) as sandbox:
        for typed in (b"", b"a line\n", b"a line and a part"):
            process = await begin(sandbox, Argv(("cat",)))
            if typed:
                await process.send(typed)
            await process.close_stdin()
            await process.close_stdin()
            result = await done(process)
            expect(result.ending.code == 0, "a program that reads comes to the end", result.ending)
            shown = result.stdout.replace(b"\r", b"").replace(b"^D\b\b", b"")
            expect(shown.count(typed) >= (2 if typed else 1), "all that was typed came before", result.stdout)


@terminals.check("terminals")
async def a_shell_controls_its_jobs(ground: Ground) -> None:
    async with ground.sandbox(terminals=True) as sandbox:
        process = await begin(sandbox, Argv(("sh", "-i"), {"PS1": "prompt>", "ENV": ""}))
        await until(process, b"prompt>")
        await process.send(b"sh -c 'echo ru\"\"ns; exec sleep 3600'\n")
        await until(process, b"runs")
        await process.send(b"\x1a")
        await process.send(b"jobs; echo job''s told\n")
        seen = await until(process, b"jobs told")
        expect(b"topped" in seen, "a program is stopped by Ctrl-Z, and the shell goes on", seen)
        await process.send(b"kill -9 %1; echo ki''lled; exec sh -c 'exit 7'\n")
        await until(process, b"killed")
        ending = await process.wait()
        expect(ending.outcome is Outcome.EXIT and ending.code == 7, "its end is the shell's", ending)


@terminals.check("terminals")
async def it_is_hung_up_when_its_program_ends(ground: Ground) -> None:
    source = """
import os, signal, sys
told = os.pipe()
if os.fork() == 0:
    def hung_up(*_):
        try:
            while True: os.write(1, b"x" * 100)
        except OSError as error:
            with open("part", "w") as file: file.write(error.strerror)
        os.rename("part", "hung-up")
        os._exit(0)
    signal.signal(signal.SIGHUP, hung_up)
    os.write(told[1], b"x")
    while True: signal.pause()
os.read(told[0], 1)
print("the end", flush=True)
sys.exit(9)
"""
    async with ground.sandbox(terminals=True) as sandbox:
        beside = await start(sandbox, Argv(("cat",), stdin=True))  # else all would end with the last program
        result = await done(await begin(sandbox, source))
        expect(result.ending.outcome is Outcome.EXIT and result.ending.code == 9, "its exit code is told", result)
        expect(b"the end" in result.stdout, "all that it wrote came", result.stdout)
        names: list[str] = []
        for _ in range(round(20 * ground.patience / POLL_S)):
            names = [entry.name for entry in await sandbox.entries("/workspace")]
            if "hung-up" in names:
                break
            await asyncio.sleep(POLL_S)
        expect("hung-up" in names, "a process that is left hears of it, and can use it no more", names)
        await beside.close_stdin()


@terminals.check("terminals")
async def endings_are_told(ground: Ground) -> None:
    async with ground.sandbox(terminals=True) as sandbox:
        process = await begin(sandbox, "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
        ending = await process.wait()
        expect(ending.outcome is Outcome.SIGNAL and ending.signal == 15, "a signal is told", ending)
        result = await done(await begin(sandbox, Argv(("no-such-program",))))
        expect(result.ending.code == 127, "a program that is not there", result.ending)
        process = await begin(sandbox, Argv(("sleep", "3600")), timeout_ms=300)
        expect((await process.wait()).outcome is Outcome.TIMEOUT, "a time limit ends it")
        result = await done(await begin(sandbox, "import os; os.close(0); os.close(1); os.close(2); os._exit(5)"))
        expect(result.ending.code == 5, "one that closes the terminal ends by itself", result.ending)


@terminals.check("terminals")
async def bytes_are_passed_as_they_are(ground: Ground) -> None:
    hostile = b"\x1b]0;title\x07\x1b[6n\x1b]52;c;aGVsbG8=\x07\x9b\xff\x00" + bytes(range(256))
    source = f"{_RAW}\nfor _ in range(2000): sys.stdout.buffer.write(bytes.fromhex({hostile.hex()!r}))\n"
    async with ground.sandbox(terminals=True) as sandbox:
        shown = await said(sandbox, source)
    _, _, rest = shown.partition(b"raw\n")
    expect(rest == hostile * 2000, "all bytes of output come as they were written", (len(rest), rest[:80]))


@terminals.check("terminals")
async def a_flood_of_input_waits_for_the_program(ground: Ground) -> None:
    data = os.urandom(300_000)
    source = f"{_RAW}\nimport hashlib, time\ntime.sleep(0.3)\nleft, found = {len(data)}, hashlib.sha256()\n" + (
        "while left:\n    piece = os.read(0, 65536)\n    left -= len(piece)\n    found.update(piece)\n"
        "print(found.hexdigest())"
    )
    async with ground.sandbox(terminals=True) as sandbox:
        process = await begin(sandbox, source)
        await until(process, b"raw")
        await process.send(data)
        shown = await collect(process)
        expect(hashlib.sha256(data).hexdigest().encode() in shown, "no byte of the input is lost", shown[-200:])
        expect((await process.wait()).code == 0, "it ends well")


@terminals.check("terminals")
async def several_are_there_at_once(ground: Ground) -> None:
    source = "import os; print('[' + os.ttyname(0) + ']', flush=True); import sys; sys.stdin.readline()"
    async with ground.sandbox(terminals=True) as sandbox:
        processes = [await begin(sandbox, source) for _ in range(3)]
        names = [(await until(process, b"]")).split(b"[")[1].split(b"]")[0] for process in processes]
        expect(len(set(names)) == len(names), "each program has its own", names)
        for process in processes:
            await process.send(b"\n")
            expect((await process.wait()).code == 0, "each ends by itself")


@terminals.check("terminals", "mount_namespace")
async def they_are_few(ground: Ground) -> None:
    source = """
import errno, os
held = []
try:
    while len(held) < 200:
        held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError as error:
    print(len(held), errno.errorcode[error.errno])
"""
    async with ground.sandbox(terminals=True) as sandbox:
        found = (await said(sandbox, source)).split()
        expect(
            found[1:] == [b"ENOSPC"] and 0 < int(found[0]) < 64, "a sandbox has so many terminals and no more", found
        )
        again = await said(sandbox, "print('one more')")
        expect(b"one more" in again, "they are free when their program has ended", again)


@terminals.check("terminals", "mount_namespace")
async def nobody_else_has_them(ground: Ground) -> None:
    listening = "import os, sys; print('[' + os.ttyname(0) + ']', flush=True); print('read', sys.stdin.readline())"
    writing = """
import os
names = sorted(os.listdir("/dev/pts"))
print(names)
for name in names:
    if name != "ptmx":
        try: os.write(os.open("/dev/pts/" + name, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK), b"from another one")
        except OSError as error: print(error)
"""
    async with ground.sandbox(terminals=True) as one, ground.sandbox(terminals=True) as other:
        process = await begin(one, listening)
        await until(process, b"]")
        shown = await said(other, writing)
        expect(b"'1'" not in shown, "a sandbox sees its own terminals alone", shown)
        await process.send(b"x\n")
        whole = await collect(process)
        expect(b"from another one" not in whole, "nobody else writes to a terminal", whole)
        await process.wait()


@terminals.check("terminals", "seccomp")
async def nothing_is_typed_into_them_from_inside(ground: Ground) -> None:
    source = """
import ctypes, errno, os
libc, errors = ctypes.CDLL(None, use_errno=True), {}
for name, request in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C), ("TIOCSETD", 0x5423), ("TIOCCONS", 0x541D),
                      ("high", 0x100005412)):
    ctypes.set_errno(0)
    value = ctypes.c_int(3) if name == "TIOCSETD" else ctypes.create_string_buffer(b"x")
    libc.ioctl(0, ctypes.c_ulong(request), ctypes.byref(value))
    errors[name] = errno.errorcode.get(ctypes.get_errno(), "done")
print(errors)
"""
    async with ground.sandbox(terminals=True) as sandbox:
        shown = await said(sandbox, source)
    expect(b"done" not in shown, "requests that type, or take line disciplines and consoles, are refused", shown)


@terminals.check("terminals", SURVIVAL)
async def it_outlives_its_server(ground: Ground) -> None:
    assert ground.reopen is not None
    first = await ground.reopen()
    sandbox = await first.create(await ground.spec(terminals=True, owner=Owner.TASK), fresh("key"))
    source = "import os, sys; print('up', flush=True); sys.stdin.readline(); print(os.get_terminal_size(0))"
    process = await begin(sandbox, source)
    await until(process, b"up")
    await first.close()
    second = await ground.reopen()
    try:
        again = await (await second.attach(sandbox.handle)).process(process.id)
        await resize(again, Terminal(5, 6))
        await again.send(b"\n")
        expect(b"columns=6, lines=5" in await collect(again), "another server has its input and its size")
        expect((await again.wait()).code == 0, "it ends well")
    finally:
        await second.destroy(sandbox.handle)
        await second.close()
