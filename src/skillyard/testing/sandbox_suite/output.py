"""The output of programs: streams that can be read from any offset, during and after."""

from __future__ import annotations

import asyncio

from skillyard.domain.sandbox.spec import Stream, StreamLimits
from skillyard.domain.work.record import Outcome
from skillyard.testing.sandbox_suite.check import Section, expect
from skillyard.testing.sandbox_suite.ground import Ground, collect, done, fresh, python, run, start, until
from skillyard.testing.sandbox_suite.observe import expect_gone

output = Section("output")

FLOOD = "import os, sys\nwhile True: os.write(int(sys.argv[2]), b'x' * 65536)"


@output.check()
async def streams_are_apart(ground: Ground) -> None:
    result = await ground.run(python("import os\nfor i in range(50): os.write(1, b'out\\n'); os.write(2, b'err\\n')"))
    expect(result.stdout == b"out\n" * 50, "stdout holds stdout only", result.stdout[:200])
    expect(result.stderr == b"err\n" * 50, "stderr holds stderr only", result.stderr[:200])
    expect(result.channel == b"", "a command has no channel", result.channel[:200])


@output.check()
async def comes_while_the_program_runs(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python("print('first', flush=True)\ninput()\nprint('last')", stdin=True))
        await until(process, b"first\n")
        await process.send(b"\n")
        result = await done(process)
    expect(result.stdout == b"first\nlast\n", "output comes as it is written", result)


@output.check()
async def reads_from_any_offset_and_again(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python("print('0123456789' * 10, end='')"))
        await process.wait()
        whole = await collect(process)
        expect(whole == b"0123456789" * 10, "all output is there after the end", whole)
        for offset in (0, 1, 55, 99, 100, 5000):
            part = await collect(process, Stream.STDOUT, offset)
            expect(part == whole[offset:], f"output from offset {offset} is the rest of it", part)


@output.check()
async def offset_within_what_is_still_to_come(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python("input()\nprint('abcdef', end='')", stdin=True))
        reading = asyncio.create_task(collect(process, Stream.STDOUT, 4))
        await process.send(b"\n")
        expect(await reading == b"ef", "an offset may lie ahead of what was written so far")


@output.check()
async def many_read_the_same(ground: Ground) -> None:
    write = "for i in range(20000): print(i)"
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python(write))
        read = await asyncio.gather(*(collect(process) for _ in range(5)))
    whole = b"".join(b"%d\n" % i for i in range(20000))
    expect(all(data == whole for data in read), "every reader gets the whole output")


@output.check()
async def reader_that_gives_up_disturbs_nobody(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python("print('one', flush=True)\ninput()\nprint('two')", stdin=True))
        await until(process, b"one")
        given_up = asyncio.create_task(collect(process))
        await asyncio.sleep(0)
        given_up.cancel()
        await process.send(b"\n")
        expect((await done(process)).stdout == b"one\ntwo\n", "a reader that left takes no output along")


@output.check()
async def binary_is_kept(ground: Ground) -> None:
    result = await ground.run(python("import sys; sys.stdout.buffer.write(bytes(range(256)) * 3)"))
    expect(result.stdout == bytes(range(256)) * 3, "bytes come as written")


@output.check()
async def five_megabytes_in_order(ground: Ground) -> None:
    write = "import sys\nfor i in range(500_000): sys.stdout.write(f'{i:09d}\\n')"
    result = await ground.run(python(write))
    expect(len(result.stdout) == 5_000_000, "all of 5 MB comes", len(result.stdout))
    expect(result.stdout == b"".join(b"%09d\n" % i for i in range(500_000)), "in the order written")


@output.check("output")
async def flood_ends_the_program(ground: Ground) -> None:
    limit = 1_000_000
    async with ground.sandbox() as sandbox:
        for stream, number in ((Stream.STDOUT, 1), (Stream.STDERR, 2)):
            marker = fresh("flood")
            program = python(FLOOD, marker, str(number))
            result = await run(sandbox, program, streams=StreamLimits(log_bytes=limit))
            expect(result.ending.outcome is Outcome.OUTPUT, f"a flood of {stream} ends as output", result.ending)
            expect_gone(marker, "when it was told")
            kept = len(result.stdout) + len(result.stderr)
            expect(limit // 2 <= kept <= limit + 65536, "what was kept is the limit, not more", kept)


@output.check("output")
async def up_to_the_limit_is_no_flood(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        program = python("import sys; sys.stdout.write('x' * 100_000)")
        result = await run(sandbox, program, streams=StreamLimits(log_bytes=100_000))
    expect(result.ending.outcome is Outcome.EXIT, "writing exactly the limit is allowed", result.ending)
    expect(len(result.stdout) == 100_000, "and all of it is kept", len(result.stdout))
