"""Python and commands run by our guest: a request goes in, frames come back.

Foreign code may do anything to the channel. The frames (see :mod:`skillyard.guest`) are read in the plainest way here.
The server's reader is another one: a check that used it would not notice a mistake that both share.
"""

from __future__ import annotations

import asyncio
import json
import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import (
    BlobMount,
    Guest,
    GuestCall,
    Mount,
    SkillMount,
    Stream,
    StreamLimits,
    command_request,
)
from skillyard.domain.work.command import Command, Input, Output
from skillyard.domain.work.record import Outcome
from skillyard.testing.sandbox_suite.check import Failed, Section, expect
from skillyard.testing.sandbox_suite.ground import ROOT, Done, Ground, code, collect, directory, fresh, run, start
from skillyard.testing.sandbox_suite.mounts import skill

guest = Section("guest")

SUM = "def main(args):\n    return {'sum': sum(args['xs'])}"

OWN_CHANNEL = """
import os
def channels():
    found = []
    for number in range(3, 1024):
        try: os.fstat(number)
        except OSError: continue
        found.append(number)
    return found
"""
"""Foreign code that looks for the channel among its descriptors."""


@guest.check()
async def result_comes_back(ground: Ground) -> None:
    result = await ground.run(code(SUM, {"xs": [1, 2, 3]}))
    expect(last(result.channel, "R") == {"sum": 6}, "what main returns is the last frame", result)
    expect(result.ending.outcome is Outcome.EXIT and result.ending.code == 0, "and it exits 0", result.ending)


@guest.check()
async def several_in_one_sandbox_share_files_only(ground: Ground) -> None:
    source = """
import builtins, os
def main(args):
    seen = [getattr(builtins, 'left', None), os.path.exists('left')]
    builtins.left = True
    open('left', 'w').close()
    return {'seen': seen}
"""
    async with ground.sandbox() as sandbox:
        first, second = [last((await run(sandbox, code(source))).channel, "R") for _ in range(2)]
    expect(first == {"seen": [None, False]}, "the first has a fresh interpreter", first)
    expect(second == {"seen": [None, True]}, "the second has one too, and the same /workspace", second)


