"""The stage: it runs as root in the machine and starts the agent behind walls.

The machine belongs to the provider, and to one sandbox. In it a child of the stage leaves for namespaces of its own and
a root of programs, libraries, content and empty places, without a network, and turns into the agent: process 1 there,
as a user without privileges. Its socket and the ends of its channels are outside, where foreign code reaches neither.
This file is sent as it is, so it imports the standard library and the agent's own modules only::

    python3 -I -S stage.py look          tell what the machine has, as one JSON object; fail where a tool is missing
    python3 -I -S stage.py start GUEST   make the sandbox that standard input describes and tell so in one line; then
                                         be the end of the first channel to its agent. GUEST is the file of its guest
    python3 -I -S stage.py start GUEST N the same, where descriptor N has the description, and nothing else

The description is JSON behind its length, which has eight hexadecimal digits; content is in it, or follows. Every start
of a sandbox waits for these imports, so there are few: of the standard library those that are written in C, and the
agent's own reader of JSON.
"""

from __future__ import annotations

import os
import sys
from binascii import a2b_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from skillyard.domain.package.platforms import interpreter  # its text is put into this one
else:
    import _socket as socket

ROOT = "/run/skillyard"
"""Everything of ours that is made in a machine."""
BAKED = "/opt/skillyard"
"""Everything of ours that a template brings along."""
FIXED = f"{BAKED}/fixed.json"
"""The part of orders that no sandbox changes, as the template's release has it."""
WAITS = f"{ROOT}/waits"
"""Directories of stages that wait (:mod:`skillyard.sandbox.e2b.waiting`): pipes, and the process id."""
ENDS = 8, 9
"""Standard input and output of a command that brings an order: its 0 and 1 are something else meanwhile."""
SOCKET = f"{ROOT}/agent.sock"
ARCHIVE, CONTENT = f"{ROOT}/archive", f"{ROOT}/content"
"""Content as it was uploaded, and unpacked."""
DIRECTORY, LINK, FILE, PROGRAM = "dlfx"
"""Kinds in the index of content."""
AGENT = f"{ROOT}/guest.pyz"
"""The guest of the agent that runs, whatever this file is later."""
PLACES = {"workspace": "/workspace", "tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108 - of the sandbox
GUEST = "/run/guest.pyz"
TOP, LOG = f"{ROOT}/root", f"{ROOT}/log"
TOOLS = ("bash",)
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_HEAD = 8
_ETC = ("ssl", "ca-certificates", "alternatives", "ld.so.cache", "localtime", "mime.types")
_SWITCH = "passwd: files\ngroup: files\nhosts: files\n"
"""Names of hosts are asked of nobody: a name that is not there is unknown at once (nsswitch.conf(5))."""
_DEBIAN = "/usr/lib/python3/dist-packages"
_WRITABLE = f"{ROOT}/places"
DONE = b"+"
_FAILURES = (ImportError, OSError, ValueError, KeyError)
_MIB = 1 << 20
_NOSUID, _NODEV, _REMOUNT = 1 << 1, 1 << 2, 1 << 5
_FILES_PER_MB = 1024


def main(arguments: list[str]) -> int:
    """Returns the exit status. A failure is told as ``{"error": …}``."""
    try:
        if arguments == ["look"]:
            told = machine() | {"interpreter": interpreter()}
        elif arguments[:1] == ["start"] and len(arguments) in (2, 3):
            text = _read(int(_read(_HEAD), 16)) if len(arguments) == 2 else _rest(int(arguments[2]))
            order = inside(arguments[1], "jsontext").decode(text)
            _end_waiting()
            return serve(made, order)
        else:
            raise ValueError("usage: stage.py look | start GUEST [DESCRIPTOR]")
    except _FAILURES as error:
        told = _failure(error)
    _say(told)
    return 1 if "error" in told or told["missing"] else 0


def serve(make: Callable[[dict[str, Any]], dict[str, Any]], order: dict[str, Any], command: int = -1) -> int:
    """Has the sandbox of an order made, and is then the end of the first channel to its agent.

    It tells of the sandbox in one line, and ends with the process of the descriptor ``command``.
    Returns the exit status.
    """
    try:
        told = make(order) | ({"interpreter": interpreter()} if order["packages"] else {})
    except _FAILURES as error:
        _say(_failure(error))
        return 1
    os.write(1, inside(AGENT, "jsontext").encode(told) + b"\n")
    write(f"{ROOT}/channel.pid", os.getpid())
    return int(inside(AGENT, "command").join_text(SOCKET, command))


def _failure(error: Exception) -> dict[str, Any]:
    return {"error": f"{type(error).__name__}: {error}"[:500]}


def _say(told: dict[str, Any]) -> None:
    import json  # which takes longer than all else here

    os.write(1, json.dumps(told).encode() + b"\n")


def inside(guest: str, name: str) -> Any:
    """Returns a module of the agent in a guest. Raises ImportError."""
    if guest not in sys.path:
        sys.path.insert(0, guest)
    return __import__(f"skillyard_guest.agent.{name}", fromlist=("main",))


def _read(size: int, source: int = 0) -> bytearray:
    """Returns so many bytes of standard input, and leaves those behind them. Raises ValueError at its end."""
    found = bytearray()
    while len(found) < size:
        if not (piece := os.read(source, size - len(found))):
            raise ValueError("the order or its content did not come whole")
        found += piece
    return found


def _rest(source: int) -> bytes:
    """Returns all that is left in a descriptor, and closes it."""
    with os.fdopen(source, "rb") as file:
        return file.read()


def machine() -> dict[str, Any]:
    """Returns an account of the machine."""
    stage, compiled = f"{BAKED}/stage.py", f"{BAKED}/stage.pyc"
    return {
        "missing": missing(),
        "root": os.geteuid() == 0,
        "boot": _text("/proc/sys/kernel/random/boot_id").strip(),
        "release": os.uname().release,
        "machine": os.uname().machine,
        "python": list(sys.version_info[:2]),
        "memory_mb": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MIB,
        "processors": len(os.sched_getaffinity(0)),
        "spaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")},
        "stage": _digest(stage) if os.path.exists(stage) else "",
        "compiled": _digest(compiled) if os.path.exists(compiled) else "",
        "fixed": _digest(FIXED) if os.path.exists(FIXED) else "",
        "guests": [name.removesuffix(".pyz") for name in _listed(f"{BAKED}/guests") if name.endswith(".pyz")],
        "content": _listed(f"{BAKED}/content"),
    }


