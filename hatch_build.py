"""The build hook: makes the compiled part of zygotes where a C compiler is, and goes on without it otherwise.

``python hatch_build.py`` makes it in the checkout. The same source and compiler give the same bytes. ``CC`` and
``CFLAGS`` name a compiler for another machine, whose name the wheel's tag then has.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # as a command
    BuildHookInterface = object  # type: ignore[assignment, misc]

INSIDE = Path("src/skillyard/sandbox/native/inside")
SOURCE, LIBRARY = INSIDE / "steps.c", INSIDE / "libsteps.so"
FIRST_SOURCE, FIRST = INSIDE / "first.c", INSIDE / "first"
_WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Wshadow")
FLAGS = (
    *_WARNINGS, "-O2", "-fPIC", "-shared", "-fstack-protector-strong", "-U_FORTIFY_SOURCE",
    "-Wl,-z,relro,-z,now,-z,noexecstack,--build-id=none",
)  # fmt: skip
"""Without _FORTIFY_SOURCE, whose functions musl does not have: one library loads with either C library."""
FIRST_FLAGS = (
    *_WARNINGS, "-Os", "-static", "-no-pie", "-nostdlib", "-ffreestanding", "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables", "-Wl,-z,noexecstack,--build-id=none",
)  # fmt: skip
"""Without a C library, and so without the guard of a stack protector."""
_MACHINES = {62: "x86_64", 183: "aarch64"}
_MACHINE_AT = 18
"""The place of the machine's number in an ELF header (elf(5))."""


def build(root: Path, *more: str) -> str:
    """Makes library and program below ``root``. Returns why it could not, or nothing; no earlier ones are left."""
    _remove(root)
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if sys.platform != "linux" or shutil.which(compiler[0]) is None:
        return "there is no C compiler"
    made = hashlib.sha256((root / SOURCE).read_bytes() + (root / FIRST_SOURCE).read_bytes()).hexdigest()
    given = [*more, *shlex.split(os.environ.get("CFLAGS", "")), f'-DSOURCE="{made}"']
    for flags, target, source in ((FLAGS, LIBRARY, SOURCE), (FIRST_FLAGS, FIRST, FIRST_SOURCE)):
        command = [*compiler, *flags, *given, "-o", str(root / target), str(root / source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            _remove(root)
            return done.stderr.strip()[-2000:] or f"{compiler[0]} ended with {done.returncode}"
    return ""


def _remove(root: Path) -> None:
    for target in (LIBRARY, FIRST):
        (root / target).unlink(missing_ok=True)


def machine(library: Path) -> str:
    """Returns the name of the machine that a library is for. Raises ValueError for one that we do not know."""
    with library.open("rb") as file:
        file.seek(_MACHINE_AT)
        number = int.from_bytes(file.read(2), sys.byteorder)
    if number not in _MACHINES:
        raise ValueError(
            f"{library}: the machine {number} is not a known one; known are {', '.join(_MACHINES.values())}"
        )
    return _MACHINES[number]


class CompiledPart(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Puts the library into the wheel, whose tag is then this platform's."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - its interface
        if self.target_name != "wheel":
            return
        if why := build(Path(self.root)):
            self.app.display_warning(f"without the compiled part: {why}")
            return
        build_data["artifacts"] += [str(LIBRARY), str(FIRST)]
        build_data["pure_python"] = False
        name, here = machine(Path(self.root) / LIBRARY), os.uname().machine
        platform = sysconfig.get_platform() if name == here else f"linux-{name}"
        build_data["tag"] = f"py3-none-{platform.replace('-', '_').replace('.', '_')}"


if __name__ == "__main__":
    sys.exit(build(Path(__file__).parent, "-Werror") or 0)