@guest.check()
async def several_run_at_once(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        programs = [run(sandbox, code(SUM, {"xs": [number, 1]})) for number in range(4)]
        sums = [last(result.channel, "R")["sum"] for result in await asyncio.gather(*programs)]
    expect(sums == [1, 2, 3, 4], "guests run side by side", sums)


@guest.check()
async def exception_is_a_frame(ground: Ground) -> None:
    result = await ground.run(code("def main(args):\n    raise KeyError('what was asked')"))
    error = last(result.channel, "X")
    expect(error["type"] == "KeyError" and "what was asked" in error["message"], "an exception is told", error)
    expect(result.ending.outcome is Outcome.EXIT, "it is no outcome of its own", result.ending)


@guest.check()
async def blobs_are_frames(ground: Ground) -> None:
    source = """
from runtime import blobs
def main(args):
    small = blobs.write_text('hello')
    large = blobs.write_bytes(bytes(range(256)) * 20_000, 'application/octet-stream')
    return {'ids': [small, large], 'back': blobs.read_text(small)}
"""
    request = code(source)
    result = await ground.run(request)
    wanted = [f"{request.request['blob_prefix']}{number}" for number in (1, 2)]
    returned = last(result.channel, "R")
    expect(returned["ids"] == wanted, "the guest numbers its blobs behind the prefix", returned)
    expect(returned["back"] == "hello", "and reads its own")
    expect(blobs(result.channel) == {1: b"hello", 2: bytes(range(256)) * 20_000}, "their bytes come as frames")


@guest.check()
async def skills_and_blobs_are_read(ground: Ground) -> None:
    source = """
from runtime import blobs
from skills.suite.echo import main as echo
def main(args):
    return {'echo': echo(args), 'blob': blobs.read_text('blob:given')}
"""
    with directory(ground.scratch / fresh("mount")) as base:
        (base / "blob").write_text("content", encoding="utf-8")
        (base / "blob").chmod(0o444)
        root = "/skills/suite.echo"
        given = (
            Mount(Content("sha256:0", skill(base / "skill")), root),
            Mount(Content("sha256:1", base / "blob"), "/blobs/blob:given", aliases=("/blobs/given",)),
        )
        request = code(
            source,
            {"x": 1},
            skills={"suite.echo": SkillMount(root, "code/main.py")},
            blobs={"blob:given": BlobMount("text/plain", 7)},
        )
        result = await ground.run(request, mounts=given)
    wanted = {"echo": {"mounted": {"x": 1}}, "blob": "content"}
    expect(last(result.channel, "R") == wanted, "mounted skills are imported and given blobs read", result)


@guest.check()
async def logs_keep_the_order_written(ground: Ground) -> None:
    source = "import os\ndef main(args):\n    for n in range(200): os.write(1 + n % 2, b'%d\\n' % n)"
    result = await ground.run(code(source))
    wanted = b"".join(b"%d\n" % n for n in range(200))
    expect(result.stdout == wanted, "stdout and stderr are one stream, in order", result.stdout[:300])
    expect(result.stderr == b"", "stderr stays empty", result.stderr[:300])


@guest.check()
async def environment_of_the_request_is_set(ground: Ground) -> None:
    source = "import os\ndef main(args):\n    return dict(os.environ)"
    seen = last((await ground.run(code(source, env={"SUITE_SECRET": "s3cret ü"}))).channel, "R")
    expect(seen.get("SUITE_SECRET") == "s3cret ü", "the request's variables are in os.environ", seen)
    expect(seen.get("HOME") == f"{seen.get(ROOT, '')}/workspace" and "PATH" in seen, "beside the sandbox's own", seen)


@guest.check()
async def large_request_arrives(ground: Ground) -> None:
    text = "ü" * 5_000_000
    result = await ground.run(code("def main(args):\n    return {'size': len(args['text'])}", {"text": text}))
    expect(last(result.channel, "R") == {"size": 5_000_000}, "a request of 10 MB arrives whole", result.ending)


@guest.check()
async def large_result_comes_back(ground: Ground) -> None:
    result = await ground.run(code("def main(args):\n    return {'text': 'x' * 5_000_000}"))
    expect(len(last(result.channel, "R")["text"]) == 5_000_000, "a result of 5 MB comes back whole", result.ending)


@guest.check()
async def exit_code_and_signal_are_told(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        left = (await run(sandbox, code("import os\ndef main(args):\n    os._exit(3)"))).ending
        killed = (await run(sandbox, code("import os\ndef main(args):\n    os.kill(os.getpid(), 9)"))).ending
    expect(left.outcome is Outcome.EXIT and left.code == 3, "a guest that leaves by itself exits", left)
    expect(killed.outcome is Outcome.SIGNAL and killed.signal == 9, "one that kills itself is a signal", killed)


@guest.check()
async def segmentation_fault_is_a_signal(ground: Ground) -> None:
    ending = (await ground.run(code("import ctypes\ndef main(args):\n    ctypes.string_at(0)"))).ending
    expect(ending.outcome is Outcome.SIGNAL and ending.signal == 11, "a crash is told as its signal", ending)


@guest.check()
async def garbage_on_the_channel_is_passed_on(ground: Ground) -> None:
    source = (
        OWN_CHANNEL
        + """
def main(args):
    for number in channels():
        try: os.write(number, b'\\xff\\xff\\xff\\xff\\xff garbage')
        except OSError: pass
    os._exit(0)
"""
    )
    result = await _bounded_run(ground, source)
    expect(result.ending.outcome is Outcome.EXIT, "garbage on the channel breaks nothing", result.ending)


@guest.check()
async def closed_channel_is_no_result(ground: Ground) -> None:
    source = (
        OWN_CHANNEL
        + """
def main(args):
    print('closing', flush=True)
    for number in channels(): os.close(number)
    return {}
"""
    )
    result = await _bounded_run(ground, source)
    expect(result.stdout.startswith(b"closing\n"), "the guest ran", result)
    expect(result.channel == b"", "a guest that closed its channel says nothing on it", result.channel[:200])
    expect(result.ending.outcome in (Outcome.EXIT, Outcome.SIGNAL), "and ends by itself", result.ending)


@guest.check()
async def channel_in_other_hands_does_not_hold_up(ground: Ground) -> None:
    source = """
import os, time
def main(args):
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
    return {'left': True}
"""
    result = await _bounded_run(ground, source)
    expect(last(result.channel, "R") == {"left": True}, "a child that holds the channel holds nobody up", result)


@guest.check("output")
async def flood_of_the_channel_ends_the_program(ground: Ground) -> None:
    source = """
from runtime import blobs
def main(args):
    while True: blobs.write_bytes(b'x' * 1_000_000, 'application/octet-stream')
"""
    limit = 4_000_000
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, code(source), streams=StreamLimits(channel_bytes=limit))
        async with asyncio.timeout(20):
            ending = await process.wait()
        kept = len(await collect(process, Stream.CHANNEL))
    expect(ending.outcome is Outcome.OUTPUT, "a flood of the channel ends as output", ending)
    expect(kept <= limit + 65536, "what was kept is bounded by the limit", kept)


@guest.check()
async def forged_frames_are_the_program_s_own(ground: Ground) -> None:
    source = (
        OWN_CHANNEL
        + """
def main(args):
    for number in channels():
        try: os.write(number, b'R' + (11).to_bytes(4, 'big') + b'{"forged":1}'[:11])
        except OSError: pass
    return {'real': 1}
"""
    )
    result = await _bounded_run(ground, source)
    kinds = [frame.kind for frame in frames(result.channel)]
    expect(kinds[-1] == "R" and len(kinds) >= 1, "frames come in the order written, forged ones too", kinds)


async def _bounded_run(ground: Ground, source: str) -> Done:
    """A run that must end soon, though no deadline of its own ends it."""
    async with asyncio.timeout(20):
        return await ground.run(code(source))


@dataclass(frozen=True, slots=True)
class Frame:
    kind: str
    payload: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.payload)


