"""A builder that gives at once what a test wants, without a sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from collections.abc import AsyncGenerator, Mapping, Sequence

from skillyard.domain.package.environment import Lock, Pin, Wanted, lock_text, parse_lock
from skillyard.domain.package.names import normalized
from skillyard.domain.package.platforms import Platform
from skillyard.engine.packages.asked import required_name
from skillyard.engine.packages.build import BuildLog
from skillyard.engine.packages.environment import BuildFailed, platform_name
from tests.unit.engine.packages.wheels import installed

VERSION = "1.5.0"


def pack(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def packed_packages(lock: Lock) -> bytes:
    files: dict[str, bytes] = {}
    for pin in parse_lock(lock.text):
        files |= installed(pin.name, pin.version)
    return pack(files)


class FakeBuilder:
    """Every package is there in version 1.5.0 or that which ``==`` asks for, and requires what ``draws`` says. ``gate``
    holds it while it installs, ``fault`` is raised then. ``deaf`` heeds no held package, and ``files`` chooses
    other files under the same versions."""

    def __init__(self) -> None:
        self.resolved: list[tuple[str, ...]] = []
        self.installed: list[str] = []
        self.platforms: list[Platform | None] = []
        self.version = VERSION
        self.files = ""
        self.deaf = False
        self.fetched = 0
        self.draws: dict[str, str] = {}
        self.gate: asyncio.Event | None = None
        self.fault: Exception | None = None
        self.at_work: frozenset[str] = frozenset()

    async def resolve(self, wanted: Wanted, log: BuildLog) -> Lock:
        self.resolved.append(wanted.requirements)
        log.say(f"Resolved {len(wanted.requirements)} packages")
        asked = {normalized(required_name(text)) for text in wanted.requirements}
        names = sorted(asked | {self.draws[name] for name in asked & self.draws.keys()})
        exact = {
            normalized(required_name(text)): text.partition("==")[2] for text in wanted.requirements if "==" in text
        }
        held = {} if self.deaf else {pin.name: pin.version for pin in wanted.held}
        for name in sorted(exact.keys() & held.keys()):
            if exact[name] != held[name]:
                raise BuildFailed(f"Because you require {name}=={exact[name]} and {name}=={held[name]}, no")
        found = {name: exact.get(name) or held.get(name) or self.version for name in names}
        pins = [Pin(name, found[name], (hashlib.sha256((self.files + name).encode()).hexdigest(),)) for name in names]
        return Lock(lock_text(pins), platform_name() if wanted.platform is None else wanted.platform.name)

    async def install(self, lock: Lock, platform: Platform | None, log: BuildLog) -> AsyncGenerator[bytes, None]:
        self.installed.append(lock.digest)
        self.platforms.append(platform)
        log.say("Downloading")
        data = packed_packages(lock)
        yield data[: len(data) // 2]
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        yield data[len(data) // 2 :]

    async def fetch(self, lock: Lock, tags: Mapping[str, Sequence[str]], log: BuildLog) -> AsyncGenerator[bytes, None]:
        self.fetched += 1
        yield pack({f"{pin.name}.whl": b"" for pin in parse_lock(lock.text)})
