"""The output of programs: streams that can be read from any offset, during and after."""

from __future__ import annotations

import asyncio

from skillyard.domain.errors import OutputDropped
from skillyard.domain.sandbox.spec import AtCap, Stream, StreamLimits
from skillyard.domain.work.record import Outcome
from skillyard.ports.sandbox import Process
from skillyard.testing.sandbox_suite.check import Section, expect, expect_gone
from skillyard.testing.sandbox_suite.ground import Ground, collect, done, fresh, python, run, start, until

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


@output.check("output")
async def stderr_has_a_limit_of_its_own(ground: Ground) -> None:
    write = "import sys\nsys.stdout.write('o' * 40_000); sys.stderr.write('e' * int(sys.argv[1]))"
    limits = StreamLimits(log_bytes=50_000, stderr_bytes=30_000)
    async with ground.sandbox() as sandbox:
        within = await run(sandbox, python(write, "30000"), streams=limits)
        above = await run(sandbox, python(write, "30001"), streams=limits)
    expect(within.ending.outcome is Outcome.EXIT, "each stream has its own limit", within.ending)
    expect((len(within.stdout), len(within.stderr)) == (40_000, 30_000), "and is kept up to it")
    expect(above.ending.outcome is Outcome.OUTPUT, "a program that writes more to stderr is ended", above.ending)


LINES = "import sys\nfor i in range(int(sys.argv[1])): print(f'{i:09d}')\nprint('e', file=sys.stderr)"


@output.check("output")
async def ring_keeps_the_tail(ground: Ground) -> None:
    """A ring in memory, and one that is larger than what anybody keeps in memory."""
    for kept in (1000, 204_800):
        limits = StreamLimits(log_bytes=kept, at_cap=AtCap.RING)
        async with ground.sandbox() as sandbox:
            process = await start(sandbox, python(LINES, "100000"), streams=limits)
            ending = await process.wait()
            expect(ending.outcome is Outcome.EXIT, "a program that writes more than the ring lives on", ending)
            whole = b"".join(b"%09d\n" % i for i in range(100_000))
            first = await _first(process)
            expect(first == len(whole) - kept, "the ring says from where on it has the output", first)
            expect(await collect(process, Stream.STDOUT, first) == whole[-kept:], "and has the true tail")
            expect(await collect(process, Stream.STDOUT, first + 7) == whole[first + 7 :], "from any offset in it")
            expect(await collect(process, Stream.STDERR) == b"e\n", "the other stream has a ring of its own")


@output.check("output")
async def ring_is_followed(ground: Ground) -> None:
    """A reader that keeps up gets all; one that comes late is told where to go on."""
    source = "import sys\nfor line in sys.stdin: print(line.strip() * 500, flush=True)"
    limits = StreamLimits(log_bytes=4000, at_cap=AtCap.RING)
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python(source, stdin=True), streams=limits)
        seen = b""
        reading = process.output(Stream.STDOUT)
        for number in range(20):
            await process.send(b"%d\n" % (number % 10))
            while seen.count(b"\n") <= number:
                seen += await anext(reading)
        expect(seen == b"".join(b"%d" % (n % 10) * 500 + b"\n" for n in range(20)), "a reader that keeps up has all")
        first = await _first(process)
        expect(first == len(seen) - 4000, "a late one is told where to go on", first)
        await process.close_stdin()
        expect(await collect(process, Stream.STDOUT, first) == seen[first:], "and goes on there")


@output.check("output")
async def endless_output_is_kept_in_bounds(ground: Ground) -> None:
    limits = StreamLimits(log_bytes=100_000, at_cap=AtCap.RING)
    source = "import os, sys\nfor i in range(2000): os.write(1, b'x' * 65536)\nos.write(1, b'end')"
    async with ground.sandbox() as sandbox:
        result = await start(sandbox, python(source), streams=limits)
        ending = await result.wait()
        expect(ending.outcome is Outcome.EXIT, "125 MiB pass through a ring", ending)
        tail = await collect(result, Stream.STDOUT, await _first(result))
        expect(tail == b"x" * (100_000 - 3) + b"end", "of which the tail is kept", tail[-10:])


@output.check()
async def slow_reader_delays_nobody(ground: Ground) -> None:
    """A reader that stops after its first piece holds neither the program nor another reader."""
    source = "import sys\nfor i in range(500_000): sys.stdout.write(f'{i:09d}\\n')"
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python(source))
        slow = process.output(Stream.STDOUT)
        first = await anext(slow)
        whole = await collect(process)
        expect(len(whole) == 5_000_000, "another reader gets all", len(whole))
        rest = b"".join([data async for data in slow])
        expect(first + rest == whole, "and the slow one, too, when it goes on")


async def _first(process: Process) -> int:
    """Returns the offset of the first byte that is kept."""
    try:
        await anext(process.output(Stream.STDOUT))
    except OutputDropped as dropped:
        return dropped.first
    expect(False, "reading what was dropped raises OutputDropped")
    return 0
