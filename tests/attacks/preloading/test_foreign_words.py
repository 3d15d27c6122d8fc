"""What the init of a sandbox says when packages that were imported ahead put words into its mouth."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from skillyard.config.backends import NativeSettings
from skillyard.domain.errors import SandboxFault, SandboxGone
from skillyard.domain.sandbox.spec import Argv, Stream
from skillyard.domain.work.record import Outcome
from skillyard.ipc.peers import peer
from skillyard.ports.sandbox import Sandbox
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.grounds.landlock.backend import LandlockBackend
from skillyard.sandbox.native.inside.init import BROKEN_STATUS
from skillyard.sandbox.native.launch import _connect
from skillyard.sandbox.registry import nature
from tests.attacks.preloading.packages import Yard

pytestmark = pytest.mark.anyio

SPEAKS = """
import array, os, socket
from skillyard.sandbox.native.inside import init
real = init.Init.run
def run(self):
    control = socket.socket(fileno=os.dup(self._control_fd))
    for word, count in {words!r}:
        sources = [os.open('/dev/null', os.O_RDONLY) for _ in range(count)]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', sources))] if count else []
        control.sendmsg([word], rights)
        for fd in sources:
            os.close(fd)
    control.close()
    return real(self)
init.Init.run = run
"""

CANNOT_START = """
import os
from skillyard.sandbox.native.inside import init
real = init._arrange
def arrange(fds):
    here = '/workspace/broken' if os.path.isdir('/workspace') else os.environ['HOME'] + '/broken'
    if len(fds) == 3 and os.path.exists(here):
        os.unlink(here)
        raise {error}
    real(fds)
