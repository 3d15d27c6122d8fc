"""Files in and out, and trees that foreign code made to break their readers and removers."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

from skillyard.domain.errors import FileNotFound, QuotaExceeded, SkillyardError
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Outcome
from skillyard.ports.sandbox import Sandbox
from skillyard.testing.sandbox_suite.check import Section, expect
from skillyard.testing.sandbox_suite.ground import Ground, contents, look, pieces, python, run

files = Section("files")

MIB = 1 << 20


@files.check()
async def round_trip(ground: Ground) -> None:
    data = bytes(range(256)) * 1000
    async with ground.sandbox() as sandbox:
        size = await sandbox.write("/workspace/a file.bin", pieces(data))
        expect(size == len(data), "write tells the bytes written", size)
        expect(await contents(sandbox, "/workspace/a file.bin") == data, "read gives what was written")
        inside = await look(sandbox, "import json; print(json.dumps(len(open('a file.bin', 'rb').read())))")
        expect(inside == len(data), "programs see it in /workspace", inside)
        await run(sandbox, python("open(HERE + '/workspace/own', 'w').write('ours')"))
        expect(await contents(sandbox, "/workspace/own") == b"ours", "read gives what a program wrote")


@files.check()
async def empty_file(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        expect(await sandbox.write("/workspace/empty", pieces(b"")) == 0, "an empty file has no bytes")
        expect(await contents(sandbox, "/workspace/empty") == b"", "and reads as none")


@files.check()
async def write_makes_parents_and_replaces(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        for data in (b"first, and longer", b"second"):
            await sandbox.write("/workspace/a/b/c/file", pieces(data))
        expect(await contents(sandbox, "/workspace/a/b/c/file") == b"second", "write replaces a file whole")
        show = "import os; f = open('a/b/c/own', 'w'); f.write('x'); f.close(); os.unlink('a/b/c/file')"
        result = await run(sandbox, python(show))
        expect(result.ending.code == 0, "programs own the files and directories that were written", result)


@files.check()
async def write_sets_the_mode(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        await sandbox.write("/workspace/tool", pieces(b"#!/bin/sh\necho ran\n"), mode=0o755)
        await sandbox.write("/workspace/data", pieces(b"x"))
        modes = await look(
            sandbox,
            "import json, os; print(json.dumps([os.stat(n).st_mode & 0o777 for n in ('tool', 'data')]))",
        )
        expect(modes == [0o755, 0o644], "the mode is as given, 0644 by default", [oct(mode) for mode in modes])
        result = await run(sandbox, python("import subprocess; subprocess.run(['./tool'], check=True)"))
        expect(result.stdout == b"ran\n", "a written program can be executed", result)


@files.check()
async def every_writable_directory_takes_files(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        for where in ("/workspace", "/tmp", "/dev/shm"):  # noqa: S108 - paths inside
            await sandbox.write(f"{where}/given", pieces(where.encode()))
            seen = await look(
                sandbox, "import json, sys; print(json.dumps(open(HERE + sys.argv[1]).read()))", f"{where}/given"
            )
            expect(seen == where, f"a file written to {where} is seen there", seen)


@files.check()
async def write_elsewhere_is_refused(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        make = "os.symlink('/usr', HERE + '/workspace/way'); os.mkdir(HERE + '/workspace/there')"
        await run(sandbox, python(make))
        for path in (
            "/usr/x",
            "/etc/x",
            "/x",
            "/proc/self/x",
            "/workspace/../x",
            "/workspace/way/x",
            "/workspace/there",
        ):
            try:
                await sandbox.write(path, pieces(b"x"))
            except SkillyardError:
                continue
            expect(False, "write refuses what is not below a writable directory", path)


@files.check()
async def offset_and_length(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        await sandbox.write("/workspace/digits", pieces(b"0123456789"))
        for offset, length in ((0, 3), (4, 3), (4, None), (8, 100), (10, 5), (99, None), (0, 0)):
            part = await contents(sandbox, "/workspace/digits", offset, length)
            end = None if length is None else offset + length
            expect(part == b"0123456789"[offset:end], f"offset {offset} and length {length} are kept", part)


@files.check()
async def fifty_megabytes_stream(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        digest, size = hashlib.sha256(), 50 * MIB
        block = hashlib.sha256(b"seed").digest() * (MIB // 32)

        async def source() -> AsyncIterator[bytes]:
            for number in range(50):
                piece = number.to_bytes(4, "big") + block[4:]
                digest.update(piece)
                yield piece

        expect(await sandbox.write("/workspace/large", source()) == size, "50 MiB are written")
        back, largest = hashlib.sha256(), 0
        async for data in sandbox.read("/workspace/large"):
            back.update(data)
            largest = max(largest, len(data))
        expect(back.digest() == digest.digest(), "50 MiB come back the same")
        expect(largest <= 8 * MIB, "in pieces, not as a whole", largest)


@files.check()
async def reader_may_leave_early(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        await sandbox.write("/workspace/large", pieces(b"x" * (8 * MIB), MIB))
        stream = sandbox.read("/workspace/large")
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        expect(await contents(sandbox, "/workspace/large", 0, 3) == b"xxx", "the sandbox goes on")


@files.check()
async def writer_that_fails_leaves_no_file(ground: Ground) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"half"
        raise ValueError("the source broke")

    async with ground.sandbox() as sandbox:
        try:
            await sandbox.write("/workspace/half", breaks())
        except ValueError:
            names = [entry.name for entry in await sandbox.entries("/workspace")]
            expect("half" not in names, "a write whose source breaks leaves no file", names)
            return
    expect(False, "write raises what its source raised")


@files.check()
async def entries_are_listed(ground: Ground) -> None:
    make = """