def _listed(directory: str) -> list[str]:
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def _digest(path: str) -> str:
    import hashlib  # its library takes long to load, where nothing else needs it

    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def write(path: str, value: object) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(str(value))


def missing() -> list[str]:
    places = _ENVIRONMENT["PATH"].split(":")
    return [tool for tool in TOOLS if not any(os.access(f"{place}/{tool}", os.X_OK) for place in places)]


def made(order: dict[str, Any]) -> dict[str, Any]:
    """Makes the sandbox of an order; returns the agent's process and the limits in force.

    Raises ValueError.
    """
    return prepare(order.get("fixed") or baked()).finish(order)


def baked() -> dict[str, Any]:
    """Returns the part of orders that the template brings along. Raises OSError, ValueError."""
    import json

    fixed: dict[str, Any] = json.loads(_text(FIXED))
    return fixed


def _end_waiting() -> None:
    """Ends a stage that waits for another release's order, or has died, and clears its place."""
    for name in _listed(WAITS):
        place = f"{WAITS}/{name}"
        if not os.path.exists(f"{place}/order"):
            continue  # it serves a sandbox
        pid = _text(f"{place}/pid").strip()
        if os.path.exists(f"/proc/{pid}") and "waiting.py" in _text(f"/proc/{pid}/cmdline"):
            os.kill(int(pid), 9)
        for path in (f"{place}/order", AGENT, SOCKET):
            if os.path.lexists(path):
                os.unlink(path)


