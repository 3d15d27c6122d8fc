"""The maker of a sandbox ends the server's daemon and places content, then is the agent.

It is a child of the door (:mod:`skillyard.sandbox.opensandbox.http_entry`) with all rights of its container, and comes
as a word of the order. It imports the standard library and what was uploaded as the guest.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Callable
    from typing import IO, Any

    from skillyard.domain.package.platforms import interpreter  # its text comes behind this one
else:
    import _signal as signal

ROOT = "/run/skillyard"
PRIVATE = f"{ROOT}/private"
CONTENT = f"{PRIVATE}/content"
_ENDS_S, _SOON_S = 10.0, 0.002


def make(
    order: dict[str, Any], behind: socket.socket, listener: socket.socket, listening: Callable[[], set[str]]
) -> None:
    """Makes the sandbox, tells of it ``behind`` itself, and serves ``listener`` as its agent.

    A failure is told in words. ``listening`` gives the sockets on the port of execd.
    """
    from skillyard_guest.agent import jsontext  # type: ignore[import-not-found]  # in the guest
    from skillyard_guest.agent.command import main as agent  # type: ignore[import-not-found]

    try:
        packages, filters = _packages(), order["filters"].get(os.uname().machine)
        if filters is None:
            raise ValueError(f"no filter of system calls is known for {os.uname().machine}")
        _end_others(listening)
        loader: dict[str, Any] = {"__name__": "loader"}
        exec(order["loader"], loader)  # noqa: S102 - our server's words
        _place(order, packages, loader["take"])
        for target, seal in order["seals"]:
            if loader["seal"](target or packages) != seal:
                raise ValueError(f"other content lies at {target or packages} than was sent")
        if order["keeps"]:
            behind.sendall(jsontext.encode(_facts(packages)))
            behind.close()
            while True:
                signal.pause()
        _open(order["uid"])
        settings = order["agent"] | {"filters": filters, "user": [order["uid"]] * 2, "spool": f"{PRIVATE}/spool"}
        os.mkdir(settings["spool"], 0o700)
        told = jsontext.encode(_facts(packages))
    except (IndexError, KeyError, OSError, TypeError, ValueError) as error:
        behind.sendall(f"{type(error).__name__}: {error}"[:500].encode("utf-8", "replace"))
        return
    given = os.memfd_create("settings")
    os.write(given, jsontext.encode(settings) + b"\n")
    os.lseek(given, 0, os.SEEK_SET)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, fd in enumerate((given, nothing, nothing)):
        os.dup2(fd, number)
    os.chdir("/")
    os.environ.clear()
    behind.sendall(told)
    behind.close()
    # This interpreter does it: another would start and import for as long again.
    agent(["listen", f"fd:{listener.detach()}"], f"{ROOT}/guest.pyz")


def _end_others(listening: Callable[[], set[str]]) -> None:
    """Ends all but this process and those that it comes from: execd, which may not listen yet.

    Raises ValueError when one lives on.
    """
    until, spared, at = time.monotonic() + _ENDS_S, set[int](), os.getpid()
    while at:
        spared.add(at)
        at = _of(at)[1]
    while (others := _living() - spared) or listening():
        for pid in others:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > until:
            raise ValueError("execd cannot be ended: programs could command it")
        time.sleep(_SOON_S)


def _living() -> set[int]:
    pids = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
    return {pid for pid in pids if _of(pid)[0] not in ("Z", "")}


def _of(pid: int) -> tuple[str, int]:
    """Returns the state and the parent of a process; 0 for a parent that is not in here."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
    except OSError:  # it has ended
        return "", 0
    return state, int(parent)


def _facts(packages: str) -> dict[str, Any]:
    return {
        "root": os.geteuid() == 0,
        "machine": os.uname().machine,
        "python": list(sys.version_info[:2]),
        "packages": packages,
        "interpreter": interpreter(),
        "processors": len(os.sched_getaffinity(0)),
        "spaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")},
    }


def _packages() -> str:
    """Returns where interpreters of this image look for packages."""
    import site

    own = os.path.dirname(os.path.dirname(sys.executable))
    if os.path.exists(f"{own}/pyvenv.cfg"):  # site tells that, which this interpreter did not run
        sys.prefix = own
    return site.getsitepackages([sys.prefix])[0]


def _place(order: dict[str, Any], packages: str, take: Callable[[str, IO[bytes]], None]) -> None:
    """Puts content where it is wanted, for root to change and everybody to read."""
    into = f"{ROOT}/content"
    os.makedirs(into, 0o755, exist_ok=True)
    if os.path.exists(CONTENT):
        with open(CONTENT, "rb") as source:
            take(into, source)
        os.unlink(CONTENT)
    mounts = list(order["mounts"])
    if order["packages"]:
        if os.path.exists(packages):
            import shutil

            shutil.move(packages, f"{PRIVATE}/replaced")
        mounts.append([order["packages"], packages])
    for name, target, *aliases in mounts:
        _show(f"{into}/{name}", target)
        for alias in aliases:
            _parents(alias)
            os.symlink(target, alias)


def _open(uid: int) -> None:
    """Makes the places of a user, and closes others."""
    os.makedirs("/workspace", exist_ok=True)
    os.chown("/workspace", uid, uid)
    os.chmod("/workspace", 0o700)
    for place in ("/tmp", "/dev/shm"):  # noqa: S108 - of the sandbox
        os.makedirs(place, exist_ok=True)
        os.chmod(place, 0o1777)  # noqa: S103 - of the sandbox
    _close_others()
    _name(uid)


def _name(uid: int) -> None:
    """Adds the user of programs to those that the image knows."""
    for file, line in (("passwd", f"sandbox:x:{uid}:{uid}::/workspace:/bin/sh"), ("group", f"sandbox:x:{uid}:")):
        with open(f"/etc/{file}", "a+", encoding="utf-8", errors="surrogateescape") as known:
            known.seek(0)
            ends = known.read()[-1:] in ("", "\n")
            known.write(f"{'' if ends else chr(10)}{line}\n")


def _close_others() -> None:
    """Takes from programs terminals, and the right to write elsewhere, as in /var/tmp."""
    for parent in ("/", "/var", "/run"):
        for place in os.scandir(parent):
            if not place.is_dir(follow_symlinks=False) or place.path in ("/tmp", "/workspace"):  # noqa: S108 - inside
                continue
            if (mode := place.stat().st_mode) & 0o002:
                os.chmod(place.path, mode & 0o7775)
    if os.path.exists("/dev/pts/ptmx"):  # of the container's own file system of terminals
        os.chmod("/dev/pts/ptmx", 0)


def _show(source: str, target: str) -> None:
    _parents(target)
    if os.path.isdir(source):
        import shutil

        shutil.copytree(source, target, symlinks=True, copy_function=os.link)
    else:
        os.link(source, target)


def _parents(target: str) -> None:
    at = ""
    for name in target.strip("/").split("/")[:-1]:
        at = f"{at}/{name}"
        if not os.path.exists(at):
            os.mkdir(at, 0o755)
