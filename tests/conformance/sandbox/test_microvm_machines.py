"""Machines of QEMU: their walls on the host, what a snapshot gives each, and what is left when something is killed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import sys
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.errors import InvalidInput, SandboxGone
from skillyard.domain.sandbox.spec import Argv, Owner, SandboxSpec, Stream
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Outcome
from skillyard.ports.sandbox import Process, Sandbox
from skillyard.sandbox.bounds import Bounds
from skillyard.sandbox.microvm import accel as accelerators
from skillyard.sandbox.microvm import machine
from skillyard.sandbox.microvm.backend import MicrovmBackend
from skillyard.sandbox.microvm.build import build_image
from skillyard.sandbox.microvm.image import open_image, read_manifest, write_manifest
from skillyard.sandbox.microvm.probe import WITHOUT
from skillyard.sandbox.native.groups.groups import Group
from tests.conformance.sandbox import microvm_ground

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
BOUND_S = 120.0
MEMORY = ("memory.limit_in_bytes", "memory.max")
LIMITS = Limits(memory_mb=64, disk_mb=32, pids=32, timeout_ms=120_000)
WAITS = "import sys; print('begun', flush=True); print(sys.stdin.readline(), end='')"
TELLS = """
import json, os, time
print(json.dumps({"time": time.time(), "random": os.urandom(16).hex(), "hash": hash("text"), "page": id(object()),
                  "boot": open("/proc/sys/kernel/random/boot_id").read()}))
"""

SERVER = """
import asyncio, os, signal, sys
from pathlib import Path
from skillyard.domain.sandbox.spec import Owner
from tests.conformance.sandbox.test_microvm_machines import begun, opened, spec, stands

async def main(base: Path, image: Path) -> None:
    backend = opened(base, image, ready=1)
    await backend.prepare(spec(Owner.TASK))
    await stands(backend, 1)
    for owner in Owner:
        await begun(backend, owner)
    await stands(backend, 2)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
"""


def opened(base: Path, image: Path, ready: int = 0) -> MicrovmBackend:
    return MicrovmBackend(base, microvm_ground.SETTINGS.model_copy(update={"ready": ready}), image, LIMITS)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return microvm_ground.image(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of all backends here, so that they share a snapshot."""
    return tmp_path_factory.mktemp("microvm")


@pytest.fixture
async def backend(base: Path, image: Path) -> AsyncIterator[MicrovmBackend]:
    backend = opened(base, image)
    yield backend
    for held in await backend.survey():
        await backend.destroy(held.handle)
    await backend.close()
    assert standing(base) == ([], [], [])


def standing(base: Path) -> tuple[list[str], list[int], list[str]]:
    """The directories, with their sockets, of all machines; their processes on this host; their control groups."""
    directories = [place.name for place in (base / "machines").glob("*")]
    processes = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_machine(pid, base)]
    groups = Path("/sys/fs/cgroup").glob(f"**/{Bounds('microvm', base)._name}/vm-*")
    return directories, processes, [str(path) for path in groups]