def prepare(fixed: dict[str, Any], *, ahead: bool = False) -> Prepared:
    """Makes all of a sandbox that depends on no order.

    With ``ahead`` the agent's modules for commands are imported, too. Raises ValueError.
    """
    if lacking := missing():
        raise ValueError(f"the template lacks {', '.join(lacking)}")
    if fixed["filters"].get(os.uname().machine) is None:
        raise ValueError(f"no filter of system calls is known for {os.uname().machine}")
    os.makedirs(CONTENT, 0o755, exist_ok=True)
    os.symlink(fixed["guest"], AGENT)
    groups = inside(AGENT, "space").make_groups()
    make_places(fixed)
    return _launch(fixed, groups, ahead)


class Prepared:
    """A sandbox whose process 1 waits in there, as root, for what an order alone tells. It serves one order."""

    def __init__(self, fixed: dict[str, Any], groups: dict[str, str], pid: int, ordering: int, told: int) -> None:
        self._fixed, self._groups, self._pid = fixed, groups, pid
        self._ordering, self._told = ordering, told

    def finish(self, order: dict[str, Any]) -> dict[str, Any]:
        """Makes the rest; returns the agent's process and the limits in force. Raises ValueError."""
        limits, *parts = fit(self._fixed, self._groups, order)
        for told in parts:
            text = inside(AGENT, "jsontext").encode(told)
            _send(self._ordering, b"%08x" % len(text) + text)
        os.close(self._ordering)
        hear(self._told)
        os.close(self._told)
        return {"pid": self._pid, "groups": sorted(limits)}


def fit(
    fixed: dict[str, Any], groups: dict[str, str], order: dict[str, Any]
) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """Makes what an order alone tells, outside of the sandbox.

    Returns the limits in force, what the sandbox shows and the agent's settings. Raises ValueError.
    """
    _unpack(order)
    limits = inside(AGENT, "space").limit_groups(groups, order["group"])
    _size_places(order["disk_mb"], remount=True)
    mounts = [[os.path.realpath(_content(source)), *targets] for source, *targets in order["mounts"]]
    packages = order["packages"] and os.path.realpath(_content(order["packages"]))
    settings = order["agent"] | {"filters": fixed["filters"][os.uname().machine]}
    return limits, {"mounts": mounts, "packages": packages}, settings


def _send(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


def hear(told: int) -> None:
    """Waits for a step of process 1. Raises ValueError with its reason."""
    if (said := os.read(told, 1)) != DONE:
        while piece := os.read(told, 4096):
            said += piece
        raise ValueError(f"its place could not be made: {said.decode('utf-8', 'replace').strip()[:300]}")


def _unpack(order: dict[str, Any]) -> None:
    """Unpacks content of the order, behind it or uploaded: each below its digest."""
    if order.get("packed"):
        with os.fdopen(os.memfd_create("archive"), "r+b", 0) as packed:
            packed.write(a2b_base64(order["packed"], strict_mode=True))
            packed.seek(0)
            unpack(packed.fileno())
    elif order.get("archive"):
        unpack(0)
    elif os.path.exists(ARCHIVE):
        archive = os.open(ARCHIVE, os.O_RDONLY)
        unpack(archive)
        os.close(archive)
        os.unlink(ARCHIVE)


def unpack(source: int) -> None:
    """Unpacks what a descriptor gives, as our server packed it. Raises ValueError.

    The library for archives takes longer to load than most content to unpack.
    """
    index = inside(AGENT, "jsontext").decode(_read(int(_read(_HEAD, source), 16), source))
    for name, kind, *told in index:
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError("content leads elsewhere")
        path = f"{CONTENT}/{name}"
        if kind == DIRECTORY:
            os.mkdir(path)
            os.chmod(path, 0o755)  # noqa: S103 - all of a sandbox may look into it
        elif kind == LINK:
            os.symlink(told[0], path)
        else:
            _take_file(source, path, 0o555 if kind == PROGRAM else 0o444, *told)


def _take_file(source: int, path: str, mode: int, size: int, changed: int) -> None:
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW)
    while size:
        data = memoryview(_read(min(size, _MIB), source))
        size -= len(data)
        while data:
            data = data[os.write(file, data) :]
    os.fchmod(file, mode)
    os.utime(file, (changed, changed))  # which bytecode remembers of its source
    os.close(file)


