"""The bubblewrap command line of the exec backend: one invocation is one sandbox."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.sandbox.content import bound
from tests.standing import why_not

NOBODY = 65534
INNER = 1000
WRITABLE = {"workspace": "/workspace", "tmp": "/tmp", "shm": "/dev/shm"}
"""Directories of a sandbox's tree on the host, and where they show inside."""
GUEST = "/run/guest.pyz"
"""The guest, as one file that the interpreter runs."""
ETC = ("ssl", "ca-certificates", "alternatives", "ld.so.cache", "localtime", "mime.types")
_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")


def as_root() -> bool:
    return os.geteuid() == 0


def host_uid() -> int:
    """Whom the programs are outside."""
    return NOBODY if as_root() else os.geteuid()


@functools.cache
def missing_tools() -> str:
    """Why the backend cannot work here; empty when it can."""
    wanted = ("bwrap", "prlimit", "setsid", *(("setpriv",) if as_root() else ()))
    absent = [tool for tool in wanted if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} not installed (apt install bubblewrap util-linux)"
    words = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    tried = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return tried.stderr.strip() if tried.returncode and why_not() else ""


def python() -> str:
    """The plain interpreter behind the virtual environment that we may run in."""
    return str(Path(sys.base_prefix) / "bin" / "python3")


@functools.cache
def site_directories() -> tuple[str, ...]:
    """Where the plain interpreter looks for packages: hidden inside, so that none of the host's is seen."""
    code = "import os, site; print(*[d for d in site.getsitepackages() if os.path.isdir(d)], sep='\\n')"
    found = subprocess.run([python(), "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    others = {"/usr/lib/python3/dist-packages"} - set(found.split())
    return (*found.split(), *(other for other in others if Path(other).is_dir()))


def environment() -> dict[str, str]:
    """The small environment that every program gets."""
    return {
        "PATH": f"{Path(python()).parent}:/usr/bin:/bin",
        "HOME": "/workspace",
        "LANG": "C.UTF-8",
    }


def command(root: Path, spec: SandboxSpec, inside: list[str], *, info: int) -> list[str]:
    """The argv that runs ``inside`` as pid 1 behind the walls, over the directory tree ``root``."""
    return [
        "bwrap",
        *_namespaces(),
        *_system(root),
        *_packages(spec),
        *_mounts(spec),
        *_own(root),
        *("--chdir", "/", "--info-fd", str(info), "--"),
        *_identity(),
        *inside,
    ]


def write_etc(directory: Path) -> None:
    """The files of /etc that name users and hosts, with nobody of this host in them."""
    directory.mkdir(mode=0o755)
    uid = NOBODY if as_root() else INNER
    files = {
        "passwd": f"sandbox:x:{uid}:{uid}::/workspace:/bin/sh\n",
        "group": f"sandbox:x:{uid}:\n",
        "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    }
    for name, text in files.items():
        (directory / name).write_text(text, encoding="ascii")
        (directory / name).chmod(0o444)


def _namespaces() -> Iterator[str]:
    yield from ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
    yield from ("--hostname", "sandbox", "--as-pid-1", "--clearenv")
    if as_root():
        yield from ("--cap-drop", "ALL")
        yield from (word for name in _CAPABILITIES for word in ("--cap-add", name))
    else:
        yield from ("--unshare-user", "--uid", str(INNER), "--gid", str(INNER), "--cap-drop", "ALL")


def _identity() -> list[str]:
    """Root drops to an unprivileged user of the host; anybody else is one already."""
    if not as_root():
        return []
    user = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    nothing = ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"]
    return ["setpriv", *user, *nothing, "--"]


def _system(root: Path) -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            yield from ("--symlink", f"usr/{name}", f"/{name}")
    yield from ("--perms", "0755", "--dir", "/etc")
    for name in ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    for name in ("passwd", "group", "hosts"):
        yield from ("--ro-bind", str(root / "etc" / name), f"/etc/{name}")
    if not sys.base_prefix.startswith("/usr"):
        yield from _bind(sys.base_prefix, sys.base_prefix)
    yield from ("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev")


def _packages(spec: SandboxSpec) -> Iterator[str]:
    first, *others = site_directories()
    for directory in others:
        yield from ("--tmpfs", directory, "--remount-ro", directory)
    if spec.environment.packages is None:
        yield from ("--tmpfs", first, "--remount-ro", first)
    else:
        yield from ("--ro-bind", str(bound(spec.environment.packages)), first)


def _mounts(spec: SandboxSpec) -> Iterator[str]:
    for mount in spec.mounts:
        yield from _bind(str(bound(mount.source)), mount.target)
        for alias in mount.aliases:
            yield from (*_parents(alias), "--symlink", mount.target, alias)


def _bind(source: str, target: str) -> Iterator[str]:
    yield from (*_parents(target), "--ro-bind", source, target)


def _parents(target: str) -> Iterator[str]:
    """bubblewrap gives the parents that it makes the mode 0700 when those of the source are closed."""
    for parent in reversed(Path(target).parents[:-1]):
        yield from ("--perms", "0755", "--dir", str(parent))


def _own(root: Path) -> Iterator[str]:
    yield from _bind(str(root / "guest.pyz"), GUEST)
    for name, target in WRITABLE.items():
        yield from ("--bind", str(root / name), target)
    yield from ("--remount-ro", "/dev", "--remount-ro", "/")
