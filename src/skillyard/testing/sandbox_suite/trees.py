"""Trees as one stream in and out, many small files, and what is told and removed of names."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import AsyncGenerator, AsyncIterator

from skillyard.domain.errors import FileNotFound, InvalidInput, QuotaExceeded, SandboxFault, SandboxGone, SkillyardError
from skillyard.domain.work.limits import Limits
from skillyard.ports.sandbox import Sandbox
from skillyard.testing.sandbox_suite.check import Section, expect
from skillyard.testing.sandbox_suite.ground import Ground, contents, look, pieces, python, run, start, until

trees = Section("trees")

MIB = 1 << 20
MODE = "import json, os, sys; print(json.dumps(os.stat(HERE + sys.argv[1]).st_mode & 0o777))"
"""As a program sees it: some walls give every file the same."""
MAKE_TREE = """
import os
os.makedirs('t/empty')
os.makedirs('t/' + 'n' * 120 + '/' + 'm' * 120)
for name, data in (('a', b'first'), ('n' * 120 + '/' + 'm' * 120 + '/deep', b'x' * 100_000)):
    open('t/' + name, 'wb').write(data)
os.chmod('t/a', 0o640)
os.symlink('/etc/passwd', 't/link')
open(b't/\\xff\\xfe', 'wb').write(b'odd')
os.mkfifo('t/pipe')
"""


CLOSED = """
import os, stat, sys
if not os.path.exists("shut"):
    os.makedirs("shut/inner")
    for name in ("shut/a", "shut/inner/b", "secret"):
        open(name, "w").write(name)
        os.chmod(name, 0)
    for name in ("shut/inner", "shut"):
        os.chmod(name, 0)
shut = stat.S_IMODE(os.stat("shut").st_mode)
os.chmod("shut", 0o700)
inner = stat.S_IMODE(os.stat("shut/inner").st_mode)
os.chmod("shut/inner", 0o700)
files = ("shut/a", "shut/inner/b", "secret")
modes = [shut, inner, *(stat.S_IMODE(os.stat(name).st_mode) for name in files)]
for name in files:
    os.chmod(name, 0o600)
texts = [open(name).read() for name in files]
for name in (*files, "shut/inner", "shut"):
    os.chmod(name, 0)
