"""The parts of the microvm backend that need no machine: what machines say, images, and the first program."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import re
import socket
import stat
import struct
import subprocess
import sys
import time
import tty
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import InvalidInput, SandboxFault, SandboxGone
from skillyard.sandbox.agent_channel import ChannelLost
from skillyard.sandbox.e2b import stage
from skillyard.sandbox.microvm import first, image, machine, memory
from skillyard.sandbox.microvm.build import archive, build_image, depends
from skillyard.sandbox.microvm.channel import Port, opener
from skillyard.sandbox.microvm.inside import BANNER
from skillyard.sandbox.microvm.snapshot import Saved, Snapshots

pytestmark = pytest.mark.anyio


class Deaf:
    """A writer that notes whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


def port(*pieces: bytes) -> Port:
    reader = asyncio.StreamReader()
    for piece in pieces:
        reader.feed_data(piece)
    reader.feed_eof()
    writer: Any = Deaf()
    return Port(reader, writer, -1)


@given(junk=st.binary(max_size=200), rest=st.binary(max_size=200), size=st.integers(1, 50))
async def test_a_channel_begins_behind_the_banner_however_the_bytes_come(junk: bytes, rest: bytes, size: int) -> None:
    data = junk + BANNER + rest
    found = port(*(data[at : at + size] for at in range(0, len(data), size)))
    await found.begin()
    got = b""
    while piece := await found.read(7):
        assert len(piece) <= 7
        got += piece
    assert got == data[data.index(BANNER) + len(BANNER) :]


@pytest.mark.parametrize("data", [b"", BANNER[:-1], b"x" * (5 << 20)])
async def test_a_channel_without_a_banner_is_lost(data: bytes) -> None:
    with pytest.raises(ChannelLost):
        await port(data).begin()


def test_a_server_that_has_machines_finds_the_guest_of_e2b_where_that_is() -> None:
    assert stage.AGENT.startswith(f"{stage.ROOT}/")


SERVES = """
import os, sys
from skillyard.sandbox.microvm import inside
inside._PORTS, inside._DEVICES, inside.stage.SOCKET = sys.argv[1:4]
inside._LOOK_MS = 3_600_000  # it looks again in an hour
os.nice = lambda _: 0
inside._serve(os.pidfd_open(os.getppid()))
"""


def test_a_host_that_connected_before_the_ports_were_opened_does_not_wait(tmp_path: Path) -> None:
    ports, devices, agent = tmp_path / "ports", tmp_path / "devices", tmp_path / "agent"
    (ports / "port1").mkdir(parents=True)
    (ports / "port1" / "name").write_text(f"{first.CHANNEL_PORT}0\n")
    devices.mkdir()
    host, port = os.openpty()
    tty.setraw(port)
    (devices / "port1").symlink_to(os.ttyname(port))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(agent))
        listener.listen()
        listener.settimeout(30)
        words = [sys.executable, "-c", SERVES, str(ports), str(devices), str(agent)]
        with subprocess.Popen(words) as served:
            try:
                listener.accept()[0].close()
                assert os.read(host, len(BANNER)) == BANNER
            finally:
                served.kill()
                os.close(host)
                os.close(port)


async def test_a_machine_that_is_away_is_gone(tmp_path: Path) -> None:
    place = tmp_path / ("x" * 60) / ("y" * 60)  # longer than names of sockets
    with pytest.raises(SandboxGone):
        await opener(place)()
    place.mkdir(parents=True)
    with pytest.raises(SandboxGone):
        await opener(place)()
    machine.listen(place, machine.channel(0)).close()
    with pytest.raises(SandboxGone):
        await opener(place)()
    assert len(list(place.glob("*.lock"))) > 0


