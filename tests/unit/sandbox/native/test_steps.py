"""Both makers of the walls do the same, and the compiled one reads no table that it should not."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import socket
import struct
import subprocess
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.ipc import packets
from skillyard.sandbox.native.grounds.namespaces import form, table
from skillyard.sandbox.native.grounds.namespaces.form import Filter, Given, Patched, Slot, Step
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.linux import kernel, landlock
from skillyard.sandbox.native.linux.syscall_numbers import NUMBERS, numbers
from tests.unit.sandbox.native.compiled import SOURCE, SOURCES, make_library

FIRST = 1000
"""The first descriptor that is opened here, where nothing is opened."""

BUILD = walls.Build(
    uid=7, own_uid=True, disk_bytes=512 << 20, inodes=65536, processes=265, data_bytes=1 << 30, stack_bytes=0,
    descriptors=1024, terminals=0, cpus=(0, 3), landlock=6, proc_files=("kcore", "keys"), proc_directories=("acpi",),
)  # fmt: skip
BUILDS = {
    "root's": BUILD,
    "an ordinary user's": BUILD._replace(uid=1, own_uid=False, stack_bytes=walls.SMALL_STACK, cpus=()),
    "closed": BUILD._replace(closed=("tmp", "shm")),
    "with terminals": BUILD._replace(terminals=16),
    "without Landlock": BUILD._replace(landlock=0),
    "an early Landlock": BUILD._replace(landlock=1),
    "a later Landlock": BUILD._replace(landlock=5),
}
Call = tuple[Any, ...]


class Tape:
    """The calls that somebody would make, in the form that both sides have alike."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._opened = FIRST

    def note(self, *call: Any) -> int:
        self.calls.append(call)
        return 0

    def open(self, *call: Any) -> int:
        self.note(*call)
        self._opened += 1
        return self._opened - 1


class Socket:
    def __init__(self, tape: Tape, family: int, kind: int) -> None:
        self._tape = tape
        self._fd = tape.open("socket", family, kind)

    def fileno(self) -> int:
        return self._fd

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self._tape.note("close", self._fd)


def of_python(build: walls.Build, groups: list[int], patch: pytest.MonkeyPatch) -> list[Call]:
    """Returns the calls that the walls in Python make."""
    tape, count = Tape(), kernel.capabilities()
    by_number = {number: name for name, number in NUMBERS.items()}

    def prctl(option: int, *values: int) -> int:
        if option == kernel.PR_CAPBSET_DROP and values[0] >= count:
            return -1
        return tape.note("prctl", option, *values)

    def syscall(number: ctypes.c_long, *values: Any) -> int:
        name = by_number[number.value]
        if name == "seccomp":
            return tape.note(name, values[0].value, values[1].value)
        call = (name, *(value if isinstance(value, bytes) else value.value for value in values))
        return tape.open(*call) if name == "landlock_create_ruleset" else tape.note(*call)

    libc = types.SimpleNamespace(
        prctl=prctl,
        syscall=syscall,
        mount=lambda *given: tape.note("mount", *given),
        umount2=lambda *given: tape.note("umount2", *given),
        unshare=lambda flags: tape.note("unshare", flags),
        sethostname=lambda *given: tape.note("sethostname", *given),
    )
    faked = {
        "open": lambda path, flags: tape.open("openat", path.encode(), flags),
        "write": lambda fd, data: tape.note("write", fd, data),
        "close": lambda fd: tape.note("close", fd),
        "mkdir": lambda path, mode: tape.note("mkdirat", path.encode(), mode),
        "chown": lambda path, uid, gid: tape.note("fchownat", path.encode(), uid, gid),
        "chmod": lambda path, mode: tape.note("fchmodat", path.encode(), mode),
        "chdir": lambda path: tape.note("chdir", path.encode()),
        "setgroups": lambda groups: tape.note("setgroups", len(groups)),
        "setresuid": lambda *ids: tape.note("setresuid", *ids),
        "setresgid": lambda *ids: tape.note("setresgid", *ids),
        "sched_setaffinity": lambda pid, cpus: tape.note("sched_setaffinity", set(cpus)),
        "fstat": lambda fd: os.stat("/"),
    }
    fake_os = types.SimpleNamespace(**{**vars(os), **faked})
    limits = {
        **vars(resource),
        "setrlimit": lambda kind, pair: tape.note("prlimit64", kind, *pair),
    }
    fake_socket = types.SimpleNamespace(**{**vars(socket), "socket": lambda *given: Socket(tape, *given)})
    fake_ioctl = types.SimpleNamespace(
        ioctl=lambda sock, request, data: tape.note("ioctl", sock.fileno(), request, data.ljust(40, b"\0"))
    )
    with patch.context() as here:
        here.setattr(kernel, "_libc", libc)
        here.setattr(kernel, "resource", types.SimpleNamespace(**limits))
        here.setattr(kernel, "grow_stack", lambda size: tape.note("grow", size))
        for name, fake in (("os", fake_os), ("socket", fake_socket), ("fcntl", fake_ioctl)):
            here.setattr(walls, name, fake)
        here.setattr(walls, "resource", types.SimpleNamespace(**limits))
        here.setattr(landlock, "os", fake_os)
        walls.build(build, groups, b"")
    return tape.calls