import os
os.makedirs(HERE + '/workspace/d/sub')
os.chdir(HERE + '/workspace/d')
open('b', 'w').write('four')
open('a', 'w').close()
os.symlink('b', 'link')
os.mkfifo('pipe')
"""
    async with ground.sandbox() as sandbox:
        await run(sandbox, python(make))
        found = [(entry.name, entry.kind) for entry in await sandbox.entries("/workspace/d")]
        wanted = [("a", "file"), ("b", "file"), ("link", "link"), ("pipe", "other"), ("sub", "directory")]
        expect(found == wanted, "entries are sorted by name and tell their kind", found)
        sizes = {entry.name: entry.size for entry in await sandbox.entries("/workspace/d")}
        expect(sizes["a"] == 0 and sizes["b"] == 4, "and the size in bytes of files", sizes)


@files.check()
async def entries_are_bounded(ground: Ground) -> None:
    make = "import os\nos.mkdir('many')\nfor i in range(10_050): os.symlink('x', f'many/{i:05d}')"
    async with ground.sandbox() as sandbox:
        made = await run(sandbox, python(make))
        expect(made.ending.outcome is Outcome.EXIT, "a program makes many entries", made.ending)
        found = await sandbox.entries("/workspace/many")
        expect(len(found) == 10_000, "a listing holds at most 10,000 entries", len(found))


@files.check()
async def missing_is_not_found(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        await _not_found(sandbox, "/workspace/none", "/workspace/none/below", "/none")
        for path in ("/workspace/none", "/none"):
            try:
                await sandbox.entries(path)
            except FileNotFound:
                continue
            expect(False, "entries raises FileNotFound for a missing directory", path)


@files.check()
async def only_regular_files_are_read(ground: Ground) -> None:
    make = """
