"""The stage: it runs as root in the machine and starts the agent behind walls.

The machine belongs to the provider, and to one sandbox. In it a child of the stage leaves for namespaces of its own and
a root of programs, libraries, content and empty places, without a network, and turns into the agent: process 1 there,
as a user without privileges. Its socket and the ends of its channels are outside, where foreign code reaches neither.
This file is sent as it is, so it imports the standard library and the agent's own modules only::

    python3 -I -S stage.py look          tell what the machine has, as one JSON object; fail where a tool is missing
    python3 -I -S stage.py start GUEST   make the sandbox that standard input describes and tell so in one line; then
                                         be the end of the first channel to its agent. GUEST is the file of its guest

The description is JSON behind its length, which has eight hexadecimal digits; content may follow. Every start of a
sandbox waits for these imports, so there are few: of the standard library those that are written in C, and the agent's
own reader of JSON.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from skillyard.domain.package.platforms import interpreter  # its text is put into this one
else:
    import _socket as socket

ROOT = "/run/skillyard"
"""Everything of ours that is made in a machine."""
BAKED = "/opt/skillyard"
"""Everything of ours that a template brings along."""
SOCKET = f"{ROOT}/agent.sock"
ARCHIVE, CONTENT = f"{ROOT}/archive", f"{ROOT}/content"
"""Content as it was uploaded, and unpacked."""
DIRECTORY, LINK, FILE, PROGRAM = "dlfx"
"""Kinds in the index of content."""
AGENT = f"{ROOT}/guest.pyz"
"""The guest of the agent that runs, whatever this file is later."""
PLACES = {"workspace": "/workspace", "tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108 - of the sandbox
GUEST = "/run/guest.pyz"
TOP = f"{ROOT}/root"
TOOLS = ("bash",)
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_HEAD = 8
_ETC = ("ssl", "ca-certificates", "alternatives", "ld.so.cache", "localtime", "mime.types")
_SWITCH = "passwd: files\ngroup: files\nhosts: files\n"
"""Names of hosts are asked of nobody: a name that is not there is unknown at once (nsswitch.conf(5))."""
_DEBIAN = "/usr/lib/python3/dist-packages"
_GROUPS = "/sys/fs/cgroup"
_MIB = 1 << 20
_NOSUID, _NODEV = 1 << 1, 1 << 2
_FILES_PER_MB = 1024


def main(arguments: list[str]) -> int:
    """Returns the exit status. A failure is told as ``{"error": …}``."""
    try:
        if arguments == ["look"]:
            told = machine() | {"interpreter": interpreter()}
        elif arguments[:1] == ["start"] and len(arguments) == 2:
            told = made(inside(arguments[1], "jsontext").decode(_read(int(_read(_HEAD), 16))))
        else:
            raise ValueError("usage: stage.py look | start GUEST")
    except (ImportError, OSError, ValueError, KeyError) as error:
        told = {"error": f"{type(error).__name__}: {error}"[:500]}
    os.write(1, _encoded(told, arguments) + b"\n")
    if "error" in told or told.get("missing"):
        return 1
    return _channel() if arguments[0] == "start" else 0


def inside(guest: str, name: str) -> Any:
    """Returns a module of the agent in a guest. Raises ImportError."""
    if guest not in sys.path:
        sys.path.insert(0, guest)
    return __import__(f"skillyard_guest.agent.{name}", fromlist=("main",))


def _encoded(told: dict[str, Any], arguments: list[str]) -> bytes:
    if "pid" in told:
        return bytes(inside(arguments[1], "jsontext").encode(told))
    import json  # which takes longer than all else here

    return json.dumps(told).encode()


def _read(size: int, source: int = 0) -> bytearray:
    """Returns so many bytes of standard input, and leaves those behind them. Raises ValueError at its end."""
    found = bytearray()
    while len(found) < size:
        if not (piece := os.read(source, size - len(found))):
            raise ValueError("the order or its content did not come whole")
        found += piece
    return found


def _channel() -> int:
    """Joins standard input and output to the agent: the end of the first channel."""
    _write(f"{ROOT}/channel.pid", os.getpid())
    return int(inside(AGENT, "command").main(["text", SOCKET], AGENT))


def machine() -> dict[str, Any]:
    """Returns an account of the machine."""
    stage, compiled = f"{BAKED}/stage.py", f"{BAKED}/stage.pyc"
    return {
        "missing": _missing(),
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


def _write(path: str, value: object) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(str(value))


def _missing() -> list[str]:
    places = _ENVIRONMENT["PATH"].split(":")
    return [tool for tool in TOOLS if not any(os.access(f"{place}/{tool}", os.X_OK) for place in places)]


def made(order: dict[str, Any]) -> dict[str, Any]:
    """Makes the sandbox of an order; returns the agent's process and the limits in force.

    Raises ValueError.
    """
    if missing := _missing():
        raise ValueError(f"the template lacks {', '.join(missing)}")
    if order["filters"].get(os.uname().machine) is None:
        raise ValueError(f"no filter of system calls is known for {os.uname().machine}")
    os.makedirs(ROOT, 0o755, exist_ok=True)
    os.symlink(order["guest"], AGENT)
    _unpack(order)
    groups = _group(order["group"])
    _make_places(order)
    return {"pid": _launch(order, groups), "groups": sorted(groups)}


def _unpack(order: dict[str, Any]) -> None:
    """Unpacks content that came behind the order, or was uploaded: each below its digest."""
    os.makedirs(CONTENT, 0o755, exist_ok=True)
    if order.get("archive"):
        unpack(0)
    elif os.path.exists(ARCHIVE):
        archive = os.open(ARCHIVE, os.O_RDONLY)
        unpack(archive)
        os.close(archive)
        os.unlink(ARCHIVE)
    for source, *_ in order["mounts"]:
        _content(source)


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


def _group(wanted: dict[str, Any]) -> dict[str, str]:
    """Makes control groups with limits; returns those that could be made, by limit."""
    found: dict[str, str] = {}
    if os.path.exists(f"{_GROUPS}/cgroup.controllers"):
        group = f"{_GROUPS}/skillyard"
        limits = {
            "memory": {"memory.max": wanted["memory"], "memory.swap.max": 0, "memory.oom.group": 0},
            "pids": {"pids.max": wanted["pids"]},
            "cpus": {"cpu.max": f"{int(wanted['cpus'] * 100_000)} 100000"},
        }
        for name, controller in (("memory", "memory"), ("pids", "pids"), ("cpus", "cpu")):
            if _written(f"{_GROUPS}/cgroup.subtree_control", f"+{controller}"):
                os.makedirs(group, exist_ok=True)
                given = limits[name].items()
                if all(_written(f"{group}/{key}", value) or key == "memory.swap.max" for key, value in given):
                    found[name] = group
        return found
    settings = {
        "memory": ("memory", {"limit_in_bytes": wanted["memory"], "memsw.limit_in_bytes": wanted["memory"]}),
        "pids": ("pids", {"max": wanted["pids"]}),
        "cpus": ("cpu", {"cfs_period_us": 100_000, "cfs_quota_us": int(wanted["cpus"] * 100_000)}),
    }
    for name, (controller, values) in settings.items():
        group = f"{_GROUPS}/{controller}/skillyard"
        try:
            os.makedirs(group, exist_ok=True)
        except OSError:
            continue
        if all(_written(f"{group}/{controller}.{key}", value) or "memsw" in key for key, value in values.items()):
            found[name] = group
    return found


def _written(file: str, value: object) -> bool:
    try:
        _write(file, value)
    except OSError:
        return False
    return True


def _make_places(order: dict[str, Any]) -> None:
    """Makes the writable places, in one file system of a fixed size, and files of /etc."""
    uid, size = order["uid"], order["disk_mb"]
    places, etc = f"{ROOT}/places", f"{ROOT}/etc"
    for directory in (places, etc):
        os.makedirs(directory, 0o755, exist_ok=True)
    options = f"size={size}m,nr_inodes={max(4096, size * _FILES_PER_MB)},mode=0755"
    inside(AGENT, "space").mount("tmpfs", places, "tmpfs", _NOSUID | _NODEV, options)
    for name in PLACES:
        os.mkdir(f"{places}/{name}", 0o700)
        os.chown(f"{places}/{name}", uid, uid)
    files = {
        "passwd": f"sandbox:x:{uid}:{uid}::/workspace:/bin/sh\n",
        "group": f"sandbox:x:{uid}:\n",
        "hosts": f"127.0.0.1 localhost {order['host']}\n::1 localhost\n",
        "nsswitch.conf": _SWITCH,
        "nothing": "",
    }
    for name, text in files.items():
        _write(f"{etc}/{name}", text)
        os.chmod(f"{etc}/{name}", 0o444)


def _launch(order: dict[str, Any], groups: dict[str, str]) -> int:
    """Starts the agent as process 1 of its sandbox; returns its process id in the machine. Raises ValueError."""
    settings = inside(AGENT, "jsontext").encode(order["agent"] | {"filters": order["filters"][os.uname().machine]})
    told, telling = os.pipe()
    # It is made out here: a socket is listed in the network that it was made in.
    listener = socket.socket(socket.AF_UNIX)
    usual = os.umask(0o177)
    listener.bind(SOCKET)
    os.umask(usual)
    listener.listen(16)
    if child := os.fork():
        os.close(telling)
        listener.close()
        os.waitpid(child, 0)
        with os.fdopen(told, "rb") as source:
            said, _, why = source.read().decode("utf-8", "replace").partition("\n")
        if why or not said:
            raise ValueError(f"its place could not be made: {why.strip()[:300]}")
        return int(said)
    try:
        os.setsid()
        for group in sorted(set(groups.values())):
            # One thread joins a group of version 1 so without a lock of all processes.
            _write(f"{group}/tasks" if os.path.exists(f"{group}/tasks") else f"{group}/cgroup.procs", 0)
        os.makedirs(TOP)
        inside(AGENT, "space").leave(order["host"])
        if pid := os.fork():  # an orphan: it has the machine's first process as its parent
            os.write(telling, b"%d\n" % pid)
        else:
            _become_agent(order, groups, settings, listener, telling)
    except (OSError, ValueError) as error:
        os.write(telling, f"\n{type(error).__name__}: {error}".encode("utf-8", "replace"))
    finally:
        os._exit(0)


def _become_agent(
    order: dict[str, Any], groups: dict[str, str], settings: bytes, listener: socket.socket, telling: int
) -> None:
    """Turns this process, the first of its sandbox, into the agent. Raises OSError, ValueError.

    Another interpreter would start for as long again.
    """
    space = inside(AGENT, "space")
    given = os.memfd_create("settings")
    os.write(given, settings + b"\n")
    os.lseek(given, 0, os.SEEK_SET)
    log = os.open(f"{ROOT}/log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    for number, opened in enumerate((given, os.open(os.devnull, os.O_WRONLY), log)):
        os.dup2(opened, number)
    kept = sorted((listener.fileno(), telling))
    for low, high in zip((2, *kept), (*kept, 1 << 20), strict=True):
        os.closerange(low + 1, high)
    _tree(space.Tree(), order, groups).enter(TOP)
    space.become(order["uid"])
    os.environ.clear()
    for name in [name for name in sys.modules if name.startswith("skillyard_guest")]:
        del sys.modules[name]  # they would look for others of theirs in the machine
    sys.path_importer_cache.clear()
    sys.path[:] = [path for path in sys.path if not path.endswith(".pyz")]
    agent = inside(GUEST, "command")
    sys.path.remove(GUEST)
    os.close(telling)
    os._exit(agent.main(["listen", f"fd:{listener.detach()}"], GUEST))


def _tree(tree: Any, order: dict[str, Any], groups: dict[str, str]) -> Any:
    """Returns the file tree of the sandbox."""
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
    tree.system(order["masked_files"], f"{ROOT}/etc/nothing", order["masked_directories"])
    _packages(tree, order["packages"])
    for source, target, *aliases in order["mounts"]:
        tree.bind(_content(source), target)
        for alias in aliases:
            tree.link(target, alias)
    tree.bind(order["guest"], GUEST)
    for group in sorted(set(groups.values())):
        tree.bind(group, os.path.dirname(group))
    for name, target in PLACES.items():
        tree.bind(f"{ROOT}/places/{name}", target, writable=True)
    return tree


def _packages(tree: Any, name: str) -> None:
    """Shows the packages of the sandbox in the place of the interpreter's own."""
    import site

    first, *others = [directory for directory in site.getsitepackages() if os.path.isdir(directory)]
    for directory in {*others, _DEBIAN} - {first}:
        if os.path.isdir(directory):
            tree.empty(directory)
    if name:
        tree.bind(_content(name), first)
    else:
        tree.empty(first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
