"""The compiled part performs steps, and serves clones whose processes go on in Python."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skillyard.ipc import packets
from skillyard.sandbox.native.grounds import root
from skillyard.sandbox.native.grounds.namespaces import form
from skillyard.sandbox.native.grounds.namespaces.form import Given, Patched, Slot, Step
from skillyard.sandbox.native.inside.walls import READY
from skillyard.sandbox.native.linux import kernel
from skillyard.sandbox.native.linux.syscall_numbers import NUMBERS
from tests.unit.sandbox.native.compiled import (
    EMPTY,
    SOURCE,
    SOURCES,
    SPACES,
    Serving,
    hook,
    make_first,
    make_library,
    server,
)
from tests.waiting import until


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.PyDLL:
    return make_library(tmp_path_factory)


def perform(library: ctypes.PyDLL, *steps: Step, given: tuple[int, ...] = ()) -> int:
    """Performs harmless steps here; returns 0 or the errno."""
    raw = form.encode(*steps, form.END)
    fds = (ctypes.c_int * max(1, len(given)))(*given)
    failed = ctypes.create_string_buffer(1024)
    buffer = ctypes.create_string_buffer(raw, len(raw))
    size = ctypes.c_size_t(len(raw))
    got = library.sy_run(buffer, size, fds, len(given), b"", ctypes.c_size_t(0), failed)
    return 0 if got == 0 else ctypes.get_errno()


def test_steps_use_results_of_earlier_ones_and_what_came_along(library: ctypes.PyDLL, tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    fd = os.open(other, os.O_WRONLY | os.O_CREAT)
    flags = os.O_WRONLY | os.O_CREAT
    opened = Step("open", NUMBERS["openat"], (kernel.AT_FDCWD, bytes(path) + b"\0", flags, 0o600), store=3)
    steps = (
        opened,
        Step("write", NUMBERS["write"], (Slot(3), b"one", 3), skip=1),
        Step("write", NUMBERS["write"], (Slot(3), b"left out", 8)),
        Step("write", NUMBERS["write"], (Slot(3), Patched(b"fd: 0000", 3), 4)),
        Step("write", NUMBERS["write"], (Given(1), b"two", 3)),
        Step("fork", 0, op=form.FORK_ONCE),
        Step("close", NUMBERS["close"], (Slot(3),)),
    )
    assert perform(library, *steps, given=(-1, fd)) == 0
    os.close(fd)
    assert (path.read_bytes(), other.read_bytes()) == (b"onefd: ", b"two")


def test_a_failed_step_ends_the_table_unless_it_may_fail_so(library: ctypes.PyDLL, tmp_path: Path) -> None:
    made = Step("mkdir", NUMBERS["mkdirat"], (kernel.AT_FDCWD, bytes(tmp_path / "made") + b"\0", 0o700))
    absent = (kernel.AT_FDCWD, bytes(tmp_path / "no" / "where") + b"\0", 0o700)
    for lenient, wanted in ((0, 2), (13, 2), (2, 0), (form.ANY, 0)):
        (tmp_path / "made").rmdir() if (tmp_path / "made").exists() else None
        failing = Step("mkdir", NUMBERS["mkdirat"], absent, lenient=lenient, skip=1)
        assert perform(library, failing, made) == wanted
        assert (tmp_path / "made").exists() == (wanted == 0)


def test_a_library_of_another_source_or_machine_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if root.compiled_part() is None:
        pytest.skip("the compiled part was not built here: python hatch_build.py")
    place = tmp_path / "inside"
    place.mkdir()
    (tmp_path / "grounds").mkdir()
    for name in ("steps.c", "first.c", "libsteps.so", "first"):
        shutil.copy(SOURCE.with_name(name), place)
    monkeypatch.setattr(root, "__file__", str(tmp_path / "grounds" / "root.py"))
    assert root.compiled_part() == place / "libsteps.so"
    for part in (place / "libsteps.so", place / "first"):
        bytes_of = bytearray(part.read_bytes())
        bytes_of[18] ^= 1
        part.write_bytes(bytes_of)
        assert root.compiled_part() is None, "it is for another machine"
        bytes_of[18] ^= 1
        part.write_bytes(bytes_of)
        assert root.compiled_part() is not None
    for name in ("steps.c", "first.c"):
        before = (place / name).read_bytes()
        (place / name).write_bytes(before + b"\n")
        assert root.compiled_part() is None
        (place / name).write_bytes(before)
    (place / "first").unlink()
    assert root.compiled_part() is None


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    made = list(_built(tmp_path))
    assert made[0] == made[1]


def _built(tmp_path: Path) -> Iterator[tuple[bytes, bytes]]:
    for name in ("one", "two"):
        place = tmp_path / name / hook().INSIDE
        place.mkdir(parents=True)
        for source in SOURCES:
            shutil.copy(source, place)
        assert hook().build(tmp_path / name) == ""
        yield (place / "libsteps.so").read_bytes(), (place / "first").read_bytes()


LOADS = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words) {
    unsigned char end[] = {4, 0, 255, 0, 0, 0, 0, 0};
    void *library = dlopen(words[count - 1], RTLD_NOW);
    int (*check)(unsigned char *, size_t) = library ? (int (*)(unsigned char *, size_t))dlsym(library, "sy_check") : 0;
    return check ? printf("%d %d\n", check(end, sizeof end), check(end, 3)) < 0 : puts(dlerror());
}
"""


