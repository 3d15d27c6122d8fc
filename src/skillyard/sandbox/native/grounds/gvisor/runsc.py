"""The runsc program of this host: where it is, which version, and its command line."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from dataclasses import dataclass, field

PLATFORMS = ("systrap", "ptrace")
"""The platforms in the order in which ``auto`` tries them. kvm needs a device for itself and is never tried."""

MEND = (
    "install gVisor: apt install runsc (Debian 12 and later), or set gvisor.runsc to the program from gvisor.dev; "
    "docs/gvisor.md says more"
)
_BOUND_S = 10.0
_FEW_DESCRIPTORS = 8192
"""Below it a host's limit can be less than the files that gVisor remembers, each of which takes a descriptor."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def locate(named: str) -> str:
    """Returns the absolute path of runsc; empty when there is none that we may execute."""
    path = os.pathsep.join((os.environ.get("PATH", ""), _PATH))
    found = shutil.which(named or "runsc", path=path)
    return os.path.realpath(found) if found else ""


@dataclass(slots=True)
class Runsc:
    """A runsc and its platform: the first of ``platforms``; those that fail are removed."""

    path: str
    version: str
    flags: frozenset[str]
    platforms: list[str]
    proven: bool = False
    failures: dict[str, str] = field(default_factory=dict)
    """The reasons why platforms did not work."""

    @property
    def platform(self) -> str:
        return self.platforms[0]

    def worked(self) -> None:
        self.proven = True

    def failed(self, platform: str, why: str) -> None:
        """Goes on to the next platform, unless one has worked before."""
        if not self.proven and platform == self.platform:
            self.failures[platform] = why
            if len(self.platforms) > 1:
                del self.platforms[0]

    def arguments(self, program: str, state: str, bundle: str, name: str) -> list[str]:
        """Returns the command that runs a container under the one id of our user namespace."""
        # Without directfs the gofer opens all files, and the sentry none.
        wanted = {
            "root": state,
            "rootless": "true",
            "ignore-cgroups": "true",
            "network": "none",
            "platform": self.platform,
            "file-access": "exclusive",
            "file-access-mounts": "exclusive",
            "overlay2": "none",
            "directfs": "false",
            "log": "/dev/null",
        }
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= most < _FEW_DESCRIPTORS:
            wanted["dcache"] = str(most // 4)
        flags = [f"--{flag}={value}" for flag, value in wanted.items() if flag in self.flags]
        return [program, *flags, "run", "--bundle", bundle, name]


_NEEDED = frozenset({"root", "rootless", "ignore-cgroups", "network", "platform"})


def describe(path: str, platform: str) -> Runsc:
    """Asks runsc for its version and flags. Raises OSError with the reason why it cannot be used."""
    version = re.search(r"runsc version (?:release-)?(\S+)", _ask(path, "--version"))
    flags = frozenset(re.findall(r"^  -(\S+)", _ask(path, "flags"), re.MULTILINE))
    if version is None or not flags >= _NEEDED:
        raise OSError(0, f"{path} does not answer as a runsc of 2022 or later does")
    return Runsc(path, version[1], flags, list(PLATFORMS) if platform == "auto" else [platform])


def _ask(path: str, question: str) -> str:
    try:
        done = subprocess.run(
            [path, question], capture_output=True, text=True, timeout=_BOUND_S, check=False, env={"PATH": _PATH}
        )
    except subprocess.TimeoutExpired:
        raise OSError(0, f"{path} {question} does not answer") from None
    return done.stdout + done.stderr  # where ``runsc flags`` writes
