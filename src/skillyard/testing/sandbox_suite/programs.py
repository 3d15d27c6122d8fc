"""Commands: starting, feeding and ending them, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from contextlib import suppress

from skillyard.domain.errors import SandboxGone
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.sandbox.spec import Argv, Guest, clear_request
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Ending, Outcome
from skillyard.ports.sandbox import Process, Sandbox
from skillyard.testing.attacks.processes import HOPS
from skillyard.testing.sandbox_suite.check import Section, expect, expect_gone
from skillyard.testing.sandbox_suite.ground import (
    ROOT,
    Ground,
    code,
    collect,
    done,
    eventually,
    fresh,
    look,
    processes,
    python,
    run,
    start,
    until,
)

programs = Section("programs")
endings = Section("endings")

ENVIRONMENT = frozenset(
    {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "USER", "LOGNAME", "SHELL", "PWD", "SHLVL"}
)
"""All that a sandbox's own environment may hold, beside names that begin with ``PYTHON``."""


@programs.check()
async def start_is_idempotent_on_its_id(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        program = python("open('count', 'a').write('x')\nprint(open('count').read())")
        first = await sandbox.start(program, id="same")
        await first.wait()
        again = await sandbox.start(program, id="same")
        expect(await collect(again) == b"x\n", "a second start with an id gives the first process")
        found = await sandbox.process("same")
        expect(found.id == "same" and await collect(found) == b"x\n", "and so does process()")


@programs.check()
async def unknown_process_is_gone(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        try:
            await sandbox.process("never-started")
        except SandboxGone:
            return
    expect(False, "process() raises SandboxGone for an id that was never started")


@programs.check()
async def start_in_a_destroyed_sandbox_fails(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        await ground.backend.destroy(sandbox.handle)
        try:
            await start(sandbox, python("pass"))
        except SandboxGone:
            return
    expect(False, "start raises SandboxGone in a sandbox that was destroyed")


@programs.check()
async def several_run_one_after_another(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        for number in range(5):
            result = await run(sandbox, python("open('log', 'a').write('x')"))
            expect(result.ending.code == 0, f"program {number} runs", result)
        seen = await run(sandbox, python("print(open('log').read())"))
        expect(seen.stdout == b"xxxxx\n", "each sees what the others wrote to /workspace", seen)


@programs.check()
async def several_run_at_once(ground: Ground) -> None:
    meet = """
import os, sys, time
mine, other = sys.argv[1:]
open(mine, 'w').close()
while not os.path.exists(other): time.sleep(0.005)
print('met')
"""
    async with ground.sandbox() as sandbox:
        both = await asyncio.gather(run(sandbox, python(meet, "a", "b")), run(sandbox, python(meet, "b", "a")))
        expect([result.stdout for result in both] == [b"met\n"] * 2, "two programs run at the same time", both)


@programs.check()
async def what_cannot_be_executed_exits_as_in_a_shell(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        for args, code in ((("no-such-command",), 127), (("/etc",), 126)):
            result = await run(sandbox, Argv(args))
            told = result.ending.outcome is Outcome.EXIT and result.ending.code == code
            expect(told and result.stderr, f"{args} exits {code} with a message on stderr", result)


@programs.check()
async def both_names_of_the_interpreter_work(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        for words in (("python3", "-c"), ("/usr/bin/env", "python3", "-c"), ("/bin/sh", "-c")):
            script = "print(1)" if "python3" in words else "python3 -c 'print(1)'"
            result = await run(sandbox, Argv((*words, script)))
            expect(result.stdout == b"1\n", f"{' '.join(words)} finds the interpreter", result)


@programs.check()
async def certificates_are_there(ground: Ground) -> None:
    source = "import json, ssl; print(json.dumps(len(ssl.create_default_context().get_ca_certs())))"
    inside, outside = await ground.look(source), len(ssl.create_default_context().get_ca_certs())
    expect((inside > 0) == (outside > 0), "the host's certificate authorities are known inside", inside)


@programs.check()
async def arguments_arrive_as_given(ground: Ground) -> None:
    words = ["", "two words", "*", "$HOME", "a\nb", "ü 東京", "-x", "'\"\\"]
    seen = await ground.look("import json, sys; print(json.dumps(sys.argv[1:]))", *words)
    expect(seen == words, "arguments arrive as they were given", seen)


@programs.check()
async def working_directory_is_the_workspace(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        root, here = await look(sandbox, "import json; print(json.dumps([HERE, os.getcwd()]))")
        expect(here == f"{root}/workspace", "the working directory is /workspace", here)
        other = await run(sandbox, Argv(("pwd",), cwd="/tmp"))  # noqa: S108 - a path inside
        expect(other.stdout.decode() == f"{root}/tmp\n", "unless another one is given", other)  # noqa: S108


@programs.check()
async def environment_is_small_and_documented(ground: Ground) -> None:
    show = Argv(("python3", "-c", "import json, os; print(json.dumps(dict(os.environ)))"), env={"GIVEN": "a b=c\nü"})
    seen = json.loads((await ground.run(show)).stdout)
    expect(seen.pop("GIVEN", None) == "a b=c\nü", "given variables arrive", seen)
    documented = ENVIRONMENT | ground.variables
    strange = {name for name in seen if name not in documented and not name.startswith("PYTHON")}
    expect(not strange, "nothing else than the sandbox's own small environment is there", strange)
    expect(seen.get("HOME") == f"{seen.get(ROOT, '')}/workspace" and seen.get("PATH"), "HOME and PATH are set", seen)


@programs.check()
async def standard_input_is_empty_unless_asked(ground: Ground) -> None:
    result = await ground.run(python("import sys; print(len(sys.stdin.buffer.read()))"))
    expect(result.stdout == b"0\n", "without stdin the program reads end of file at once", result)


@programs.check()
async def standard_input_is_sent_and_closed(ground: Ground) -> None:
    echo = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.flush()\nprint('end')"
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python(echo, stdin=True))
        await process.send(b"one\n")
        await until(process, b"one\n")
        await process.send(bytes(range(256)) + b"\n")
        await process.close_stdin()
        await process.close_stdin()
        result = await done(process)
    expect(result.stdout == b"one\n" + bytes(range(256)) + b"\nend\n", "input arrives, then its end", result)


@programs.check()
async def large_input_is_taken(ground: Ground) -> None:
    size = "import sys\nprint(sum(len(d) for d in iter(lambda: sys.stdin.buffer.read(65536), b'')))"
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python(size, stdin=True))
        for _ in range(40):
            await process.send(b"x" * 100_000)
        await process.close_stdin()
        expect((await done(process)).stdout == b"4000000\n", "4 MB of input arrive")


@programs.check()
async def sending_to_an_ended_program_fails(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python("pass", stdin=True))
        await process.wait()
        try:
            await process.send(b"too late")
        except SandboxGone:
            return
    expect(False, "send raises SandboxGone when nobody reads any more")


BOUND_S = 10.0
"""How long an end may take that nothing but the backend holds up. Generous: machines are slow at times."""

STUBBORN = """
import os, subprocess, sys
hold = '''
import os, signal, sys, time
for number in (1, 2, 3, 13, 15): signal.signal(number, signal.SIG_IGN)
open(sys.argv[2], 'w').close()
time.sleep(600)
'''
marker = sys.argv[1]
def spawn(name, **options):
    subprocess.Popen(['python3', '-I', '-S', '-c', hold, marker, HERE + '/tmp/' + name], **options)
spawn('child')
spawn('session', start_new_session=True)
spawn('silent', stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=True)
middle = os.fork()
if middle == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp('python3', ['python3', '-I', '-S', '-c', hold, marker, HERE + '/tmp/orphan'])
    os._exit(0)
os.waitpid(middle, 0)
while not all(os.path.exists(HERE + '/tmp/' + name) for name in ('child', 'session', 'silent', 'orphan')):
    pass
print('ready', flush=True)
"""
"""Leaves four processes that ignore signals: plain, in a session of its own, without our pipes, double-forked."""

WAIT = "import time\nprint('ready', flush=True)\ntime.sleep(600)"


BURN = """
import time
until = time.process_time() + 0.3
while time.process_time() < until: pass
held = b'x' * 60_000_000
"""


@endings.check()
async def exit_code_is_told(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        for code in (0, 1, 42, 137, 255):
            ending = (await run(sandbox, python(f"import sys; sys.exit({code})"))).ending
            expect(ending.outcome is Outcome.EXIT and ending.code == code, f"exit {code} is told", ending)


@endings.check()
async def signal_is_told(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        for number in (9, 11, 15):
            ending = (await run(sandbox, python(f"import os; os.kill(os.getpid(), {number})"))).ending
            told = ending.outcome is Outcome.SIGNAL and ending.signal == number
            expect(told, f"an end by signal {number} is told", ending)


@endings.check()
async def wait_can_be_repeated_and_shared(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python("import sys; sys.stdin.read(); sys.exit(7)", stdin=True))
        waiting = [asyncio.create_task(process.wait()) for _ in range(10)]
        given_up = asyncio.create_task(process.wait())
        await asyncio.sleep(0)
        given_up.cancel()
        await process.close_stdin()
        endings = [*await asyncio.gather(*waiting), await process.wait()]
    expect({ending.code for ending in endings} == {7}, "many can wait, and again, and one may give up", endings)


@endings.check()
async def kill_ends_the_whole_tree(ground: Ground) -> None:
    marker = fresh("tree")
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python(STUBBORN + WAIT, marker))
        await until(process, b"ready\nready\n")
        await process.kill("no longer needed")
        ending = await _bounded(process)
        expect_gone(marker, "after a kill was confirmed")
        expect(ending.outcome is Outcome.CANCELLED, "a killed program is cancelled", ending)
        expect("no longer needed" in ending.reason, "for the reason that was given", ending)
        expect(await collect(process) == b"ready\nready\n", "its output so far is kept")


@endings.check()
async def kill_after_the_end_changes_nothing(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python("raise SystemExit(5)"))
        first = await process.wait()
        await process.kill("late")
        expect(await process.wait() == first, "a kill after the end has no effect")


@endings.check()
async def kill_leaves_the_other_programs(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        stays = await start(sandbox, python("import sys; print(sys.stdin.read())", stdin=True))
        goes = await start(sandbox, python(WAIT))
        await until(goes, b"ready")
        await goes.kill()
        await _bounded(goes)
        await stays.send(b"still here")
        await stays.close_stdin()
        result = await done(stays)
    expect(result.stdout == b"still here\n", "killing one program leaves the others running", result)


@endings.check("timeout")
async def timeout_keeps_the_output_and_ends_the_tree(ground: Ground) -> None:
    marker = fresh("tree")
    async with ground.sandbox() as sandbox:
        timeout_s = 3.0 * ground.patience
        process = await start(sandbox, python(STUBBORN + WAIT, marker), timeout_ms=int(timeout_s * 1000))
        ending = await _bounded(process, timeout_s)
        expect_gone(marker, "when a timeout was told")
        expect(ending.outcome is Outcome.TIMEOUT, "a program that takes too long ends as timeout", ending)
        expect(b"ready" in await collect(process), "what it wrote before is kept")


@endings.check("timeout")
async def timeout_comes_from_the_limits_when_none_is_given(ground: Ground) -> None:
    async with ground.sandbox(Limits(timeout_ms=500)) as sandbox:
        ending = await _bounded(await start(sandbox, python(WAIT)))
    expect(ending.outcome is Outcome.TIMEOUT, "the spec's timeout counts from the start of a program", ending)


@endings.check("timeout")
async def timeout_needs_no_caller(ground: Ground) -> None:
    marker = fresh("alone")
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python(WAIT, marker), timeout_ms=int(2000 * ground.patience))
        await until(process, b"ready")
        await eventually(lambda: not processes(marker), "the backend keeps the deadline while nobody waits", BOUND_S)


@endings.check("timeout")
async def sandbox_outlives_a_timeout(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        await run(sandbox, python("open('kept', 'w').write('kept')"))
        ending = await _bounded(await start(sandbox, python(WAIT), timeout_ms=500))
        expect(ending.outcome is Outcome.TIMEOUT, "a program that takes too long ends as timeout", ending)
        result = await run(sandbox, python("print(open('kept').read())"))
        expect(result.stdout == b"kept\n", "a program's timeout ends the program, not the sandbox", result)


@endings.check("timeout")
async def timeout_ends_processes_that_go_on_as_others(ground: Ground) -> None:
    for way in ("below", "beyond"):
        marker = fresh(way)
        async with ground.sandbox() as sandbox:
            timeout_s = 2.5 * ground.patience
            program = python(f"{HOPS}\nbegin({way!r}, 'beats')\n{WAIT}", marker)
            process = await start(sandbox, program, timeout_ms=int(timeout_s * 1000))
            await until(process, b"ready")
            ending = await _bounded(process, timeout_s)
            ended = ending.outcome is Outcome.TIMEOUT or _were_too_many(sandbox, ending)
            expect(ended, "a program that takes too long ends as timeout", ending)
            expect(await _rests(sandbox, marker), "a deadline ends processes that go on as others", (way, ending))


@endings.check()
async def sandbox_that_was_cleared_has_no_processes_that_go_on_as_others(ground: Ground) -> None:
    """Where something is left it says so: nobody gets the sandbox then."""
    for way in ("below", "beyond"):
        marker = fresh(way)
        async with ground.sandbox() as sandbox:
            result = await run(sandbox, python(f"{HOPS}\nbegin({way!r}, 'beats')", marker))
            if _were_too_many(sandbox, result.ending):
                expect(await _rests(sandbox, marker), "the limit of processes ends those that go on as others", way)
                continue
            expect(result.ending.code == 0, "a program whose children go on as others ends by itself", result)
            clears = await start(sandbox, Guest(clear_request(), alone=True))
            told = await done(clears)
            if b'"left":[]' in told.channel.replace(b" ", b""):
                expect(await _rests(sandbox, marker), "a sandbox is clear when it says so", (way, told))


def _were_too_many(sandbox: Sandbox, ending: Ending) -> bool:
    """Returns whether hoppers reached a limit of processes that is watched alone.

    Processes that ended count until somebody waits for them, and hoppers end faster than that on a busy host.
    """
    return ending.outcome is Outcome.PROCESSES and sandbox.enforced.get("pids") == Level.SUPERVISED


async def _rests(sandbox: Sandbox, marker: str) -> bool:
    """Returns whether nothing counts any more, in this sandbox or in what was left of it."""
    look = "import time\nfound = [open('beats', 'rb').read(), time.sleep(0.3), open('beats', 'rb').read()]"
    with suppress(SandboxGone):
        told = await run(sandbox, python(f"{look}\nprint(found[0] == found[2])"))
        if told.ending.outcome is not Outcome.LOST:
            return told.stdout == b"True\n"
    return not processes(marker)


@endings.check()
async def single_sandbox_ends_with_its_program(ground: Ground) -> None:
    marker = fresh("single")
    async with ground.sandbox(single=True) as sandbox:
        process = await start(sandbox, python(STUBBORN + "raise SystemExit(4)", marker))
        ending = await _bounded(process)
        expect_gone(marker, "when the only program of a sandbox has ended")
        expect(ending.code == 4 and await collect(process) == b"ready\n", "it is told as ever", ending)


@endings.check()
async def wait_is_not_held_up_by_a_pipe_in_other_hands(ground: Ground) -> None:
    marker = fresh("pipe")
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python(STUBBORN + "raise SystemExit(3)", marker))
        ending = await _bounded(process)
        expect(ending.code == 3, "wait returns when the leader is gone, also while others hold its pipes", ending)
        async with asyncio.timeout(BOUND_S):
            output = await collect(process)
        expect(output == b"ready\n", "and the output ends", output)
        await ground.backend.destroy(sandbox.handle)
        expect_gone(marker, "after destroy")


@endings.check()
async def destroy_ends_what_runs(ground: Ground) -> None:
    marker = fresh("tree")
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python(STUBBORN + WAIT, marker))
        await until(process, b"ready\nready\n")
        began = time.monotonic()
        usage = await ground.backend.destroy(sandbox.handle)
        expect(time.monotonic() - began < BOUND_S, "destroy is bounded in time")
        expect_gone(marker, "after destroy")
        expect(usage.wall_ms is None or usage.wall_ms > 0, "destroy tells the usage of the whole life", usage)


@endings.check()
async def destroy_lets_nobody_wait(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python(WAIT))
        await until(process, b"ready")
        waiting = [asyncio.create_task(process.wait()), asyncio.create_task(process.wait())]
        reading = asyncio.create_task(collect(process))
        await ground.backend.destroy(sandbox.handle)
        _, pending = await asyncio.wait({*waiting, reading}, timeout=BOUND_S)
        for task in pending:
            task.cancel()
        expect(not pending, "who waits or reads when a sandbox is destroyed is not left waiting", len(pending))
        told = [task.result().outcome for task in waiting if task.exception() is None]
        expect(set(told) <= {Outcome.CANCELLED, Outcome.LOST}, "and hears that it was ended", told)
        try:
            await _bounded(process)
        except SandboxGone:
            return


@endings.check()
async def code_that_comes_too_late_is_lost(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        await ground.backend.destroy(sandbox.handle)
        try:
            ending = await _bounded(await start(sandbox, code("def main(args): return 1")))
        except SandboxGone:
            return
        expect(ending.outcome is Outcome.LOST, "code started in a sandbox that is gone is lost, and told so", ending)


@endings.check()
async def usage_is_told(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        usage = (await run(sandbox, python(BURN))).ending.usage
        after = (await run(sandbox, python("pass"))).ending.usage
    expect(usage.wall_ms is not None and usage.wall_ms >= 250, "wall time is told in milliseconds", usage)
    expect(usage.cpu_ms is None or 250 <= usage.cpu_ms < 10_000, "cpu time, where it is counted", usage)
    peak = usage.peak_memory_bytes
    expect(peak is None or 50_000_000 < peak < 400_000_000, "peak memory in bytes, where it is counted", usage)
    if usage.cpu_ms is not None and after.cpu_ms is not None:
        told = after.whole == usage.whole == (after.cpu_ms >= usage.cpu_ms)
        expect(told, "usage says whether it is that of the whole sandbox so far", (usage, after))


async def _bounded(process: Process, deadline_s: float = 0.0) -> Ending:
    """The ending, which must come soon after the deadline, whatever the program's tree does."""
    async with asyncio.timeout(deadline_s + BOUND_S):
        return await process.wait()