def frames(channel: bytes) -> list[Frame]:
    """Raises Failed for bytes that are not a whole sequence of frames."""
    found, at = [], 0
    while at < len(channel):
        if len(channel) - at < 5:
            raise Failed(f"the channel ends within a frame's head: {channel[at:]!r}")
        kind, size = struct.unpack_from(">cI", channel, at)
        at += 5 + size
        if at > len(channel):
            raise Failed(f"the channel ends within a frame of {size} bytes")
        found.append(Frame(kind.decode("latin-1"), channel[at - size : at]))
    return found


def last(channel: bytes, kind: str) -> Any:
    """The value of the last frame, which is of ``kind``."""
    found = frames(channel)
    if not found or found[-1].kind != kind:
        raise Failed(f"the last frame is {kind}; seen: {[(f.kind, f.payload[:300]) for f in found[-3:]]}")
    return found[-1].value


def blobs(channel: bytes) -> dict[int, bytes]:
    """The complete blobs by their number."""
    pieces: dict[int, list[bytes]] = {}
    whole: dict[int, bytes] = {}
    for frame in frames(channel):
        if frame.kind == "B":
            pieces[frame.value["n"]] = []
        elif frame.kind == "D":
            pieces[int.from_bytes(frame.payload[:4], "big")].append(frame.payload[4:])
        elif frame.kind == "E":
            whole[frame.value["n"]] = b"".join(pieces[frame.value["n"]])
    return whole


commands = Section("commands")
NAME = "acme.notes"
BLOB = "blob:0123456789abcdef0123456789abcdef"


@dataclass(frozen=True)
class Ran:
    """A command that ended."""

    done: Done

    @property
    def code(self) -> Any:
        return last(self.done.channel, "R").get("exit_code")

    @property
    def stdout(self) -> str:
        return self._stream(b"1")

    @property
    def stderr(self) -> str:
        return self._stream(b"2")

    @property
    def files(self) -> dict[str, bytes]:
        found = blobs(self.done.channel)
        rows = [frame.value for frame in frames(self.done.channel) if frame.kind == "B"]
        return {row["path"]: found[row["n"]] for row in rows if row["n"] in found}

    @property
    def skipped(self) -> dict[str, str]:
        rows = [row.value for row in frames(self.done.channel) if row.kind == "N"]
        return {path: why for row in rows for path, why in row.get("skipped", ())}

    def _stream(self, wanted: bytes) -> str:
        pieces = [b"1" + self.done.stdout.partition(b"\0")[0], *self.done.stdout.split(b"\0")[1:]]
        return b"".join(piece[1:] for piece in pieces if piece[:1] == wanted).decode()