def _content(name: str) -> str:
    """Returns the place of a content. Raises ValueError where it did not come."""
    for place in (f"{BAKED}/content/{name}", f"{CONTENT}/{name}"):
        if os.path.exists(place):
            return place
    raise ValueError(f"the content {name} did not come")


def make_places(fixed: dict[str, Any]) -> None:
    """Makes the writable places, in one file system, and files of /etc."""
    uid, etc = fixed["uid"], f"{ROOT}/etc"
    for directory in (_WRITABLE, etc):
        os.makedirs(directory, 0o755, exist_ok=True)
    _size_places(1)
    for name in PLACES:
        os.mkdir(f"{_WRITABLE}/{name}", 0o700)
        os.chown(f"{_WRITABLE}/{name}", uid, uid)
        if name != "workspace":
            os.chmod(f"{_WRITABLE}/{name}", 0o1777)  # noqa: S103 - as programs expect it, and a clearing leaves it
    files = {
        "passwd": f"sandbox:x:{uid}:{uid}::/workspace:/bin/sh\n",
        "group": f"sandbox:x:{uid}:\n",
        "hosts": f"127.0.0.1 localhost {fixed['host']}\n::1 localhost\n",
        "nsswitch.conf": _SWITCH,
        "nothing": "",
    }
    for name, text in files.items():
        write(f"{etc}/{name}", text)
        os.chmod(f"{etc}/{name}", 0o444)


def _size_places(size: int, *, remount: bool = False) -> None:
    options = f"size={size}m,nr_inodes={max(4096, size * _FILES_PER_MB)},mode=0755"
    flags = _NOSUID | _NODEV | (_REMOUNT if remount else 0)
    inside(AGENT, "space").mount("tmpfs", _WRITABLE, "tmpfs", flags, options)


def _launch(fixed: dict[str, Any], groups: dict[str, str], ahead: bool) -> Prepared:
    """Starts process 1 of the sandbox, which waits for its order. Raises ValueError."""
    told, telling = os.pipe()
    ordered, ordering = os.pipe()
    listener = inside(AGENT, "space").listening(SOCKET)
    if child := os.fork():
        os.close(telling)
        os.close(ordered)
        listener.close()
        os.waitpid(child, 0)
        hear(told)
        pid = int(_read(_HEAD, told), 16)
        hear(told)
        return Prepared(fixed, groups, pid, ordering, told)
    try:
        os.setsid()
        inside(AGENT, "space").join_groups(groups)
        os.makedirs(TOP, exist_ok=True)
        inside(AGENT, "space").leave(fixed["host"])
        if pid := os.fork():  # an orphan: it has the machine's first process as its parent
            os.write(telling, DONE + b"%08x" % pid)
        else:
            _become_agent(fixed, groups, listener, (ordered, telling), ahead)
    except (ImportError, OSError, ValueError) as error:
        os.write(telling, f"\n{type(error).__name__}: {error}".encode("utf-8", "replace"))
    finally:
        os._exit(0)


