"""Machines of the stand-in for E2B: namespaces of this host with places and control groups of their own."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "pids", "cpu")
_PREFIX = "skillyard-tests-e2b-"
_TOOLS = ("bwrap", "nsenter", "setpriv", "unshare")
_HIDDEN = ("/run", "/tmp", "/opt", "/root", "/home", "/srv", "/var/tmp", "/work")
_BOUND_S = 30.0
_LOOK_S = 0.002
"""The kernel ends a machine in a few milliseconds; a longer look would be counted as cost of what runs in it."""


def missing() -> str:
    """Why no machine can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "machines of the stand-in for E2B are made by root"
    absent = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"{', '.join(absent)} not installed" if absent else ""


def leftovers(server: int) -> list[str]:
    """Control groups of machines of the stand-in with that process id."""
    return [str(path) for root in _roots() for path in root.glob(f"{_PREFIX}{server}-*")]


class Machine:
    """A machine by its process 1. ``start`` makes it, ``kill`` leaves nothing of it."""

    def __init__(self, id: str, baked: str = "", node: str = "", local: str = "") -> None:
        """``baked`` and ``local`` are directories that it has as /opt/skillyard and /usr/local.

        ``node`` is a program that it has as node.
        """
        self.id, self._baked, self._node, self._local = id, baked, node, local
        self._groups = [root / f"{_PREFIX}{os.getpid()}-{id}" for root in _roots()]
        self._keeper: asyncio.subprocess.Process | None = None
        self.pid = 0

    async def start(self) -> None:
        for group in self._groups:
            group.mkdir()
        leaves = self._groups
        if self._version_2:
            leaves = [group / "machine" for group in self._groups]
            for leaf in leaves:
                leaf.mkdir()
        join = [f"echo 0 > {leaf}/cgroup.procs" for leaf in leaves]
        binds = [f"mount --bind {group} {group.parent}" for group in self._groups]
        if self._version_2:
            binds = [f"mount --bind {self._groups[0]} {GROUPS}"]
        baked = [f"mount --bind {self._baked} /mnt"] if self._baked else []
        node = [f"mount --bind {self._node} $(command -v node)"] if self._node else []
        local = [f"mount --bind {self._local} /usr/local"] if self._local else []
        inside = [*binds, *baked, *node, *local, "mount -o remount,bind,ro /"]
        inside += [f"mount -t tmpfs -o mode=0755 tmpfs {place}" for place in _HIDDEN if Path(place).is_dir()]
        if self._baked:
            inside += ["mkdir -p /opt/skillyard", "mount --move /mnt /opt/skillyard"]
        inside += ["chmod 1777 /tmp /var/tmp", "ip link set lo up", "echo ready", "exec tail -f /dev/null"]
        words = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"]
        words += ["--mount-proc", "/bin/sh", "-ec", "; ".join(inside)]
        script = "; ".join([*join, 'exec "$@"'])
        self._keeper = await asyncio.create_subprocess_exec(
            "/bin/sh", "-ec", script, "machine", *words,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, env=_ENVIRONMENT,
        )  # fmt: skip
        assert self._keeper.stdout is not None
        async with asyncio.timeout(_BOUND_S):
            if await self._keeper.stdout.readline() != b"ready\n":
                raise RuntimeError("a machine did not start")
        children = Path(f"/proc/{self._keeper.pid}/task/{self._keeper.pid}/children").read_text().split()
        self.pid = int(children[0])

    @property
    def _version_2(self) -> bool:
        return (GROUPS / "cgroup.controllers").exists()

    def entered(self, *words: str) -> list[str]:
        """The command that runs ``words`` in the machine."""
        return ["nsenter", "-t", str(self.pid), "-m", "-p", "-n", "-u", "-i", "-C", "--", *words]

    async def begin(self, start: str, ready: str, then: str) -> None:
        """Has a command at work in it, as root; waits until another one passes, and runs the third."""
        begun = await self._silent("/bin/bash", "-l", "-c", start)
        async with asyncio.timeout(_BOUND_S):
            while begun.returncode is None:
                if await (await self._silent(ready)).wait() == 0:
                    await (await self._silent("/bin/bash", "-c", then)).wait()
                    return
        raise RuntimeError(f"the start command ended with {begun.returncode}")

    async def _silent(self, *words: str) -> asyncio.subprocess.Process:
        nothing = asyncio.subprocess.DEVNULL
        entered = self.entered("env", *(f"{name}={value}" for name, value in _ENVIRONMENT.items()), *words)
        return await asyncio.create_subprocess_exec(*entered, stdin=nothing, stdout=nothing, stderr=nothing)

    async def kill(self) -> None:
        if self._keeper is not None:
            with suppress(ProcessLookupError):
                self._keeper.kill()
            await self._keeper.wait()
            self._keeper = None
        async with asyncio.timeout(_BOUND_S):
            for group in self._groups:
                while group.exists() and not _removed(group):
                    await asyncio.sleep(_LOOK_S)


_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


def _roots() -> Iterator[Path]:
    if (GROUPS / "cgroup.controllers").exists():
        yield GROUPS
    else:
        yield from (GROUPS / name for name in CONTROLLERS if (GROUPS / name).is_dir())


def _removed(group: Path) -> bool:
    """Whether a group and those below it could be removed: the kernel ends processes in its own time."""
    try:
        for below in sorted(group.rglob("*"), reverse=True):
            if below.is_dir():
                below.rmdir()
        group.rmdir()
    except OSError:
        with suppress(OSError):  # what is looked at may be gone by now, groups as well as processes
            for procs in group.rglob("cgroup.procs"):
                for pid in _text(procs).split():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), 9)
        return False
    return True


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def sweep(server: int) -> None:
    """Removes what a killed stand-in left."""
    for path in leftovers(server):
        _removed(Path(path))