init._arrange = arrange
"""
ERRORS = {"lacks_descriptors": "OSError(24, 'too many open files')", "lacks_memory": "MemoryError()"}

READY = b'{"ready":true}'
ENDED = b'{"ended":"p","status":0,"cpu":0.1,"rss":1}'
SAYINGS: dict[str, list[tuple[bytes, int]]] = {
    "a_number": [(b"5", 0)],
    "a_text": [(b'"ready"', 0)],
    "null": [(b"null", 0)],
    "a_hundred_thousand_brackets": [(b"[" * 100_000, 0)],
    "as_many_objects": [(b'{"a":' * 30_000, 0)],
    "no_json": [(b"\xff\xfe", 0)],
    "a_long_number": [(b'{"idle_worker_gone":' + b"9" * 5000 + b"}", 0)],
    "a_status_that_is_a_text": [(b'{"idle_worker_gone":"x"}', 0)],
    "the_end_of_nothing": [(READY, 0), (b'{"ended":{},"status":[],"cpu":"x","rss":null}', 0)],
    "an_unhashable_name": [(b'{"failed":[],"why":"x"}', 0)],
    "nothing_was_lent": [(b'{"not_lent":"p"}', 0)],
    "infinity": [(b'{"ended":"p","status":1e999,"cpu":Infinity,"rss":NaN}', 0)],
    "a_broken_list": [(b'{"broken":' + b"[" * 900 + b"]" * 900 + b"}", 0)],
    "descriptors": [(READY, 16)],
    "more_descriptors_than_are_taken": [(READY, 253)],
    "descriptors_with_no_word": [(b"x", 100)],
    "ready_twice": [(READY, 0), (READY, 0)],
}
DESCRIPTORS = 64
"""What a keeper may hold more after all of this than before."""


@pytest.fixture(scope="module", params=["native", "landlock"])
async def yard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yard]:
    base = tmp_path_factory.mktemp("words")
    packages = base / "packages"
    packages.mkdir(mode=0o755)
    for name, words in SAYINGS.items():
        (packages / f"{name}.py").write_text(SPEAKS.format(words=words))
    for name, error in ERRORS.items():
        (packages / f"{name}.py").write_text(CANNOT_START.format(error=error))
    backend: NativeBackend
    if request.param == "native":
        backend = NativeBackend(base / "run", NativeSettings(ready=0))
    else:
        backend = LandlockBackend(base / "run", NativeSettings(ready=0))
    try:
        if not (probe := await backend.probe()).ready:
            pytest.skip(probe.facts["why"])
        yield Yard(backend, packages, nature(request.param).without)
    finally:
        await backend.close()


def keeper(yard: Yard) -> int:
    """The pid of the keeper that answers."""
    assert isinstance(yard.backend, NativeBackend)
    sock = _connect(yard.packages.parent / "run")
    assert sock is not None
    with sock:
        return peer(sock)[0]


async def attempt(yard: Yard, module: str, key: str) -> None:
    """A program in a sandbox whose init speaks: it ends in order, or because its init cannot be believed."""
    try:
        sandbox = await yard.backend.create(yard.spec(module), key)
    except SandboxFault:
        return
    try:
        process = await sandbox.start(Argv(("true",)), id="p", timeout_ms=20_000)
        ending = await process.wait()
        assert ending.outcome is Outcome.EXIT or "believed" in ending.reason
    except (SandboxFault, SandboxGone):
        return
    finally:
        await yard.backend.destroy(sandbox.handle)


@pytest.mark.parametrize("module", SAYINGS)
async def test_words_of_an_init_end_its_sandbox_at_most(yard: Yard, module: str) -> None:
    """Whoever asks gets a sandbox, made without these packages where they spoiled what makes them."""
    before = keeper(yard)
    for number in range(3):
        await attempt(yard, module, f"key{number}")
    assert await yard.evaluate("1 + 1") == 2
    assert keeper(yard) == before


async def outcome(sandbox: Sandbox, id: str, script: str) -> tuple[int | None, str]:
    """The exit code of a script and its output."""
    process = await sandbox.start(Argv(("sh", "-c", script)), id=id, timeout_ms=60_000)
    ending = await process.wait()
    assert ending.outcome is Outcome.EXIT, ending
    return ending.code, b"".join([piece async for piece in process.output(Stream.STDOUT)]).decode().strip()


@pytest.mark.parametrize("module", ERRORS)
async def test_a_child_that_cannot_be_set_up_ends_and_is_no_second_init(yard: Yard, module: str) -> None:
    """Another program is at work, whose end would take a second init along."""
    sandbox = await yard.backend.create(yard.spec(module), "run")
    try:
        script = "echo here; exec sleep 600"
        other = await sandbox.start(Argv(("sh", "-c", script)), id="other", timeout_ms=600_000)
        assert await anext(other.output(Stream.STDOUT)) == b"here\n"  # no child of it is still to be set up
        code, before = await outcome(sandbox, "before", "touch broken; set -- /proc/[0-9]*; echo $# $PPID")
        assert code == 0
        assert (await outcome(sandbox, "broken", "echo started"))[0] == BROKEN_STATUS
        for number in range(8):  # each may be read by either init, where there are two
            assert await outcome(sandbox, f"after{number}", "set -- /proc/[0-9]*; echo $# $PPID") == (0, before)
        await other.kill("the test is over")
    finally:
        await yard.backend.destroy(sandbox.handle)


NAMES_ITSELF = """
import ctypes, mmap, os, time
libc = ctypes.CDLL(None)
for end in (b"\\r", b"\\x0c", b"\\x1c"):
    if os.fork() == 0:
        libc.prctl(15, end + b"FDSize:x", 0, 0, 0)
        where = os.environ.get("TMPDIR", "/tmp") + "/a" + end.decode() + "1 2 3 4 x " + os.environ["HOME"] + "/"
        os.makedirs(where, exist_ok=True)
        fd = os.open(where + "x", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 4096)
        held = mmap.mmap(fd, 4096)
        os.unlink(where + "x")
        time.sleep(1.5)
        os._exit(0)
for _ in range(3):
    os.wait()
"""


async def test_names_that_look_like_lines_of_the_kernels_end_no_keeper(yard: Yard) -> None:
    """Of a process and of a file that it has mapped: both are shown amidst what the keeper reads of it."""
    before = keeper(yard)
    sandbox = await yard.backend.create(yard.spec(), "names")
    try:
        process = await sandbox.start(Argv(("python3", "-c", NAMES_ITSELF)), id="p", timeout_ms=20_000)
        ending = await process.wait()
        said = b"".join([piece async for piece in process.output(Stream.STDERR)])
        assert (ending.outcome, ending.code) == (Outcome.EXIT, 0), (ending, said)
    finally:
        await yard.backend.destroy(sandbox.handle)
    assert keeper(yard) == before


async def test_descriptors_that_come_with_words_are_closed(yard: Yard) -> None:
    def held() -> int:
        return len(os.listdir(f"/proc/{keeper(yard)}/fd"))

    await yard.evaluate("1")
    if not os.access(f"/proc/{keeper(yard)}/fd", os.R_OK):
        pytest.skip("an ordinary user cannot look into a keeper that is not dumpable")
    before = held()
    for _ in range(5):
        await attempt(yard, "more_descriptors_than_are_taken", "key")
    assert held() - before < DESCRIPTORS
