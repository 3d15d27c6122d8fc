"""The stage: a root of our own in which srt runs, and the command that starts it there.

srt shows the whole host read-only and has no way to show a file under another path. So it runs in a root that
bubblewrap makes of programs, libraries, mounts and empty places. The stage has namespaces of its own, those for IPC and
the host name among them. srt makes others inside for users, processes, mounts and network, and filters system calls.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.sandbox.content import bound
from skillyard.sandbox.srt import tools
from skillyard.sandbox.srt.tools import Tools
from skillyard.values import dataclass

INNER = 1000
"""The user id inside the stage, where the server is an ordinary user."""
PROXY_PORT = 3130
"""Where proxy clients find the gate: srt's own relays hold the usual port."""
GUEST = "/run/srt/guest.pyz"
SETTINGS = "/run/srt/settings.json"
WRAPPER = "/run/srt/bwrap"
_NODE, _MODULES = "/run/srt/node", "/run/srt/node_modules"
_PLACES = "/run/places"
_TEMPORARY = "/run/temporary"
_ETC = ("ssl", "ca-certificates", "alternatives", "ld.so.cache", "localtime", "mime.types")
_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_CHOWN", "CAP_SYS_ADMIN")
_BEGIN = '#!/bin/bash -p\nset -eu\nargs=()\nwhile [ "$1" != -- ]; do args+=("$1"); shift; done\n'
_SHOWN = {"workspace": "/workspace", "tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108 - directories of the sandbox
"""The writable places of the sandbox by their directories below :data:`_PLACES`."""
_OVER = (
    *(word for name, place in _SHOWN.items() for word in ("--bind", f"{_PLACES}/{name}", place)),
    *("--tmpfs", _PLACES, "--remount-ro", _PLACES, "--remount-ro", "/dev"),
)


@dataclass(frozen=True, slots=True)
class Running:
    """The run directory of one sandbox and, where the server is root, its user id.

    ``counter`` is the file that counts kills for want of memory, and its place inside.
    """

    place: Path
    uid: int | None
    counter: tuple[str, str] | None = None


def write_files(place: Path, uid: int, guest: bytes) -> None:
    """Writes the files that the stage shows, among them a bubblewrap that closes more.

    srt leaves /dev writable and without a bound, so the last part of its command line is ours: the three writable
    places come from one file system of a fixed size, and /dev becomes read-only.
    """
    files = {
        "guest.pyz": guest,
        "passwd": f"sandbox:x:{uid}:{uid}::/workspace:/bin/sh\n".encode(),
        "group": f"sandbox:x:{uid}:\n".encode(),
        "hosts": b"127.0.0.1 localhost sandbox\n::1 localhost\n",
        "bwrap": f'{_BEGIN}exec bwrap "${{args[@]}}" {shlex.join(_OVER)} "$@"\n'.encode(),
    }
    for name, data in files.items():
        (place / name).write_bytes(data)
        (place / name).chmod(0o555 if name == "bwrap" else 0o444)


def command(running: Running, found: Tools, spec: SandboxSpec, program: Sequence[str], *, info: int) -> list[str]:
    """Returns the command that runs ``program`` in srt on a stage. Its process 1 is told to the descriptor ``info``."""
    return [
        tools.helper("bwrap"),
        *("--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--unshare-net"),
        *("--hostname", "sandbox", "--clearenv", "--as-pid-1"),
        *_user(running),
        *_system(running.place),
        *_packages(spec),
        *_tools(running.place, found),
        *_mounts(spec),
        *(_bind(*running.counter) if running.counter else ()),
        *_places(spec),
        *("--chdir", _TEMPORARY, "--info-fd", str(info), "--"),
        *("/bin/sh", "-c", _script(running), "stage"),
        *(_NODE, f"{_MODULES}/{found.script.relative_to(found.modules)}", "--settings", SETTINGS),
        *("-c", f"exec {shlex.join(program)}"),
    ]


def environment() -> dict[str, str]:
    """Returns the small environment that every program gets."""
    return {"PATH": f"{Path(tools.python()).parent}:/usr/bin:/bin", "HOME": "/workspace", "LANG": "C.UTF-8"}


def _script(running: Running) -> str:
    """Makes the places for files and, as root, becomes the sandbox's user."""
    ours = " ".join(f"{_PLACES}/{name}" for name in _SHOWN)
    # bubblewrap covers parts of /proc where root could write; srt can then mount none of its own.
    owned = f"mount -t proc proc /proc; chown {running.uid}:{running.uid} {ours} {_TEMPORARY}; "
    own = "" if running.uid is None else owned
    nothing = "--clear-groups --bounding-set=-all --inh-caps=-all --ambient-caps=-all --no-new-privs"
    become = "" if running.uid is None else f"setpriv --reuid {running.uid} --regid {running.uid} {nothing} -- "
    variables = f"PATH={tools.PATH} HOME={_TEMPORARY} TMPDIR={_TEMPORARY} LANG=C.UTF-8"
    return f'set -e; mkdir -m 0700 {ours}; {own}exec {become}env -i {variables} "$@"'


def _user(running: Running) -> Iterator[str]:
    yield from ("--cap-drop", "ALL")
    if running.uid is None:
        yield from ("--unshare-user", "--uid", str(INNER), "--gid", str(INNER))
    else:
        yield from (word for name in _CAPABILITIES for word in ("--cap-add", name))


def _system(place: Path) -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            yield from ("--symlink", f"usr/{name}", f"/{name}")
    yield from ("--perms", "0755", "--dir", "/etc")
    for name in _ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    for name in ("passwd", "group", "hosts"):
        yield from ("--ro-bind", str(place / name), f"/etc/{name}")
    if not sys.base_prefix.startswith("/usr"):
        yield from _bind(sys.base_prefix, sys.base_prefix)
    yield from ("--proc", "/proc", "--dev", "/dev")


def _packages(spec: SandboxSpec) -> Iterator[str]:
    """Hides the host's packages, and shows those of the run in their place."""
    first, *others = tools.site_directories()
    for directory in others:
        yield from ("--tmpfs", directory, "--remount-ro", directory)
    if spec.environment.packages is None:
        yield from ("--tmpfs", first, "--remount-ro", first)
    else:
        yield from ("--ro-bind", str(bound(spec.environment.packages)), first)


def _tools(place: Path, found: Tools) -> Iterator[str]:
    yield from (*_bind(str(found.node), _NODE), *_bind(str(found.modules), _MODULES))
    for name, target in (("guest.pyz", GUEST), ("settings.json", SETTINGS), ("bwrap", WRAPPER)):
        yield from ("--ro-bind", str(place / name), target)


def _mounts(spec: SandboxSpec) -> Iterator[str]:
    for mount in spec.mounts:
        yield from _bind(str(bound(mount.source)), mount.target)
        for alias in mount.aliases:
            yield from (*_parents(alias), "--symlink", mount.target, alias)


def _bind(source: str, target: str) -> Iterator[str]:
    yield from (*_parents(target), "--ro-bind", source, target)


def _parents(target: str) -> Iterator[str]:
    """Yields the parents, which bubblewrap would close where those of the source are closed."""
    for parent in reversed(Path(target).parents[:-1]):
        yield from ("--perms", "0755", "--dir", str(parent))


def _places(spec: SandboxSpec) -> Iterator[str]:
    yield from ("--size", str(spec.limits.disk_mb << 20), "--perms", "0755", "--tmpfs", _PLACES)
    yield from ("--size", str(1 << 20), "--perms", "0700", "--tmpfs", _TEMPORARY)
    for name in ("/workspace", "/tmp"):  # noqa: S108 - a directory of the sandbox
        yield from ("--perms", "0700", "--dir", name)
    yield from ("--remount-ro", "/")
