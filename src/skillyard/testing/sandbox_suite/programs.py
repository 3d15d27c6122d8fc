"""Starting, feeding and ending commands."""

from __future__ import annotations

import asyncio
import json
import ssl

from skillyard.domain.errors import SandboxGone
from skillyard.domain.sandbox.spec import Argv
from skillyard.domain.work.record import Outcome
from skillyard.testing.sandbox_suite.check import Section, expect
from skillyard.testing.sandbox_suite.ground import (
    ROOT,
    Ground,
    collect,
    done,
    look,
    python,
    run,
    start,
    until,
)

programs = Section("programs")

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