def of_table(build: walls.Build, groups: list[int]) -> list[Call]:
    """Returns the calls that the table of the compiled part names."""
    tape, slots, skip = Tape(), dict.fromkeys(range(form.SLOTS), -1), 0
    given = [-1, -1, -1, *groups]

    def value(argument: form.Argument) -> Any:
        if isinstance(argument, Slot):
            return slots[argument.number]
        if isinstance(argument, Given):
            return given[argument.number]
        if isinstance(argument, Patched):
            return argument.data[:-4] + struct.pack("=i", slots[argument.slot])
        return argument

    for step in form.decode(table.order(build, len(groups))):
        if skip:
            skip -= 1
            continue
        skip = step.skip
        arguments = [value(argument) for argument in step.arguments]
        if step.op == form.DROP_BOUNDING:
            for capability in range(arguments[0]):
                tape.note("prctl", kernel.PR_CAPBSET_DROP, capability, 0, 0, 0)
        elif step.op == form.GROW_STACK:
            tape.note("grow", arguments[0])
        else:
            name = next(name for name, number in NUMBERS.items() if number == step.call)
            call = _plain(name, arguments)
            got = tape.open(*call) if name in OPENING else tape.note(*call)
            if step.store != form.NONE:
                slots[step.store] = got
    return tape.calls


OPENING = ("openat", "socket", "landlock_create_ruleset")