def _is_machine(pid: int, base: Path) -> bool:
    """Whether it is a QEMU that reads a snapshot below ``base``."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        opened = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return b"-nodefaults" in words and any(path.startswith(f"{base}/") for path in opened)


async def stands(backend: MicrovmBackend, ready: int) -> None:
    async with asyncio.timeout(2 * BOUND_S):
        while (await backend.stats())["ready"] != ready:
            await asyncio.sleep(0.05)


def spec(owner: Owner = Owner.RUN) -> SandboxSpec:
    return SandboxSpec(limits=LIMITS, owner=owner, allow_degraded=WITHOUT)


async def begun(backend: MicrovmBackend, owner: Owner) -> tuple[str, Process]:
    """A program that waits for a line, in a machine of its own."""
    sandbox = await backend.create(spec(owner), owner.value)
    process = await sandbox.start(Argv(("python3", "-I", "-c", WAITS), stdin=True), id="one")
    await anext(process.output(Stream.STDOUT))
    return sandbox.handle, process


async def told(sandbox: Sandbox) -> dict[str, Any]:
    process = await sandbox.start(Argv(("python3", "-I", "-c", TELLS)), id="tells")
    found: dict[str, Any] = json.loads(b"".join([data async for data in process.output(Stream.STDOUT)]))
    return found


def state_of(base: Path, handle: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((base / "machines" / handle / "state.json").read_text())
    return found


async def test_a_killed_server_loses_no_task_and_leaves_no_run(
    backend: MicrovmBackend, base: Path, image: Path
) -> None:
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, str(base), str(image), cwd=ROOT)
    async with asyncio.timeout(2 * BOUND_S):
        assert await killed.wait() == -signal.SIGKILL
    ended = time.monotonic()
    machines = {place.name: state_of(base, place.name) for place in (base / "machines").iterdir()}
    ready = [handle for handle, state in machines.items() if state["ready"]]
    assert {machines[handle]["owner"] for handle in ready} == {*Owner}
    held = {one.key: one for one in await backend.survey()}
    assert {key: one.owner for key, one in held.items()} == {owner.value: owner for owner in Owner}
    assert machines[held["task"].handle]["ahead"]
    for handle in (held["run"].handle, *ready):
        while machine.began(machines[handle]["pid"]) == machines[handle]["began"]:
            assert time.monotonic() < ended + 10.0, "a machine of a run outlived its server"
            await asyncio.sleep(0.05)
    await backend.survey()
    assert not any((base / "machines" / handle).exists() for handle in ready)
    with pytest.raises(SandboxGone):
        await backend.attach(held["run"].handle)
    process = await (await backend.attach(held["task"].handle)).process("one")
    async with asyncio.timeout(BOUND_S):
        await process.send(b"went on\n")
        assert b"".join([data async for data in process.output(Stream.STDOUT)]) == b"begun\nwent on\n"
        assert (await process.wait()).code == 0


async def test_a_machine_that_is_killed_is_lost(backend: MicrovmBackend, base: Path) -> None:
    handle, process = await begun(backend, Owner.RUN)
    os.kill(state_of(base, handle)["pid"], signal.SIGKILL)
    async with asyncio.timeout(BOUND_S):
        assert (await process.wait()).outcome is Outcome.LOST
    await backend.destroy(handle)
    assert await backend.survey() == []
    assert standing(base) == ([], [], [])


@pytest.mark.long
async def test_a_machine_that_was_restored_ahead_is_lent_once(base: Path, image: Path) -> None:
    backend = opened(base, image, ready=1)
    try:
        await backend.prepare(spec())
        await stands(backend, 1)
        [ready] = standing(base)[0]
        assert await backend.survey() == []
        with pytest.raises(SandboxGone):
            await backend.attach(ready)
        first = await backend.create(spec(), "one")
        assert first.handle == ready
        assert await backend.create(spec(), "one") is first
        assert [(held.handle, held.key) for held in await backend.survey()] == [(ready, "one")]
        await stands(backend, 1)
        [other] = {*standing(base)[0]} - {ready}
        os.kill(state_of(base, other)["pid"], signal.SIGKILL)
        async with asyncio.timeout(BOUND_S):
            while not backend._pool._ready[next(iter(backend._pool._ready))][0].cut_off:
                await asyncio.sleep(0.05)
        second = await backend.create(spec(), "two")
        assert second.handle not in (ready, other)
        assert (await told(first))["random"] != (await told(second))["random"]
    finally:
        await backend.close()
    assert standing(base) == ([], [], [])


async def test_qemu_has_no_privilege_no_network_and_a_user_of_its_own(backend: MicrovmBackend, base: Path) -> None:
    uids = set()
    for key in ("one", "two"):
        sandbox = await backend.create(spec(), key)
        pid = state_of(base, sandbox.handle)["pid"]
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        uids.add(status["Uid"])
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
        for space in ("net", "ipc"):
            assert os.readlink(f"/proc/{pid}/ns/{space}") != os.readlink(f"/proc/self/ns/{space}")
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert not any(word in (b"-netdev", b"-nic", b"-net", b"-monitor", b"-fsdev") for word in words)
        assert [words[n + 1] for n, word in enumerate(words) if word == b"-mon"] == [b"chardev=steps,mode=control"]
        assert stat.S_ISFIFO(Path(f"/proc/{pid}/fd/0").stat().st_mode)  # that of the monitor, which has ended
        maps = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd:" in line]
        assert maps
        assert not any("s" in line[1] for line in maps if line[5].startswith("/memfd:machine"))
        assert words[words.index(b"-sandbox") + 1].decode() == machine.SANDBOX
        if account := state_of(base, sandbox.handle)["group"]:
            group = Group(account["version"], account["directories"])
            assert all(pid in members for members in group.members())
            limits = [Path(path, name) for path in account["directories"].values() for name in MEMORY]
            [limit] = [int(path.read_text()) for path in limits if path.exists()]
            machine_mb = int(words[words.index(b"-m") + 1].removesuffix(b"M"))
            assert 0 < limit - (machine_mb << 20) <= 512 << 20
        if os.geteuid() == 0:
            assert {*status["Uid"].split(), *status["Gid"].split()} == {status["Uid"].split()[0]}
            assert int(status["CapBnd"], 16) == 0
            assert status.get("Groups", "").split() == []
    if os.geteuid() == 0:
        assert len(uids) == 2
        assert not any("0" in uid.split() for uid in uids)


async def test_restored_machines_share_no_randomness_and_know_the_time(backend: MicrovmBackend) -> None:
    before = time.time()
    first, second = [await told(await backend.create(spec(), key)) for key in ("one", "two")]
    after = time.time()
    for name in ("random", "hash", "boot", "page"):
        assert first[name] != second[name], name
    assert before - 1 <= first["time"] <= second["time"] <= after + 1


@pytest.mark.long
@pytest.mark.parametrize("name", ["state", "memory"])
async def test_a_snapshot_that_was_changed_is_made_anew(
    backend: MicrovmBackend, base: Path, image: Path, name: str
) -> None:
    await backend.create(spec(), "one")
    (part,) = (base / "snapshots").glob(f"*/{name}")
    before = part.stat().st_ino
    part.chmod(0o600)
    with part.open("r+b") as file:
        file.seek(1 << 16)
        file.write(b"other")
    again = opened(base, image)
    try:
        await again.create(spec(), "two")
        (part,) = (base / "snapshots").glob(f"*/{name}")
        assert part.stat().st_ino != before
        assert part.stat().st_mode & 0o777 == 0o400
    finally:
        await again.close()


@pytest.mark.long
async def test_an_image_that_is_built_anew_counts_for_the_next_machine(base: Path, image: Path, tmp_path: Path) -> None:
    """While the server works: what waits ready of the old one is drained, and what works goes on."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    shutil.copytree(image, mine)
    backend = opened(base, mine, ready=1)
    try:
        handle, process = await begun(backend, Owner.TASK)
        await stands(backend, 1)
        before = (await backend.probe()).facts["image_digest"]
        assert not await backend.changed()
        shutil.copytree(mine, other)
        (other / "initial").chmod(0o600)
        with (other / "initial").open("ab") as file:
            file.write(b"\0" * 512)
        write_manifest(other, read_manifest(other)["facts"])
        mine.rename(tmp_path / "old")
        other.rename(mine)
        assert await backend.changed()
        probe = await backend.probe()
        assert probe.ready, probe.facts
        assert probe.facts["image_digest"] != before
        assert not await backend.changed()
        await stands(backend, 0)
        new = await backend.create(spec(), "new")
        assert new.image == f"sha256:{probe.facts['image_digest']}"
        await process.send(b"went on\n")
        assert (await process.wait()).code == 0
        shutil.rmtree(mine)
        assert await backend.changed()
        assert not (await backend.probe()).ready
        for each in (handle, new.handle):
            await backend.destroy(each)
    finally:
        await backend.close()