async def test_a_port_has_one_holder_at_a_time(tmp_path: Path) -> None:
    serving: set[asyncio.Task[Any]] = set()

    async def begins(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        writer.write(BANNER)
        await reader.read()
        writer.close()
        await writer.wait_closed()

    async def serve(name: str) -> asyncio.Server:
        return await asyncio.start_unix_server(begins, sock=machine.listen(tmp_path, name))

    servers = [await serve(machine.channel(number)) for number in range(first.CHANNELS)]
    try:
        one, two = opener(tmp_path), opener(tmp_path)
        held = [(await open_channel())[1] for open_channel in (one, two, one, two)]
        with pytest.raises(ChannelLost, match="no port of the machine is free"):
            await one()
        held[0].close()
        held[0] = (await two())[1]
        for each in held:
            each.close()
    finally:
        for server in servers:
            server.close()
        await asyncio.wait(serving, timeout=30)


# the first program


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program is of x86-64")
@pytest.mark.parametrize("given_bytes", [b"", b"x" * 87])
def test_the_first_program_fails_without_all_its_bytes(tmp_path: Path, given_bytes: bytes) -> None:
    program = tmp_path / "seed"
    program.write_bytes(first.seed_program())
    program.chmod(0o700)
    words = ["/bin/sh", "-c", 'exec "$0" 3</dev/null', str(program)]
    assert subprocess.run(words, input=given_bytes, timeout=30).returncode == 1
    # With them it fails at a device that takes no entropy, and has not set the clock.
    assert subprocess.run(words, input=first.seed_message(), timeout=30).returncode == 1


def test_the_first_program_reseeds_the_kernel_before_it_sets_the_clock() -> None:
    moves = rb"\xb8(.{4})\xbf(.{4})\xbe(.{4})\xba(.{4})\x0f\x05"
    found = [
        tuple(int.from_bytes(word, "little") for word in call)
        for call in re.findall(moves, first.seed_program(), re.DOTALL)
    ]
    read, credit, reseed, clock, done, failed = found
    at = read[2]
    assert read == (0, 0, at, len(first.seed_message()))
    assert credit == (16, 3, 0x40085203, at)  # RNDADDENTROPY
    assert reseed == (16, 3, 0x5207, 0)  # RNDRESEEDCRNG
    assert clock[:3] == (227, 0, at + 8 + first.SEED_BYTES)
    assert [done[:2], failed[:2]] == [(60, 0), (60, 1)]


def test_each_seed_is_another() -> None:
    one, two = first.seed_message(), first.seed_message()
    bits, size = struct.unpack("<ii", one[:8])
    assert (bits, size) == (8 * first.SEED_BYTES, first.SEED_BYTES)
    assert one[8 : 8 + size] != two[8 : 8 + size]
    seconds, nanoseconds = struct.unpack("<qq", one[8 + size :])
    assert seconds > 1_700_000_000
    assert 0 <= nanoseconds < 10**9


# images


@pytest.fixture
def built(tmp_path: Path) -> Path:
    for name in image.FILES:
        (tmp_path / name).write_bytes(name.encode())
    image.write_manifest(tmp_path, {"python": "3.11", "kernel": "6"})
    return tmp_path


def test_an_image_is_what_was_built(built: Path) -> None:
    found = image.open_image(built)
    try:
        assert found.facts["python"] == "3.11"
        assert os.pread(found.descriptors[image.ROOT], 100, 0) == image.ROOT.encode()
    finally:
        found.close()
    (built / image.ROOT).unlink()
    (built / image.ROOT).write_bytes(b"another")
    with pytest.raises(SandboxFault, match="is not the file that was built"):
        image.open_image(built)
    (built / image.ROOT).unlink()
    (built / image.ROOT).symlink_to("/etc/passwd")
    with pytest.raises(SandboxFault):
        image.open_image(built)


@pytest.mark.parametrize("name", [".", image.KERNEL, image.INITIAL, image.ROOT, image.MANIFEST])
def test_an_image_that_others_can_write_is_refused(built: Path, name: str) -> None:
    (built / name).chmod(0o775)
    with pytest.raises(SandboxFault, match="chmod go-w"):
        image.open_image(built)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{", b"[" * 100_000, b'{"format": 2}', b'{"format": 1, "files": {}, "facts": {}}', b"\xff"],
)
def test_another_manifest_is_refused(built: Path, text: bytes) -> None:
    (built / image.MANIFEST).unlink()
    (built / image.MANIFEST).write_bytes(text)
    with pytest.raises(SandboxFault, match="manifest"):
        image.open_image(built)


def test_an_image_that_is_not_there_names_the_mend(tmp_path: Path) -> None:
    with pytest.raises(SandboxFault, match="skillyard image build --microvm"):
        image.open_image(tmp_path)


def test_nothing_else_is_replaced_by_an_image(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(InvalidInput, match="--output"):
        build_image(tmp_path, None, (), print)
    with pytest.raises(InvalidInput, match="--package"):
        build_image(tmp_path / "new", tmp_path, ("jq",), print)
    with pytest.raises(InvalidInput, match="--from: must be a directory with a root, or a tar archive"):
        build_image(tmp_path / "new", tmp_path / "mine", (), pytest.fail)
    assert (tmp_path / "mine").read_text() == "precious"


def test_modules_name_the_modules_that_they_need() -> None:
    assert depends(b"\x7fELF...\0license=GPL\0depends=virtio,virtio-ring\0name=x\0") == ["virtio", "virtio_ring"]
    assert depends(b"\0depends=\0") == []
    assert depends(b"") == []


@pytest.mark.skipif(not Path("/usr/bin/cpio").exists(), reason="cpio is not installed")
def test_the_initial_file_system_is_an_archive_that_others_read(tmp_path: Path) -> None:
    files = {"bin": (stat.S_IFDIR | 0o755, b""), "bin/x": (stat.S_IFREG | 0o755, b"12345"), "init": (stat.S_IFREG, b"")}
    done = subprocess.run(["cpio", "-idm", "--quiet"], input=archive(files), cwd=tmp_path, check=True, timeout=30)
    assert done.returncode == 0
    assert (tmp_path / "bin/x").read_bytes() == b"12345"
    assert (tmp_path / "bin/x").stat().st_mode & 0o777 == 0o755


async def test_a_missing_client_of_the_monitor_names_the_mend(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillyard.sandbox.microvm.snapshot.find_spec", lambda _: None)
    found = image.open_image(built)
    with pytest.raises(SandboxFault, match=r"pip install 'skillyard\[microvm\]'"):
        await Snapshots(tmp_path / "snapshots").of(found, machine.Shape("qemu", "7", "tcg", 256, 1), None)
    found.close()
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("mode", "group", "words"),
    [
        (0o600, 0, None), (0o660, 0, None), (0o640, 12, None), (0o600, 12, None),
        (0o660, 12, ["--groups", "12"]), (0o666, 0, ["--clear-groups"]), (0o666, 12, ["--clear-groups"]),
    ],
)  # fmt: skip
def test_qemu_gets_the_group_of_kvm_and_never_that_of_root(mode: int, group: int, words: list[str] | None) -> None:
    assert machine.kvm_groups(os.stat_result((mode, 0, 0, 0, 0, group, 0, 0, 0, 0))) == words


def test_the_room_of_qemu_is_its_machine_and_what_it_needs_itself() -> None:
    for accel, own_mb in (("tcg", 384), ("kvm", 256)):
        room = machine.Shape("qemu", "7", accel, 1280, 2).room()
        assert room.memory_bytes == (1280 + own_mb) << 20
        assert (room.pids, room.cpus) == (98, 2.5)


# what machines say


@pytest.mark.parametrize("line", [b"", b"not json\n", b"[]\n", b'{"a": ' * 5000 + b"\n", b"x" * 200_000 + b"\n"])
async def test_a_machine_that_tells_something_else_is_refused(line: bytes) -> None:
    from skillyard.sandbox.microvm.backend import _told

    reader = asyncio.StreamReader()
    reader.feed_data(line)
    reader.feed_eof()
    with pytest.raises((EOFError, ValueError)):
        await _told(reader)


async def test_a_reason_of_a_machine_is_shown_bounded() -> None:
    from skillyard.sandbox.microvm.backend import _told

    reader = asyncio.StreamReader()
    reader.feed_data(json.dumps({"error": "x" * 50_000}).encode() + b"\n")
    with pytest.raises(SandboxFault) as raised:
        await _told(reader)
    assert len(raised.value.message) < 1000


async def test_directories_of_a_killed_server_are_removed(tmp_path: Path) -> None:
    from skillyard.config.backends import MicrovmSettings
    from skillyard.domain.work.limits import Limits
    from skillyard.sandbox.microvm.backend import MicrovmBackend

    machines = tmp_path / "state" / "machines"
    for name, age in (("vm-0000000000000000", 3600.0), ("vm-1111111111111111", 0.0)):
        (machines / name).mkdir(parents=True)
        (machines / name / "order").touch()
        os.utime(machines / name, (time.time() - age,) * 2)
    probe = await MicrovmBackend(tmp_path / "state", MicrovmSettings(), tmp_path / "none", Limits()).probe()
    assert not probe.ready
    assert "skillyard image build --microvm" in probe.facts["why"]
    assert [path.name for path in machines.iterdir()] == ["vm-1111111111111111"]


async def test_qemu_gets_no_name_of_a_file_and_no_network(tmp_path: Path) -> None:
    shape = machine.Shape("qemu", "7", "tcg", 256, 1)
    ends = {name: 40 + number for number, name in enumerate(machine.sockets(monitor=False))}
    words = list(machine.words(shape, dict.fromkeys(image.FILES, 30), ends, 20, boots=False))
    assert b'"fd:21"' in machine.restoring(21)
    # Its monitor reads what the server wrote into a pipe before, and nothing else.
    assert [word for word in words if "chardev=steps" in word] == [words[words.index("-mon") + 1]]
    assert words[words.index("-mon") - 1].startswith("stdio,id=steps")
    assert "share=off" in next(word for word in words if "mem-path=/proc/self/fd/20" in word)
    assert "-nodefaults" in words
    assert "-no-user-config" in words
    assert not {"-netdev", "-nic", "-fsdev", "-virtfs"} & {*words}
    assert not [word for word in words if str(tmp_path) in word]
    assert "spawn=deny" in words[words.index("-sandbox") + 1]
    assert [word for word in words if "read-only=on" in word]


def test_a_saved_memory_is_kept_whole_and_nobody_changes_it(tmp_path: Path) -> None:
    found = memory.blank(3)
    for at, piece in ((0, b"first"), (70_000, b"second"), ((3 << 20) - 4, b"last")):
        os.pwrite(found, piece, at)
    with (tmp_path / "memory").open("w+b") as kept:
        digest = memory.copied(found, kept.fileno())
        assert os.fstat(kept.fileno()).st_blocks * 512 < 1 << 20
        again = memory.blank(0)
        assert memory.copied(kept.fileno(), again) == digest
        assert os.pread(again, 4 << 20, 0) == os.pread(found, 4 << 20, 0)
        memory.seal(again)
        with pytest.raises(PermissionError):
            os.pwrite(again, b"other", 0)
        with pytest.raises(PermissionError):
            mmap.mmap(os.open(f"/proc/self/fd/{again}", os.O_RDWR), 4096)
        private = mmap.mmap(again, 4096, flags=mmap.MAP_PRIVATE)
        private[:5] = b"mine!"
        assert os.pread(again, 5, 0) == b"first"
        os.pwrite(kept.fileno(), b"x", 70_000)
        assert memory.copied(kept.fileno(), memory.blank(0)) != digest


@pytest.mark.parametrize("accel", ["tcg", "kvm"])
async def test_machines_share_no_memory_where_the_processor_would_tell_of_it(accel: str) -> None:
    found = memory.blank(1)
    os.pwrite(found, b"saved", 0)
    async with Saved(99, found).begun(machine.Shape("qemu", "7", accel, 256, 1)) as (given, state):
        assert os.pread(given, 5, 0) == b"saved"
        assert state == 99
        assert (os.fstat(given).st_ino == os.fstat(found).st_ino) is (accel == "tcg")


def test_a_machine_is_known_by_its_beginning() -> None:
    words = ["/bin/sh", "-c", 'read -r line; exec "$0" 30', "/bin/sleep"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        try:
            beginning = machine.began(process.pid)
            assert beginning != machine.began(os.getpid())
            assert process.stdin is not None
            process.stdin.write(b"now\n")
            process.stdin.flush()
            assert machine.began(process.pid) == beginning  # another program by and by, and the same process
        finally:
            process.kill()
            process.communicate(timeout=30)
    assert machine.began(process.pid) == ""


async def test_another_process_of_that_number_is_not_ended() -> None:
    with subprocess.Popen(["/bin/sleep", "30"]) as process:
        try:
            await machine.end(process.pid, "another boot 12345")
            await machine.end(process.pid, "")
            assert process.poll() is None
            await machine.end(process.pid, machine.began(process.pid))
            assert machine.began(process.pid) == ""
        finally:
            process.kill()