import os, socket
os.mkdir('directory')
os.mkfifo('fifo')
os.symlink('/etc/passwd', 'link')
os.symlink('loop', 'loop')
try: socket.socket(socket.AF_UNIX).bind('socket')
except OSError: os.mkfifo('socket')  # not even that is given here
"""
    async with ground.sandbox() as sandbox:
        await run(sandbox, python(make))
        names = ("directory", "fifo", "link", "loop", "socket")
        await _not_found(sandbox, *(f"/workspace/{name}" for name in names), "/dev/zero")


@files.check()
async def names_move_and_multiply_between_directories(ground: Ground) -> None:
    """rename(2) and link(2) across directories.

    A file system wall may forbid them (landlock(7), REFER).
    """
    steps = """
import json, os
os.chdir(HERE + '/workspace')
os.makedirs('a'), os.makedirs('b/c')
open('a/file', 'w').write('moved')
os.rename('a/file', 'b/c/file')
os.link('b/c/file', 'a/twin')
os.rename('b/c', 'a/c')
print(json.dumps([open('a/c/file').read(), os.stat('a/twin').st_nlink, sorted(os.listdir('a'))]))
"""
    told = await ground.look(steps)
    expect(told == ["moved", 2, ["c", "twin"]], "they are where they were put", told)


@files.check("disk")
async def writing_beyond_the_disk_is_refused(ground: Ground) -> None:
    async with ground.sandbox(Limits(timeout_ms=20_000, disk_mb=8)) as sandbox:
        try:
            await sandbox.write("/workspace/large", pieces(b"x" * (12 * MIB), MIB))
        except QuotaExceeded:
            await sandbox.write("/workspace/small", pieces(b"fits"))
            names = [entry.name for entry in await sandbox.entries("/workspace")]
            expect(names == ["small"], "a write that did not fit leaves nothing", names)
            return
    expect(False, "write raises QuotaExceeded when the disk limit is reached")


@files.check()
async def sparse_file_is_harmless(ground: Ground) -> None:
    make = """
try:
    with open('sparse', 'wb') as file: file.truncate(1 << 40)
except OSError as refused: print('refused', refused)
"""
    async with ground.sandbox() as sandbox:
        result = await run(sandbox, python(make))
        ended = result.ending.outcome in (Outcome.EXIT, Outcome.SIGNAL)
        expect(ended, "a sparse terabyte is given or refused, nothing else", result.ending)
        if not result.stdout and result.ending.code == 0:
            data = await contents(sandbox, "/workspace/sparse", (1 << 40) - 5, 100)
            expect(data == b"\0" * 5, "and can be read from any offset", data[:20])


@files.check()
async def hostile_trees_are_removed(ground: Ground) -> None:
    make = """
import os
for name in (b'\\xff\\xfe', b'new\\nline', b'-rf', b'x' * 255, b'\\x1b[31m'):
    open(os.fsencode(HERE) + b'/workspace/' + name, 'w').close()
os.mkdir('shut')
os.mkdir('shut/inner')
open('shut/inner/file', 'w').close()
os.chmod('shut/inner', 0)
os.chmod('shut', 0)
depth = 0
os.mkdir(HERE + '/tmp/deep')
os.chdir(HERE + '/tmp/deep')
while depth < 4_000:  # more than paths hold bytes, calls recurse and tables have descriptors
    os.mkdir('d')
    os.chdir('d')
    depth += 1
open('end', 'w').close()
print(depth)
"""
    async with ground.sandbox(Limits(timeout_ms=50_000)) as sandbox:
        result = await run(sandbox, python(make))
        expect(result.stdout == b"4000\n", "foreign code can make such trees", result)
        names = [entry.name for entry in await sandbox.entries("/workspace")]
        expect(len(names) == 6, "names of any bytes are listed", names)
        await ground.backend.destroy(sandbox.handle)
        held = [held.handle for held in await ground.backend.survey()]
        expect(sandbox.handle not in held, "destroy removes them")


async def _not_found(sandbox: Sandbox, *paths: str) -> None:
    for path in paths:
        try:
            await contents(sandbox, path, 0, 100)
        except FileNotFound:
            continue
        expect(False, "read raises FileNotFound for what is missing or no regular file", path)