@pytest.mark.long
def test_an_image_is_built_of_a_given_root(tmp_path: Path) -> None:
    root, output = tmp_path / "root", tmp_path / "image"
    for name in ("bash", "python3.11"):
        (root / "usr/bin").mkdir(parents=True, exist_ok=True)
        (root / "usr/bin" / name).write_text("a program")
    with pytest.raises(InvalidInput, match="lacks python3: install"):
        build_image(output, root, (), print)
    (root / "usr/bin/python3").symlink_to("python3.11")
    with tarfile.open(tmp_path / "root.tar", "w") as packed:
        packed.add(root, ".")
    for source in (root, tmp_path / "root.tar"):  # the second replaces the first
        facts = build_image(output, source, (), print)
        assert facts["python"] == "3.11"
        assert facts["from"] == str(source)
        found = open_image(output)
        assert found.facts == facts
        found.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image", "root", "root.tar"]


@pytest.mark.long
async def test_kvm_counts_when_a_guest_answered(image: Path, tmp_path: Path) -> None:
    """On a host whose /dev/kvm boots no ordinary kernel a guest hangs: its machine is ended, and the reason kept."""
    settings = microvm_ground.SETTINGS.model_copy(update={"accel": "auto"})
    backend = MicrovmBackend(tmp_path, settings, image, LIMITS)
    probe = await backend.probe()
    await backend.close()
    assert probe.ready, probe.facts
    accel, why = probe.facts["accel"], probe.facts["accel_why"]
    assert standing(tmp_path) == ([], [], [])
    assert [*tmp_path.glob(".probe-*")] == []
    if not Path("/dev/kvm").exists():
        assert (accel, why) == ("tcg", "there is no /dev/kvm")
    elif accel == "tcg":
        assert why.startswith(("no guest answered in 10 s with KVM", "/dev/kvm is closed to the user of QEMU"))
    else:
        assert why == "a guest booted with KVM"
    kept = tmp_path / "kvm.json"
    if why.startswith("no guest") and accel == "tcg":
        kept.write_text(json.dumps(json.loads(kept.read_text()) | {"why": "kept for this boot of the host"}))
        why = "kept for this boot of the host"
    ordered = MicrovmBackend(tmp_path, settings.model_copy(update={"accel": "kvm"}), image, LIMITS)
    kvm = await ordered.probe()
    await ordered.close()
    assert kvm.ready == (accel == "kvm")
    assert kvm.ready or f"it cannot be used: {why}" in kvm.facts["why"]