def test_the_library_serves_musl_too(tmp_path: Path) -> None:
    if shutil.which("cc") is None or shutil.which("musl-gcc") is None:
        pytest.skip("there is no C compiler, or none for musl")
    library, _ = next(_built(tmp_path))
    (tmp_path / "loads.c").write_text(LOADS)
    (tmp_path / "libsteps.so").write_bytes(library)
    program = tmp_path / "loads"
    subprocess.run(["musl-gcc", "-o", program, tmp_path / "loads.c"], check=True, timeout=60)
    said = subprocess.run([program, tmp_path / "libsteps.so"], capture_output=True, text=True, check=False, timeout=60)
    assert said.stdout == "0 -1\n"


@pytest.mark.long
def test_a_library_is_made_for_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs the C library alone: the loader's own name differs between those of glibc and musl."""
    zig = os.environ.get("SKILLYARD_TEST_ZIG", "/usr/local/lib/skillyard-ci/zig/bin/python")
    if not os.access(zig, os.X_OK):
        pytest.skip("there is no ziglang: .ci/setup long")
    monkeypatch.setenv("CC", f"{zig} -m ziglang cc -target aarch64-linux-gnu.2.17")
    monkeypatch.setenv("CFLAGS", "-fno-stack-protector")
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(tmp_path / "cache"))
    library, _ = next(_built(tmp_path))
    for made in (hook().LIBRARY, hook().FIRST):
        assert hook().machine(tmp_path / "one" / made) == "aarch64"
    assert b"libc.so.6\0" in library
    assert b"ld-linux-aarch64.so.1" not in library


def test_an_installation_without_a_compiler_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    (tmp_path / hook().INSIDE).mkdir(parents=True)
    for source in SOURCES:
        shutil.copy(source, tmp_path / hook().INSIDE)
    for made in (hook().LIBRARY, hook().FIRST):
        (tmp_path / made).write_bytes(b"of an earlier source")
    assert hook().build(tmp_path) == "there is no C compiler"
    assert not (tmp_path / hook().LIBRARY).exists()
    assert not (tmp_path / hook().FIRST).exists()


@pytest.fixture(scope="module")
def first(library: ctypes.PyDLL) -> Path:
    return make_first(Path(library._name).parent)


@pytest.fixture
def serving(library: ctypes.PyDLL, first: Path) -> Iterator[Serving]:
    with server(library, first, 0) as found:
        yield found


@pytest.fixture
def spaced(library: ctypes.PyDLL, first: Path) -> Iterator[Serving]:
    """Its clones have pid namespaces of their own."""
    with server(library, first, SPACES) as found:
        yield found


def test_a_clone_for_one_program_has_a_first_process_of_its_own_memory(spaced: Serving) -> None:
    for number in range(3):
        spaced.make(b"f" + EMPTY)
        until(lambda: _name(spaced.pid) == "first", 20, "an exec, which has made the memory, names it too")
        assert spaced.channel is not None
        spaced.channel.send(b"one %d" % number)
        assert os.read(spaced.output, 100) == b"worker: one %d" % number
        assert spaced.end() == 0


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_its_worker_ends_and_is_told_of(spaced: Serving) -> None:
    spaced.make(b"f" + EMPTY)
    assert spaced.channel is not None
    spaced.channel.send(b"end")
    said = json.loads(spaced.hear())
    assert (said["idle_worker_gone"], said.keys()) == (7 << 8, {"idle_worker_gone", "cpu", "rss"})
    assert 0 < said["cpu"] < 60
    assert said["rss"] > 1 << 20
    assert spaced.end() == 0


