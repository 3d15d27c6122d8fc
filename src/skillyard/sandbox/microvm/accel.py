"""The accelerator of machines: KVM where a probe guest answers with it, else QEMU's emulation.

A host may have /dev/kvm and run no ordinary kernel with it. So KVM counts when a machine booted with it in ten
seconds. The answer is kept for this boot of the host, since a guest that hangs costs all of them.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from skillyard.config.backends import MicrovmSettings
from skillyard.domain.errors import SandboxFault
from skillyard.sandbox.microvm import machine
from skillyard.sandbox.microvm.image import Image
from skillyard.sandbox.microvm.machine import Shape
from skillyard.sandbox.microvm.snapshot import booted, last_words
from skillyard.threads import to_its_end
from skillyard.values import dataclass

ANSWERS_S = 10.0
_DEVICE = Path("/dev/kvm")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROBE_MB = 256
_ASKED_S = 20.0


@dataclass(frozen=True, slots=True)
class Accel:
    """The accelerator ``name`` (kvm or tcg), and the reason for it.

    ``qemu`` is the program, ``version`` the first line that it tells.
    """

    qemu: str
    version: str
    name: str
    why: str


class Accelerator:
    """Finds the accelerator once. ``state`` keeps the answer for later servers."""

    def __init__(self, state: Path, settings: MicrovmSettings) -> None:
        self._state, self._settings = state, settings
        self._finding = asyncio.Lock()
        self._found: Accel | None = None

    async def found(self, image: Image, uid: int | None) -> Accel:
        """Returns the accelerator of this host. Raises SandboxFault where QEMU, or a KVM that was ordered, lacks."""
        async with self._finding:
            if self._found is None:
                self._found = await self._find(image, uid)
            return self._found

    async def _find(self, image: Image, uid: int | None) -> Accel:
        qemu = shutil.which(self._settings.qemu)
        if qemu is None:
            raise SandboxFault(f"there is no {self._settings.qemu}; install QEMU (Debian: qemu-system-x86)")
        version = await to_its_end(_version, qemu)
        wanted = self._settings.accel
        if wanted == "tcg":
            return Accel(qemu, version, "tcg", "microvm.accel says so")
        why = await self._kvm(Shape(qemu, version, "kvm", _PROBE_MB, 1), image, uid)
        if not why:
            return Accel(qemu, version, "kvm", "a guest booted with KVM")
        if wanted == "kvm":
            raise SandboxFault(f"microvm.accel is kvm, and it cannot be used: {why}; set it to auto or tcg")
        return Accel(qemu, version, "tcg", why)

    async def _kvm(self, shape: Shape, image: Image, uid: int | None) -> str:
        """Returns why KVM cannot be used; empty when a guest answered."""
        if not _DEVICE.exists():
            return "there is no /dev/kvm"
        if uid is not None and machine.kvm_groups(_DEVICE.stat()) is None:
            mend = "give it to the group kvm, with the right to read and write"
            return f"/dev/kvm is closed to the user of QEMU, which is not root; {mend}"
        key = f"{_boot()} {shape.version} {image.digest}"
        kept = self._state / "kvm.json"
        with suppress(OSError, ValueError):
            told = json.loads(kept.read_text())
            if told["key"] == key:
                return str(told["why"])
        place = self._state / f".probe-{secrets.token_hex(8)}"
        place.mkdir(mode=0o700, parents=True)
        why = ""
        try:
            async with asyncio.timeout(ANSWERS_S):
                await booted(place, image, shape, uid, save=False)
        except TimeoutError:
            why = f"no guest answered in {ANSWERS_S:.0f} s with KVM: {last_words(place)[-80:]}"
        except SandboxFault as fault:
            why = fault.message[:300]
        finally:
            await to_its_end(shutil.rmtree, place)
        kept.write_text(json.dumps({"key": key, "why": why}))
        return why


def _version(qemu: str) -> str:
    try:
        told = subprocess.run([qemu, "--version"], capture_output=True, text=True, timeout=_ASKED_S, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxFault(f"{qemu} does not run: {error}") from None
    return told.partition("\n")[0].strip()[:200]


def _boot() -> str:
    try:
        return _BOOT.read_text("ascii").strip()
    except OSError:
        return secrets.token_hex(8)