def _plain(name: str, given: list[Any]) -> Call:
    """Returns a call without what libc adds or takes away."""
    text = [one.removesuffix(b"\0") if isinstance(one, bytes) else one for one in given]
    match name:
        case "openat" | "mkdirat" | "fchmodat":
            assert given[0] == kernel.AT_FDCWD
            return (name, *text[1:3])
        case "fchownat":
            assert (given[0], given[4]) == (kernel.AT_FDCWD, 0)
            return (name, *text[1:4])
        case "write":
            assert given[2] == len(given[1])
            return (name, given[0], given[1])
        case "mount":
            return (name, *(None if one == 0 and place != 3 else one for place, one in enumerate(text)))
        case "prlimit64":
            assert (given[0], given[3]) == (0, 0)
            return (name, given[1], *struct.unpack("qq", given[2]))
        case "sched_setaffinity":
            assert (given[0], given[1]) == (0, len(given[2]))
            return (name, {bit for bit in range(8 * len(given[2])) if given[2][bit // 8] >> bit % 8 & 1})
        case "setgroups":
            return (name, given[0])
        case "socket":
            return (name, *given[:2])
        case "seccomp":
            assert given[2] == Filter()
            return (name, *given[:2])
        case "chdir" | "umount2":
            return (name, *text)
        case _:
            return (name, *given)


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("groups", [[], [903], [903, 904, 905]], ids=len)
def test_both_make_the_same_calls_in_the_same_order(name: str, groups: list[int], monkeypatch: Any) -> None:
    of_both = of_python(BUILDS[name], groups, monkeypatch), of_table(BUILDS[name], groups)
    for number, (python, compiled) in enumerate(zip(*of_both, strict=False)):
        assert compiled == python, f"call {number}"
    assert len(of_both[0]) == len(of_both[1]) > 60


@given(uid=st.integers(0, (1 << 32) - 2), own=st.booleans())
def test_an_id_is_put_in_where_it_would_have_been_written(uid: int, own: bool) -> None:
    build = BUILD._replace(uid=uid, own_uid=own)
    ((whole,),) = table._of_anybody.__wrapped__(build, 3)
    assert table.order(build, 3) == whole


def test_what_may_fail_is_what_may_fail_in_python() -> None:
    """The host name where a container's filter refuses it, a kernel that cannot choose a pid, settings it lacks."""
    steps = list(form.decode(table.order(BUILD, 1)))
    lenient = [(step.name, step.lenient) for step in steps if step.lenient]
    assert lenient == [
        ("sethostname", 1),
        *[("openat", form.ANY), ("write", form.ANY), ("close", form.ANY)] * (1 + len(walls.TCP_SETTINGS)),
    ]
    assert [step.op for step in steps].count(form.FORK_ONCE) == 1


def test_a_limit_that_the_server_cannot_give_is_named() -> None:
    steps = list(form.decode(table.order(BUILD, 0)))
    assert any(step.name.startswith("the server's own hard limit (open files, ulimit -n) is") for step in steps)


SOME: list[Step] = [
    Step("a", 3, (1, -1, b"text\0", Slot(2)), store=7, lenient=13),
    Step("", 0, (Given(15), Patched(b"12345678", 1), Filter()), skip=2),
    Step("fork", 0, op=form.FORK_ONCE),
    Step("drop", 0, (41,), op=form.DROP_BOUNDING),
]


def test_a_table_reads_back() -> None:
    assert list(form.decode(form.encode(*SOME, form.END))) == SOME


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.PyDLL:
    return make_library(tmp_path_factory)


def _count(raw: bytes) -> int:
    try:
        return len(list(form.decode(raw)))
    except ValueError:
        return -1


WHOLE = table.order(BUILD, 2)


@given(data=st.data())
def test_both_read_the_same_tables_and_refuse_the_same(data: st.DataObject, library: ctypes.PyDLL) -> None:
    raw = bytearray(data.draw(st.sampled_from([WHOLE, form.encode(*SOME, form.END)])))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    assert library.sy_check(bytes(raw), len(raw)) == _count(bytes(raw))


@given(raw=st.binary(max_size=200))
def test_no_bytes_are_read_differently(raw: bytes, library: ctypes.PyDLL) -> None:
    assert library.sy_check(raw, len(raw)) == _count(raw)


def test_a_table_that_breaks_off_between_two_steps_is_refused(library: ctypes.PyDLL) -> None:
    """The empty one and one that lacks its last walls, too."""
    parts = [b"", *(form.encode(step) for step in form.decode(WHOLE))]
    assert library.sy_check(WHOLE, len(WHOLE)) == len(parts) - 1
    size = 0
    for part in parts:
        size += len(part)
        assert library.sy_check(WHOLE[:size], size) == -1
        with pytest.raises(ValueError, match="no end"):
            list(form.decode(WHOLE[:size]))
    assert WHOLE[size:] == form.encode(form.END)
    assert library.sy_check(WHOLE + parts[-1], len(WHOLE) + len(parts[-1])) == -1


def test_an_empty_table_is_not_performed(library: ctypes.PyDLL) -> None:
    failed = ctypes.create_string_buffer(1024)
    ctypes.set_errno(0)
    assert library.sy_run(b"", ctypes.c_size_t(0), None, 0, None, ctypes.c_size_t(0), failed) == -1
    assert ctypes.get_errno() == errno.EBADMSG


@pytest.mark.parametrize("what", ["bytes", "descriptors"])
def test_an_order_that_did_not_come_whole_ends_the_zygote(what: str, library: ctypes.PyDLL) -> None:
    keeper, zygote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with keeper, zygote:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        size, count = (packets.MAX_PACKET + 1, 3) if what == "bytes" else (8, form.MOST_GIVEN + 1)
        packets.send_some(keeper, b"x" * size, [0] * count)
        keeper.close()
        opened = len(os.listdir("/proc/self/fd"))
        made = ctypes.create_string_buffer(64)
        ctypes.set_errno(0)
        got = library.sy_serve(zygote.fileno(), ctypes.c_ulong(0), None, ctypes.c_size_t(0), None, None, None, made)
        assert (got, ctypes.get_errno()) == (-1, errno.EMSGSIZE)
        assert len(os.listdir("/proc/self/fd")) == opened


HARNESS = """
#include "{source}"
#include <stdlib.h>
int main(void) {{
    uint32_t size, seen = 0;
    while (fread(&size, sizeof size, 1, stdin) == 1) {{
        uint8_t *exact = malloc(size ? size : 1);
        if (fread(exact, 1, size, stdin) != size) return 3;
        sy_check(exact, size);
        free(exact);
        seen++;
    }}
    return seen == {count} ? 0 : 4;
}}
"""


def test_no_table_makes_it_read_elsewhere(tmp_path: Path) -> None:
    """Every prefix, and every byte changed, under the sanitizers of addresses and of undefined behaviour."""
    source, program = tmp_path / "harness.c", tmp_path / "harness"
    tables = [WHOLE[:size] for size in range(0, len(WHOLE), 3)]
    for place in range(len(WHOLE)):
        for value in (0, 127, 255):
            tables.append(WHOLE[:place] + bytes([value]) + WHOLE[place + 1 :])
    source.write_text(HARNESS.format(source=SOURCE, count=len(tables)))
    command = ["cc", "-std=c99", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    built = subprocess.run([*command, "-o", program, source], capture_output=True, text=True, timeout=60)
    if built.returncode:
        pytest.skip(f"no compiler with sanitizers: {built.stderr.strip()[-100:]}")
    given = b"".join(struct.pack("=I", len(one)) + one for one in tables)
    # A leak cannot be looked for where processes are traced.
    done = subprocess.run(
        [program], input=given, capture_output=True, timeout=60, env={"ASAN_OPTIONS": "detect_leaks=0"}
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_first_process_knows_its_numbers_without_headers(machine: str) -> None:
    source = SOURCES[1].read_text()
    _, _, rest = source.partition(f"defined(__{machine}__)")
    told = dict(re.findall(r"(SYS_\w+) = (\d+)", rest.partition("static long call")[0]))
    assert set(told) == set(re.findall(r"SYS_\w+", source))
    assert {name: int(number) for name, number in told.items()} == {
        name: numbers(machine)[name.removeprefix("SYS_")] for name in told
    }