@pytest.mark.long
@pytest.mark.skipif(not os.access("/dev/kvm", os.R_OK | os.W_OK), reason="/dev/kvm is not there, or closed to us")
async def test_a_real_guest_answers_with_kvm_in_ten_seconds_or_kvm_is_not_used(image: Path, tmp_path: Path) -> None:
    """As the server's own user, which may open the device: a host with KVM of another kind boots no ordinary kernel."""
    found = open_image(image)
    settings = microvm_ground.SETTINGS.model_copy(update={"accel": "auto"})
    accel = await accelerators.Accelerator(tmp_path, settings).found(found, None)
    found.close()
    if accel.name == "kvm":
        assert accel.why == "a guest booted with KVM"
    else:
        assert accel.why.startswith(("no guest answered in 10 s with KVM", "the machine does not boot"))
        assert json.loads((tmp_path / "kvm.json").read_text())["why"] == accel.why
    assert standing(tmp_path) == ([], [], [])
    assert [path.name for path in tmp_path.iterdir()] == ["kvm.json"]


@pytest.mark.skipif(not Path("/dev/kvm").exists(), reason="there is no /dev/kvm")
async def test_a_guest_that_hangs_with_kvm_is_ended_in_time(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short form: a QEMU that starts and never answers."""
    monkeypatch.setattr(accelerators, "ANSWERS_S", 1.0)
    qemu = tmp_path / "qemu"
    script = f'[ "$1" = --version ] && echo hangs && exit\necho $$ >{tmp_path}/pid\nexec sleep 300'
    qemu.write_text(f"#!/bin/sh\n{script}\n")
    qemu.chmod(0o755)
    found = open_image(image)
    settings = microvm_ground.SETTINGS.model_copy(update={"accel": "auto", "qemu": str(qemu)})
    accel = await accelerators.Accelerator(tmp_path, settings).found(found, None)
    found.close()
    assert (accel.name, accel.version) == ("tcg", "hangs")
    assert accel.why.startswith("no guest answered")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kvm.json", "pid", "qemu"]
    assert machine.began(int((tmp_path / "pid").read_text())) == ""