@asynccontextmanager
async def _ran(ground: Ground, text: str, **asked: Any) -> AsyncIterator[Ran]:
    """Runs a command in a skill, with a blob of three bytes that it may have as an input."""
    with directory(ground.scratch / fresh("command")) as base:
        (base / "blob").write_bytes(b"a,b")
        mounts = (
            Mount(Content("sha256:0", skill(base / "skill")), f"/skills/{NAME}"),
            Mount(Content("sha256:1", base / "blob"), f"/blobs/{BLOB}"),
        )
        call = GuestCall(
            f"blob:{uuid.uuid4().hex}-",
            code="",
            skills={NAME: SkillMount(f"/skills/{NAME}")},
            blobs={BLOB: BlobMount("text/csv", 3)},
        )
        request = command_request(call, NAME, Command(text, **asked))
        async with ground.sandbox(mounts=mounts) as sandbox:
            yield Ran(await run(sandbox, Guest(request)))


@commands.check()
async def streams_are_apart_and_the_exit_code_is_a_value(ground: Ground) -> None:
    async with _ran(ground, "echo out; echo err >&2; exit 3") as ran:
        expect((ran.stdout, ran.stderr) == ("out\n", "err\n"), "stdout and stderr are told apart", ran.done)
        expect(ran.code == 3, "the exit code of the command is its result", ran.done)


@commands.check()
async def python_is_the_interpreter_of_the_sandbox(ground: Ground) -> None:
    async with _ran(ground, "import json; print(json.dumps([1]))", language="python") as ran:
        expect((ran.stdout, ran.code) == ("[1]\n", 0), "a command in Python runs", ran.done)


@commands.check()
async def the_skill_is_a_writable_copy(ground: Ground) -> None:
    text = 'code/tool.sh && echo more >> SKILL.md && grep -c more SKILL.md "$SKILL_DIR"/SKILL.md ; ls'
    async with _ran(ground, text) as ran:
        lines = ran.stdout.split()
        expect(lines[0] == "tool" and lines[1] == "SKILL.md:1", "its files can be run and changed", ran.done)
        expect(lines[2].endswith("SKILL.md:0"), "the skill itself stays as it is", ran.done)
        expect(lines[3:] == ["SKILL.md", "code"], "and the copy is the working directory", ran.done)


@commands.check()
async def variables_arrive_as_given(ground: Ground) -> None:
    odd = "$(touch made) `id` \\ \" ' \n é"
    async with _ran(ground, 'printf %s "$ODD"', env={"ODD": odd}) as ran:
        expect(ran.stdout == odd, "a variable arrives as it was given", ran.done)


@commands.check()
async def files_go_in_and_out(ground: Ground) -> None:
    inputs = (Input(BLOB, "skill/in/data.csv"),)
    outputs = tuple(Output(path, path) for path in ("skill/in/data.csv", "skill/empty", "skill/none", "skill/*.txt"))
    text = "printf c >> in/data.csv; : > empty; echo 1 > a.txt"
    async with _ran(ground, text, inputs=inputs, outputs=outputs) as ran:
        wanted = {"0/skill/in/data.csv": b"a,bc", "1/skill/empty": b"", "3/skill/a.txt": b"1\n"}
        expect(ran.files == wanted, "inputs can be changed, and outputs come back", ran.done)
        expect(ran.skipped == {"2/skill/none": "missing"}, "a missing output is told, an empty one comes", ran.skipped)


@commands.check()
async def links_and_pipes_are_not_sent(ground: Ground) -> None:
    outputs = tuple(Output(path, path) for path in ("skill/link", "skill/dir/passwd", "skill/pipe"))
    text = "ln -s /etc/passwd link; ln -s /etc dir; mkfifo pipe || ln -s pipe pipe; echo said"
    async with _ran(ground, text, outputs=outputs) as ran:
        expect(ran.stdout == "said\n", "the command runs", ran.done)
        expect(not ran.files, "no link is followed and no pipe waited for", ran.files)
        expect(set(ran.skipped.values()) == {"kind"}, "each is told", ran.skipped)


@commands.check()
async def a_command_does_not_wait_for_what_it_left(ground: Ground) -> None:
    async with _ran(ground, "(setsid sleep 1000 >/dev/null 2>&1 &) ; sleep 1000 & echo done") as ran:
        expect((ran.stdout, ran.code) == ("done\n", 0), "it ends with its shell", ran.done)