@pytest.mark.parametrize("kind", [b" ", b"f"])
def test_a_worker_that_served_closes_its_channel_in_each_copy(kind: bytes, spaced: Serving) -> None:
    spaced.make(kind + EMPTY)
    assert spaced.channel is not None
    spaced.channel.send(b"return")
    assert spaced.channel.recv(100) == b""
    assert spaced.end() == 0


@pytest.mark.parametrize("kind", [b" ", b"f"])
def test_a_worker_that_fails_is_not_done(kind: bytes, spaced: Serving) -> None:
    spaced.make(kind + EMPTY)
    assert spaced.channel is not None
    spaced.channel.send(b"raise")
    assert spaced.channel.recv(100) == b""
    assert os.read(spaced.output, 100) == b"the program could not be started\n"
    assert spaced.end() == 0


def test_its_worker_is_asked_for_its_last_words(spaced: Serving) -> None:
    spaced.make(b"f" + EMPTY)
    assert spaced.control is not None
    spaced.control.send(b'{"wind_up":"p"}')
    assert json.loads(spaced.hear())["idle_worker_gone"] == signal.SIGXCPU
    assert spaced.end() == 0


@pytest.mark.parametrize("size", [0, 65536, 150_000])
def test_it_starts_a_program_with_the_whole_message(spaced: Serving, size: int) -> None:
    spaced.make(b"f" + EMPTY)
    assert spaced.control is not None
    id = 'odd "quoted" \\ \n é ' + "x" * 80
    message = packets.to_json({"start": id, "single": True, "argv": ["x" * size]})
    reading, writing = os.pipe()
    packets.send_raw(spaced.control, message.encode(), [writing, writing])
    os.close(writing)
    told = json.loads(os.read(reading, 4096))
    os.close(reading)
    assert (told["words"], told["size"], told["given"]) == ("given", len(message), ["pipe", "pipe"])
    assert told["variables"].items() >= {"ONE": "1", "TWO": "é"}.items()
    assert told["open"][:3] == [0, 1, 2]
    assert set(told["open"]) - {0, 1, 2, 5, 16, 17} <= {3}, "the descriptor of the listing itself"
    said = json.loads(spaced.hear())
    if "idle_worker_gone" in said:
        said = json.loads(spaced.hear())
    assert (said["ended"], said["status"]) == (id, 3 << 8)
    assert os.waitpid(spaced.pid, 0)[1] == 0, "it was made for one program"
    spaced.let_go()


def test_it_is_nothing_outside_of_a_pid_namespace(serving: Serving) -> None:
    """There it would end strangers."""
    serving.clone(b"f" + EMPTY)
    assert os.waitstatus_to_exitcode(os.waitpid(serving.pid, 0)[1]) == 1
    serving.let_go()


def test_a_clone_for_one_program_that_fails_tells_why(spaced: Serving) -> None:
    absent = Step("place", NUMBERS["chdir"], (b"/nowhere/at/all\0",))
    for order, why in ((form.encode(absent, form.END), b"No such file"), (b"\xff\xff", b"its order")):
        spaced.clone(b"f" + order)
        assert why in spaced.hear()
        assert os.waitstatus_to_exitcode(spaced.end()) == 1
    spaced.make(b"f" + EMPTY)
    assert spaced.end() == 0


def test_a_clone_has_an_init_and_a_worker_and_each_goes_on_in_python(serving: Serving) -> None:
    answer = serving.clone(b" " + EMPTY)
    assert answer == {"pid": serving.pid}
    assert serving.hear() == READY
    assert serving.channel is not None
    serving.channel.send(b"one")
    assert os.read(serving.output, 100) == b"worker: one"
    assert serving.control is not None
    serving.control.send(b"two")
    assert serving.hear() == b"init: two"
    assert serving.end() == 0