import json
print(json.dumps([modes, texts]))
"""
UNCHANGED = [0o755, 0o755, 0o644, 0o644, 0o644]


@trees.check()
async def closed_directories_and_files_are_in_the_tree(ground: Ground) -> None:
    wanted = ["shut/a", "shut/inner/b", "secret"]
    async with ground.sandbox() as sandbox, ground.sandbox() as other:
        closed, texts = await look(sandbox, CLOSED)
        # Where the walls do not know chmod(2) it changes nothing.
        expect(texts == wanted and closed in ([0] * 5, UNCHANGED), "programs close what is theirs", closed)
        await other.put("/workspace", sandbox.get("/workspace"))
        again = await look(sandbox, CLOSED)
        expect(again == [closed, wanted], "what was read is closed as before", again)
        modes, texts = await look(other, CLOSED)
        expect(texts == wanted, "and all of it is in the tree", texts)
        expect(modes[2:] == closed[2:], "with the modes of the files", modes)


@trees.check()
async def tree_comes_out_and_goes_in(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        await run(sandbox, python(MAKE_TREE))
        out = await _got(sandbox, "/workspace/t")
        found = members(out)
        deep = "n" * 120 + "/" + "m" * 120
        wanted = {"a", "empty", "link", "n" * 120, deep, f"{deep}/deep", "\udcff\udcfe"}
        expect(set(found) == wanted, "files, directories and links are in it, and no FIFO", sorted(found))
        kinds = (found["a"].isreg(), found["empty"].isdir(), found["link"].issym(), found["link"].linkname)
        expect(kinds == (True, True, True, "/etc/passwd"), "each as what it is", kinds)
        mode = await look(sandbox, MODE, "/workspace/t/a")
        expect(found["a"].mode & 0o777 == mode, "with its mode", oct(found["a"].mode))
    async with ground.sandbox() as sandbox:
        await sandbox.put("/workspace/new/place", pieces(out, 1000))
        expect(await contents(sandbox, "/workspace/new/place/a") == b"first", "files come in")
        expect(members(await _got(sandbox, "/workspace/new/place")).keys() == wanted, "and so does all else")
        one = members(await _got(sandbox, "/workspace/new/place/a"))
        expect(list(one) == ["a"], "a file alone comes under its name", list(one))
        again = archive(("a", tarfile.REGTYPE, b"second", ""), ("link", tarfile.REGTYPE, b"no link", ""))
        await sandbox.put("/workspace/new/place", pieces(again))
        expect(await contents(sandbox, "/workspace/new/place/a") == b"second", "what was there is replaced")
        expect(await contents(sandbox, "/workspace/new/place/link") == b"no link", "a link itself, not its target")


@trees.check()
async def thousand_files_go_in_and_out(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        for number in range(1000):
            await sandbox.write(f"/workspace/many/{number}", pieces(b"%d" % number))
        expect(len(await sandbox.entries("/workspace/many")) == 1000, "all are there")
        for number in range(0, 1000, 7):
            expect(await contents(sandbox, f"/workspace/many/{number}") == b"%d" % number, "each as it was written")


HOSTILE: dict[str, tuple[tuple[str, bytes, bytes, str], ...]] = {
    "up": (("../escaped", tarfile.REGTYPE, b"x", ""),),
    "up within": (("a/../../escaped", tarfile.REGTYPE, b"x", ""),),
    "absolute": (("/workspace/escaped", tarfile.REGTYPE, b"x", ""),),
    "hard link": (("hard", tarfile.LNKTYPE, b"", "/workspace/kept"),),
    "device": (("device", tarfile.CHRTYPE, b"", ""),),
    "FIFO": (("pipe", tarfile.FIFOTYPE, b"", ""),),
    "through a link": (("l", tarfile.SYMTYPE, b"", ".."), ("l/escaped", tarfile.REGTYPE, b"x", "")),
    "deep": (("d/" * 400 + "x", tarfile.REGTYPE, b"x", ""),),
}


@trees.check()
async def hostile_streams_are_refused(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        await sandbox.write("/workspace/kept", pieces(b"kept"))
        streams = {name: archive(*entries) for name, entries in HOSTILE.items()}
        whole = archive(("a", tarfile.REGTYPE, b"x" * 5000, ""))
        streams |= {"nothing": b"", "noise": b"no tar at all" * 100, "cut off": whole[:2000]}
        for name, stream in streams.items():
            try:
                await sandbox.put("/workspace/in", pieces(stream))
            except InvalidInput:
                names = {entry.name for entry in await sandbox.entries("/workspace")}
                expect(names <= {"kept", "in"}, f"a stream that is refused ({name}) leads nowhere", names)
                continue
            expect(False, f"a stream is refused: {name}")
        expect(await contents(sandbox, "/workspace/kept") == b"kept", "other files are as they were")


@trees.check("read_only_root")
async def trees_go_to_writable_directories_only(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        for path in ("/etc", "/skills/x", "/usr/lib"):
            try:
                await sandbox.put(path, pieces(archive(("x", tarfile.REGTYPE, b"x", ""))))
            except SkillyardError:
                continue
            expect(False, "put refuses a place that is not writable", path)


@trees.check("disk")
async def tree_beyond_the_disk_is_refused(ground: Ground) -> None:
    async with ground.sandbox(Limits(timeout_ms=20_000, disk_mb=8)) as sandbox:
        large = archive(("small", tarfile.REGTYPE, b"x", ""), ("large", tarfile.REGTYPE, b"x" * (12 * MIB), ""))
        try:
            await sandbox.put("/workspace/in", pieces(large, MIB))
        except QuotaExceeded:
            try:
                names = [entry.name for entry in await sandbox.entries("/workspace/in")]
            except SandboxGone:
                expect(sandbox.enforced["disk"] == "supervised", "only a supervised limit ends the sandbox")
                return
            expect(names == ["small"], "the entry that did not fit leaves nothing", names)
            return
    expect(False, "put raises QuotaExceeded when the disk limit is reached")


@trees.check()
async def put_that_fails_on_the_way_is_told(ground: Ground) -> None:
    class Broken(Exception):
        pass

    async def breaking() -> AsyncIterator[bytes]:
        yield archive(("a", tarfile.REGTYPE, b"x" * 5000, ""))[:3000]
        raise Broken

    async with ground.sandbox() as sandbox:
        try:
            await sandbox.put("/workspace/in", breaking())
        except Broken:
            await sandbox.write("/workspace/after", pieces(b"works"))
            expect(await contents(sandbox, "/workspace/after") == b"works", "files work on")
            return
    expect(False, "put raises what its source raised")


@trees.check()
async def tree_that_changes_is_harmless(ground: Ground) -> None:
    """A program swaps directories with links and cuts files while they are packed and removed."""
    race = """
import os, sys
os.makedirs(HERE + '/workspace/r/d', exist_ok=True)
os.chdir(HERE + '/workspace/r')
print('races', flush=True)
while True:
    try:
        open('d/f', 'wb').write(b'x' * 300_000)
        os.rename('d', 'e'); os.symlink('/', 'd'); os.unlink('d'); os.rename('e', 'd')
        os.truncate('d/f', 10)
    except OSError: os.makedirs(HERE + '/workspace/r/d', exist_ok=True)
