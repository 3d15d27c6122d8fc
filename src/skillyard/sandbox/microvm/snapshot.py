"""Snapshots of machines that have booted, each saved once and restored for each sandbox.

A snapshot belongs to an image, to our files in it, to QEMU's version and to a size of machine; its name is the digest
of all these. Nothing of any run is in it. It is made under a lock, is readable by the server alone, and is compared
with its own digest when it is opened.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import io
import json
import os
import secrets
import shutil
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from skillyard.domain.errors import SandboxFault
from skillyard.sandbox.e2b.order import fixed
from skillyard.sandbox.guest_argv import bytecode, guest_bundle
from skillyard.sandbox.microvm import machine
from skillyard.sandbox.microvm.first import PLACE, READY, SECOND, seed_program
from skillyard.sandbox.microvm.image import Image, digest_of
from skillyard.sandbox.microvm.machine import Shape
from skillyard.sandbox.microvm.memory import blank, copied, seal
from skillyard.threads import to_its_end
from skillyard.values import dataclass

BOOT_S = 300.0
KEPT = 6
"""Snapshots that are kept; those that were used longest ago go first."""
GUEST = f"{PLACE}/guest.pyz"
_OURS = ("skillyard/sandbox/microvm/inside.py", "skillyard/sandbox/e2b/stage.py")
_WARM = """
/usr/bin/python3 /bin/sh /bin/bash /lib64/ld-linux* /lib/*/libtinfo.so.6
/lib/*/libc.so.6 /lib/*/libm.so.6 /lib/*/libz.so.1 /lib/*/libexpat.so.1 /lib/*/libcap*.so.* /lib/*/libselinux.so.1
/lib/*/libpcre2-8.so.0 /lib/*/libmount.so.1 /lib/*/libblkid.so.1 /usr/lib/*/libffi.so.8
/usr/lib/python3.*/__pycache__/* /usr/lib/python3.*/json/__pycache__/* /usr/lib/python3.*/re/__pycache__/*
/usr/lib/python3.*/encodings/__pycache__/* /usr/lib/python3.*/collections/__pycache__/*
/usr/lib/python3.*/ctypes/__pycache__/* /usr/lib/python3.*/lib-dynload/_ctypes.*
/usr/lib/python3.*/lib-dynload/_json.* /usr/lib/python3.*/lib-dynload/resource.*
/usr/lib/python3.*/importlib/__pycache__/* /usr/lib/python3.*/urllib/__pycache__/*
/etc/ld.so.cache /usr/lib/locale/C.utf8/LC_CTYPE /usr/bin/pyvenv.cfg /usr/pyvenv.cfg /usr/bin/pybuilddir.txt
"""
"""Files that each sandbox reads, or finds missing: a snapshot has that in its memory."""
_STATE, _MEMORY, _DIGEST = "state", "memory", "digest"


@dataclass(frozen=True, slots=True)
class Saved:
    """Descriptors of a saved machine: the state of its devices, and its memory."""

    state: int
    memory: int

    @asynccontextmanager
    async def begun(self, shape: Shape) -> AsyncIterator[tuple[int, int]]:
        """Gives memory and state for a machine of that shape.

        Emulation shares the pages that no machine writes. With KVM each machine has all of them for itself, since
        others could learn from the processor's caches which of them it reads.
        """
        memory = self.memory if shape.accel == "tcg" else blank(0)
        try:
            if memory != self.memory:
                await to_its_end(copied, self.memory, memory)
            yield memory, self.state
        finally:
            if memory != self.memory:
                os.close(memory)

    def close(self) -> None:
        os.close(self.state)
        os.close(self.memory)


class Snapshots:
    """Snapshots below ``directory``. ``uid`` is the user of QEMU that boots a machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[str, Saved] = {}
        self._making = asyncio.Lock()

    async def of(self, image: Image, shape: Shape, uid: int | None) -> Saved:
        """Returns a snapshot, made when there is none. Raises SandboxFault."""
        name = hashlib.sha256(
            f"{image.digest} {hashlib.sha256(files()).hexdigest()} {_line(shape)}".encode()
        ).hexdigest()[:40]
        async with self._making:
            if name not in self._open:
                async with self._locked():
                    self._open[name] = await self._opened(name, image, shape, uid)
            return self._open[name]

    async def _opened(self, name: str, image: Image, shape: Shape, uid: int | None) -> Saved:
        place = self._directory / name
        saved: Saved | None = await to_its_end(_checked, place)
        if saved is None:
            await to_its_end(_prune, self._directory)
            await self._make(place, image, shape, uid)
            saved = await to_its_end(_checked, place)
        if saved is None:
            raise SandboxFault("the snapshot that was made is damaged")
        return saved

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Holds the lock of the directory, which another server may hold too."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await to_its_end(fcntl.flock, lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    async def _make(self, place: Path, image: Image, shape: Shape, uid: int | None) -> None:
        if find_spec("qemu") is None or find_spec("qemu.qmp") is None:
            mend = "pip install 'skillyard[microvm]'"
            raise SandboxFault(f"QEMU's client of its monitor is not installed, which saves snapshots; {mend}")
        part = self._directory / f".part-{secrets.token_hex(8)}"
        part.mkdir(mode=0o700)
        try:
            async with asyncio.timeout(BOOT_S):
                await booted(part, image, shape, uid)
            await to_its_end(_seal, part)
            shutil.rmtree(place, ignore_errors=True)
            part.rename(place)
        except TimeoutError:
            raise SandboxFault(f"the machine does not boot in {BOOT_S:.0f} s: {last_words(part)}") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def close(self) -> None:
        for saved in self._open.values():
            saved.close()
        self._open.clear()


async def booted(place: Path, image: Image, shape: Shape, uid: int | None, *, save: bool = True) -> None:
    """Boots a machine, gives it our files, and saves it as it waits. Raises SandboxFault with its last words."""
    name = f"boot-{secrets.token_hex(8)}"
    memory = blank(shape.memory_mb)
    try:
        pid = machine.launch(place, shape, image, uid, name, memory, dies=True)
        await _answered(place, pid, save=save)
        if save:
            await to_its_end(_keep, place, memory)
    finally:
        os.close(memory)


async def _answered(place: Path, pid: int, *, save: bool) -> None:
    beginning = machine.began(pid)
    try:
        reader, writer = await machine.connect(place, machine.ORDER)
        try:
            given = files()
            writer.write(b"%d\n" % len(given) + given)
            await writer.drain()
            if await reader.readexactly(len(READY)) != READY:
                raise SandboxFault("the machine says something else than that it is ready")
            if save:
                await _save(place)
        finally:
            writer.close()
    except (OSError, EOFError, SandboxFault) as error:
        raise SandboxFault(f"the machine does not boot: {error}: {last_words(place)}") from None
    finally:
        await machine.end(pid, beginning)


async def _save(place: Path) -> None:
    """Has QEMU write its state into a file of ours. The machine goes on meanwhile, and only waits."""
    from qemu.qmp import QMPClient, QMPError

    monitor = QMPClient("skillyard")
    try:
        with machine.short(place) as short:
            await monitor.connect(f"{short}/{machine.MONITOR}")
        state = os.open(place / _STATE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            monitor.send_fd_scm(state)
            await monitor.execute("getfd", {"fdname": _STATE})
        finally:
            os.close(state)
        await monitor.execute("migrate-set-parameters", {"max-bandwidth": 1 << 40})
        with monitor.listener() as events:
            wanted = [{"capability": name, "state": True} for name in ("events", "x-ignore-shared")]
            await monitor.execute("migrate-set-capabilities", {"capabilities": wanted})
            await monitor.execute("migrate", {"uri": f"fd:{_STATE}"})
            async for event in events:
                data: Any = event["data"] if event["event"] == "MIGRATION" else {}
                status = data.get("status")
                if status == "completed":
                    break
                if status == "failed":
                    raise SandboxFault("QEMU cannot save the machine")
    except QMPError as error:
        raise SandboxFault(f"QEMU does not save the machine: {error}") from None
    finally:
        with suppress(QMPError, OSError, EOFError):
            await monitor.disconnect()


@cache
def files() -> bytes:
    """Returns our files in a machine as a tar archive, the same for the same sources."""
    found = {"guest.pyz": guest_bundle(), "warm": _WARM.encode()}
    found |= {"fixed.json": json.dumps(fixed(GUEST)).encode(), "second": SECOND.encode(), "seed": seed_program()}
    for name in _OURS:
        source = resources.files("skillyard").joinpath(name.partition("/")[2]).read_bytes()
        folder, _, module = name.removesuffix(".py").rpartition("/")
        tag = sys.implementation.cache_tag
        found |= {name: source, f"{folder}/__pycache__/{module}.{tag}.pyc": bytecode(name, source)}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as packed:
        for name, data in found.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o555
            packed.addfile(info, io.BytesIO(data))
    return archive.getvalue()


def _line(shape: Shape) -> str:
    return f"{shape.text} {machine.CMDLINE}"


def _checked(place: Path) -> Saved | None:
    """Opens a snapshot; None where there is none, or one with other bytes than were saved."""
    opened: list[int] = []
    try:
        for name in (_STATE, _MEMORY):
            opened.append(os.open(place / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
            found = os.fstat(opened[-1])
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                return None
        saved = Saved(opened[0], blank(0))
        digest = f"{digest_of(saved.state)} {copied(opened[1], saved.memory)}"
        seal(saved.memory)
        if digest == (place / _DIGEST).read_text("ascii"):
            os.utime(place)
            del opened[0]
            return saved
        os.close(saved.memory)
    except OSError:
        return None
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return None


def _keep(part: Path, memory: int) -> None:
    """Writes the memory of a machine that has ended, and the digest of all that it was."""
    seal(memory)
    state = os.open(part / _STATE, os.O_RDONLY)
    target = os.open(part / _MEMORY, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        (part / _DIGEST).write_text(f"{digest_of(state)} {copied(memory, target)}", "ascii")
    finally:
        os.close(state)
        os.close(target)


def _seal(part: Path) -> None:
    """Leaves state and memory, which nobody writes any more, and their digest."""
    for left in part.iterdir():
        if left.name not in (_STATE, _MEMORY, _DIGEST):
            left.unlink()
    for name in (_STATE, _MEMORY):
        (part / name).chmod(0o400)


def _prune(directory: Path) -> None:
    """Removes what dead servers left, and the oldest snapshots where there are too many."""
    for part in directory.glob(".part-*"):
        shutil.rmtree(part, ignore_errors=True)
    kept = sorted((one for one in directory.iterdir() if one.is_dir()), key=lambda one: one.stat().st_mtime)
    for one in kept[: max(0, len(kept) - KEPT + 1)]:
        shutil.rmtree(one, ignore_errors=True)


def last_words(place: Path) -> str:
    """Returns the end of what QEMU and the kernel said, printable and bounded."""
    found = []
    for name in (machine.SAID, machine.LOG):
        with suppress(OSError):
            found.append((place / name).read_bytes()[-400:].decode("utf-8", "replace"))
    return "".join(c if c.isprintable() else " " for c in " ".join(found)).strip()
