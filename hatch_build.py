"""The build hook: makes the compiled part of zygotes where a C compiler is, and goes on without it otherwise.

``python hatch_build.py`` makes it in the checkout. The same source and compiler give the same bytes.
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
FLAGS = (
    "-std=c99", "-O2", "-fPIC", "-shared", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2",
    "-Wall", "-Wextra", "-Wconversion", "-Wshadow",
    "-Wl,-z,relro,-z,now,-z,noexecstack,--build-id=none",
)  # fmt: skip


def build(root: Path, *more: str) -> str:
    """Makes the library below ``root``. Returns why it could not, or nothing; none of an earlier source is left."""
    target, source = root / LIBRARY, root / SOURCE
    target.unlink(missing_ok=True)
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if sys.platform != "linux" or shutil.which(compiler[0]) is None:
        return "there is no C compiler"
    made = hashlib.sha256(source.read_bytes()).hexdigest()
    command = [*compiler, *FLAGS, *more, f'-DSOURCE="{made}"', "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        target.unlink(missing_ok=True)
        return done.stderr.strip()[-2000:] or f"{compiler[0]} ended with {done.returncode}"
    return ""


class CompiledPart(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Puts the library into the wheel, whose tag is then this platform's."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - its interface
        if self.target_name != "wheel":
            return
        if why := build(Path(self.root)):
            self.app.display_warning(f"without the compiled part: {why}")
            return
        build_data["artifacts"].append(str(LIBRARY))
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"


if __name__ == "__main__":
    sys.exit(build(Path(__file__).parent, "-Werror") or 0)