"""
    async with ground.sandbox() as sandbox:
        racing = await start(sandbox, python(race))
        await until(racing, b"races")
        for _ in range(20):
            try:
                names = set(members(await _got(sandbox, "/workspace/r")))
            except (InvalidInput, SandboxFault):
                continue  # moved while it was read: told, and nothing else
            expect(names <= {"d", "d/f", "e", "e/f"}, "nothing from outside of the tree is in it", sorted(names)[:20])
        await racing.kill()
        await racing.wait()
        await sandbox.remove("/workspace/r")
        expect([entry.name for entry in await sandbox.entries("/workspace")] == [], "and it can be removed")


@trees.check()
async def reader_that_stops_leaves_files_working(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        await sandbox.write("/workspace/large", pieces(b"x" * (8 * MIB), MIB))
        for _ in range(3):
            reading = sandbox.read("/workspace/large")
            async for _ in reading:
                break
            if isinstance(reading, AsyncGenerator):
                await reading.aclose()
        data = await contents(sandbox, "/workspace/large")
        expect(len(data) == 8 * MIB, "a reader that stopped hinders no other", len(data))


KILL = """
import os, signal
others = [int(name) for name in os.listdir('/proc') if name.isdigit() and int(name) not in (1, os.getpid())]
for pid in others if len(others) < 20 else ():  # else they are the host's
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass
"""


@trees.check("pid_namespace")
async def programs_may_end_what_serves_files(ground: Ground) -> None:
    """A request may fail when its server is ended; the next one gets another server."""
    async with ground.sandbox() as sandbox:
        for number in range(5):
            await sandbox.write("/workspace/f", pieces(b"%d" % number))
            await run(sandbox, python(KILL))
            try:
                seen = await contents(sandbox, "/workspace/f")
            except SandboxFault:
                seen = await contents(sandbox, "/workspace/f")
            expect(seen == b"%d" % number, "files can be reached again", seen)


@trees.check()
async def names_are_described(ground: Ground) -> None:
    make = "import os\nopen('f', 'wb').write(b'12345')\nos.chmod('f', 0o751)\nos.symlink('/etc', 'l')\nos.mkdir('d')"
    async with ground.sandbox() as sandbox:
        before = time.time()
        await run(sandbox, python(make))
        told = await sandbox.stat("/workspace/f")
        seen = (told.name, told.kind, told.size, told.mode)
        mode = await look(sandbox, MODE, "/workspace/f")
        expect(seen == ("f", "file", 5, mode), "name, kind, size and mode of a file", told)
        expect(abs(told.modified_s - before) < 3600, "and when it was changed", told)
        kinds = [(await sandbox.stat(f"/workspace/{name}")).kind for name in ("l", "d")]
        expect(kinds == ["link", "directory"], "a link is not followed", kinds)
        try:
            await sandbox.stat("/workspace/none")
        except FileNotFound:
            return
    expect(False, "stat raises FileNotFound for what is missing")


@trees.check()
async def names_are_removed(ground: Ground) -> None:
    make = """
import os
os.makedirs('t/d/e')
os.mkdir('kept')
open('kept/file', 'w').close()
os.symlink('../../kept', 't/d/link')
open('t/d/shut', 'w').close()
os.chmod('t/d/e', 0)
os.chmod('t/d', 0o500)
open('one', 'w').close()
os.symlink('kept', 'two')
depth = 0
os.makedirs('t/deep')
os.chdir('t/deep')
for _ in range(2000):
    os.mkdir('d')
    os.chdir('d')
"""
    async with ground.sandbox() as sandbox:
        await run(sandbox, python(make))
        for name in ("one", "two", "t"):
            await sandbox.remove(f"/workspace/{name}")
        names = [entry.name for entry in await sandbox.entries("/workspace")]
        expect(names == ["kept"], "files, links and trees of any modes and depth are removed", names)
        expect([entry.name for entry in await sandbox.entries("/workspace/kept")] == ["file"], "links are not followed")
        for path in ("/workspace/one", "/workspace/none/below"):
            try:
                await sandbox.remove(path)
            except FileNotFound:
                continue
            expect(False, "remove raises FileNotFound for what is missing", path)


def archive(*entries: tuple[str, bytes, bytes, str]) -> bytes:
    """Returns a tar stream of (name, type, content, target of a link)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name, kind, data, target in entries:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(data), target
            made.addfile(info, io.BytesIO(data))
    return out.getvalue()


def members(stream: bytes) -> dict[str, tarfile.TarInfo]:
    """Returns the entries of a stream by name."""
    with tarfile.open(fileobj=io.BytesIO(stream), encoding="utf-8", errors="surrogateescape") as found:
        return {entry.name: entry for entry in found}


async def _got(sandbox: Sandbox, path: str) -> bytes:
    return b"".join([data async for data in sandbox.get(path)])