def _become_agent(
    fixed: dict[str, Any], groups: dict[str, str], listener: socket.socket, ways: tuple[int, int], ahead: bool
) -> None:
    """Turns this process, the first of its sandbox, into the agent, once the order has come.

    Another interpreter would start for as long again. Raises OSError, ValueError.
    """
    ordered, telling = ways
    space = inside(AGENT, "space")
    space.keep_only(LOG, ordered, listener.fileno(), telling)
    tree = tree_of(space.Tree(), fixed, groups)
    show_processes(tree, fixed)
    tree.enter(TOP)
    guest = os.stat(GUEST)
    os.environ.clear()
    for name in [name for name in sys.modules if name.startswith("skillyard_guest")]:
        del sys.modules[name]  # they would look for others of theirs in the machine
    sys.path_importer_cache.clear()
    sys.path[:] = [path for path in sys.path if not path.endswith(".pyz")]
    inside(GUEST, "command")
    if ahead:
        inside(GUEST, "start").import_ahead()
    sys.path.remove(GUEST)
    os.write(telling, DONE)
    shown = inside(GUEST, "jsontext").decode(_read(int(_read(_HEAD), 16)))
    settings = _read(int(_read(_HEAD), 16))
    show(tree, shown, guest)
    space.become(fixed["uid"])
    be_agent(bytes(settings), listener, telling)


def be_agent(settings: bytes, listener: socket.socket, telling: int) -> None:
    """Is the agent of a place that is whole, and says so. Raises OSError."""
    given = os.memfd_create("settings")
    os.write(given, settings + b"\n")
    os.lseek(given, 0, os.SEEK_SET)
    os.dup2(given, 0)
    os.close(given)
    os.write(telling, DONE)
    os.close(telling)
    os._exit(inside(GUEST, "command").main(["listen", f"fd:{listener.detach()}"], GUEST))


def show_processes(tree: Any, fixed: dict[str, Any]) -> None:
    """Shows /proc of the process that takes this step."""
    tree.processes(fixed["masked_files"], f"{ROOT}/etc/nothing", fixed["masked_directories"])


def tree_of(tree: Any, fixed: dict[str, Any], groups: dict[str, str]) -> Any:
    """Returns the part of the sandbox's file tree that depends on no order."""
    tree.bind("/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            tree.link(f"usr/{name}", f"/{name}")
        elif os.path.exists(f"/{name}"):
            tree.bind(f"/{name}", f"/{name}")
    for name in _ETC:
        if os.path.exists(f"/etc/{name}"):
            tree.bind(f"/etc/{name}", f"/etc/{name}")
    for name in ("passwd", "group", "hosts", "nsswitch.conf"):
        tree.bind(f"{ROOT}/etc/{name}", f"/etc/{name}")
    if not sys.base_prefix.startswith("/usr"):
        tree.bind(sys.base_prefix, sys.base_prefix)
    tree.devices()
    tree.bind(fixed["guest"], GUEST)
    for group in sorted(set(groups.values())):
        tree.bind(group, os.path.dirname(group))
    return tree


def show(tree: Any, shown: dict[str, Any], guest: os.stat_result) -> None:
    """Shows packages, content and the writable places, and leaves the machine's tree for good.

    Raises OSError, ValueError: where the file of the guest would be another, too.
    """
    _packages(tree, shown["packages"])
    for source, target, *aliases in shown["mounts"]:
        tree.bind(source, target)
        for alias in aliases:
            tree.link(target, alias)
    for name, target in PLACES.items():
        tree.bind(f"{_WRITABLE}/{name}", target, writable=True)
    tree.seal()
    if not os.path.samestat(guest, os.stat(GUEST)):
        raise ValueError("content hides what is ours")


def _packages(tree: Any, source: str) -> None:
    """Shows the packages of the sandbox in the place of the interpreter's own."""
    import site

    places = [directory for directory in site.getsitepackages() if os.path.isdir(directory)]
    if not places:
        raise ValueError(f"its Python lacks a directory for packages: {site.getsitepackages()[0]}")
    first, *others = places
    for directory in {*others, _DEBIAN} - {first}:
        if os.path.isdir(directory):
            tree.empty(directory)
    if source:
        tree.bind(source, first)
    else:
        tree.empty(first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