def test_the_loop_serves_on_after_clones_that_fail(serving: Serving) -> None:
    """A step that fails, and an order that cannot be read, end the clone and tell why."""
    absent = Step('no "place"', NUMBERS["chdir"], (b"/nowhere/at/all\0",))
    for order, why in ((form.encode(absent, form.END), b"No such file"), (b"\xff\xff", b"its order")):
        serving.clone(b" " + order)
        said = serving.hear()
        assert why in said
        assert json.loads(said).keys() == {"broken"}
        assert os.waitstatus_to_exitcode(serving.end()) == 1
    serving.make(b" " + EMPTY)
    assert serving.end() == 0


NETWORK = kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC


@pytest.mark.parametrize("kind", [b" ", b"f"])
def test_each_clone_has_a_network_of_its_own(kind: bytes, library: ctypes.PyDLL, first: Path) -> None:
    """Those that the loop made ahead while nobody asked, and those for which there was no time."""
    with server(library, first, kernel.CLONE_NEWPID | NETWORK, str(kernel.CLONE_NEWUSER)) as serving:
        seen, made = [_spaces(os.getpid())], []
        for number in range(12):
            if quiet := number % 3 > 0:
                until(lambda: _spaces(serving.server) not in seen, 20, "the next network is there")
            ahead = _spaces(serving.server)
            serving.make(kind + EMPTY)
            worker = _worker(serving.pid)
            found = until(partial(_allowed, worker), 20, "it can be looked at")
            assert (found == ahead) >= quiet
            if quiet:
                assert "127.0.0.1" in Path(f"/proc/{worker}/net/fib_trie").read_text()
            seen.append(found)
            made.append(replace(serving))
        assert len({space for pair in seen for space in pair}) == 2 * len(seen)
        assert [each.end() for each in made] == [0] * len(made)


def _allowed(pid: int) -> tuple[str, ...]:
    try:
        return _spaces(pid)
    except PermissionError:  # until it is a program of its own
        return ()


def _spaces(pid: int) -> tuple[str, ...]:
    """Returns the network and the ipc namespace of a process."""
    return os.readlink(f"/proc/{pid}/ns/net"), os.readlink(f"/proc/{pid}/ns/ipc")


@pytest.mark.parametrize("kind", [b" ", b"f"])
def test_a_clone_has_its_own_order_alone_in_its_memory(kind: bytes, spaced: Serving) -> None:
    """The one before may be another's, and code can read all its memory: names, and numbers that were on its stack."""
    before, spare = 0x0511_5EC2_E700_0001, 6
    for name, number in ((b"of the first", before), (b"of another", 2)):
        named = Step(name.decode(), NUMBERS["getpid"], (number,) * spare if number == before else ())
        spaced.make(kind + form.encode(*[named] * (90 if number == before else 2), form.END))
        seen = _memory(_worker(spaced.pid))
        assert name in seen
        if number != before:
            assert b"of the first" not in seen
            assert before.to_bytes(8, sys.byteorder) not in seen
        assert spaced.end() == 0


def _worker(pid: int) -> int:
    """Returns the child of a first process."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def _memory(pid: int) -> bytes:
    """Returns all that a process can write to."""
    parts = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            place, rights, *_ = line.split()
            if rights == "rw-p":
                start, end = (int(address, 16) for address in place.split("-"))
                memory.seek(start)
                parts.append(memory.read(end - start))
    return b"".join(parts)


def test_a_clone_begins_in_its_control_group(serving: Serving) -> None:
    """Version 2, as CLONE_INTO_CGROUP has it."""
    base = next((place for place in map(Path, GROUPS) if (place / "cgroup.controllers").exists()), None)
    if base is None or not os.access(base, os.W_OK):
        pytest.skip("no control groups of version 2 that are ours to make")
    group = base / f"skillyard-test-{os.getpid()}"
    group.mkdir()
    try:
        fd = os.open(group, os.O_RDONLY | os.O_DIRECTORY)
        serving.clone(b"+" + EMPTY, fd)
        os.close(fd)
        assert serving.hear() == READY
        assert str(serving.pid) in (group / "cgroup.procs").read_text().split()
        assert serving.end() == 0
        assert "failed" in _in_no_group(serving)
    finally:
        _removed(group)


def _removed(group: Path) -> None:
    """Removes a control group, which stays busy for a moment after its last process was waited for."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        os.sched_yield()


def _in_no_group(serving: Serving) -> dict[str, Any]:
    with open(os.devnull) as file:
        answer = serving.clone(b"+", file.fileno())
    serving.let_go()
    return answer


GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
