"""One boot of an emulated machine: a scenario goes in by the kernel's command line, files come out on a second disk."""

from __future__ import annotations

import io
import subprocess
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.vm.image import Image

_RESULTS_MB = 64
_COMMAND_LINE = "root=/dev/nvme0n1 rw panic=-1 quiet init=/opt/skillyard/tests/hosts/vm/inside/init.sh"


@dataclass(frozen=True, slots=True)
class Outcome:
    """``files`` by name, as the scenario left them in its results directory."""

    console: str
    files: dict[str, bytes]
    seconds: float

    def text(self, name: str) -> str:
        assert name in self.files, f"no {name}; the console ends with: {self.console[-3000:]}"
        return self.files[name].decode("utf-8", "replace")


def run(image: Image, scenario: str, work: Path, *, timeout_s: float, memory_mb: int = 3072) -> Outcome:
    """Boot, wait until it has turned itself off, and read what it left. Raises AssertionError when it does not."""
    results, console = work / f"{scenario}.results", work / f"{scenario}.console"
    with results.open("wb") as file:
        file.truncate(_RESULTS_MB << 20)
    started = time.monotonic()
    machine = subprocess.Popen(
        [
            *(*image.kind.emulator, "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"),
            *("-m", str(memory_mb), "-nodefaults", "-nographic", "-no-reboot", "-serial", f"file:{console}"),
            *("-kernel", str(image.kernel)),
            *("-append", f"console={image.kind.console} {_COMMAND_LINE} scenario={scenario}"),
            *("-drive", f"file={image.disk},format=raw,if=none,id=system,snapshot=on"),
            *("-device", "nvme,drive=system,serial=system"),
            *("-drive", f"file={results},format=raw,if=none,id=results"),
            *("-device", "nvme,drive=results,serial=results"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        said, _ = machine.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        machine.kill()
        machine.communicate()
        raise AssertionError(f"not off after {timeout_s:.0f} s: {_text(console)[-3000:]}") from None
    assert machine.returncode == 0, said.decode("utf-8", "replace")
    return Outcome(_text(console), _unpacked(results), time.monotonic() - started)


def _text(console: Path) -> str:
    return console.read_text("utf-8", "replace") if console.exists() else ""


def _unpacked(results: Path) -> dict[str, bytes]:
    """What came out is data: members that are plain files, by their last name."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(results.read_bytes()), mode="r:") as archive:
            for member in archive:
                if member.isfile() and (content := archive.extractfile(member)) is not None:
                    found[Path(member.name).name] = content.read()
    except tarfile.ReadError:
        return {}
    return found
