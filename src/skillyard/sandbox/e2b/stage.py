"""The stage: it runs as root in the machine and starts the agent behind walls.

The machine belongs to the provider, and to one sandbox. In it bubblewrap makes a root of programs, libraries, content
and empty places, with namespaces of its own and without a network. The agent is process 1 there, as a user without
privileges; its socket and the ends of its channels are outside, where foreign code reaches neither. This file is sent
as it is, so it imports the standard library only::

    python3 -I -S stage.py look          tell what the machine has, as one JSON object; fail where a tool is missing
    python3 -I -S stage.py start         make the sandbox that standard input describes and tell so in one line; then
                                         be the end of the first channel to its agent

The description is JSON behind its length, which has eight hexadecimal digits. Every start of a sandbox waits for these
imports, so there are few.
"""

from __future__ import annotations

import importlib
import json
import os
import site
import socket
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ROOT = Path("/run/skillyard")
"""Everything of ours that is made in a machine."""
BAKED = Path("/opt/skillyard")
"""Everything of ours that a template brings along."""
SOCKET = ROOT / "agent.sock"
AGENT = ROOT / "guest.pyz"
"""The guest of the agent that runs, whatever this file is later."""
PLACES = {"workspace": "/workspace", "tmp": "/tmp", "shm": "/dev/shm"}  # noqa: S108 - of the sandbox
GUEST = "/run/guest.pyz"
TOOLS = ("bwrap", "setpriv", "mount")
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_HEAD = 8
_ETC = ("ssl", "ca-certificates", "alternatives", "ld.so.cache", "localtime", "mime.types")
_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
_DEBIAN = "/usr/lib/python3/dist-packages"
_GROUPS = Path("/sys/fs/cgroup")
_MIB = 1 << 20
_FILES_PER_MB = 1024


def main(arguments: list[str]) -> int:
    """Returns the exit status. A failure is told as ``{"error": …}``."""
    try:
        if arguments == ["look"]:
            told = machine()
        elif arguments == ["start"]:
            told = _made(json.loads(_read(int(_read(_HEAD), 16))))
        else:
            raise ValueError("usage: stage.py look | start")
    except (OSError, ValueError, KeyError) as error:
        told = {"error": f"{type(error).__name__}: {error}"[:500]}
    print(json.dumps(told), flush=True)  # noqa: T201 - this is the answer
    if "error" in told or told.get("missing"):
        return 1
    return _channel() if arguments == ["start"] else 0


def _read(size: int) -> bytes:
    """Returns so many bytes of standard input, and leaves those behind them. Raises ValueError at its end."""
    found = b""
    while len(found) < size:
        if not (piece := os.read(0, size - len(found))):
            raise ValueError("the order did not come whole")
        found += piece
    return found


def _channel() -> int:
    """Joins standard input and output to the agent: the end of the first channel."""
    (ROOT / "channel.pid").write_text(str(os.getpid()))
    sys.path.insert(0, str(AGENT))
    agent = importlib.import_module("skillyard_guest.agent.command")
    return int(agent.main(["text", str(SOCKET)], str(AGENT)))


def machine() -> dict[str, Any]:
    """Returns an account of the machine."""
    stage = BAKED / "stage.py"
    return {
        "missing": _missing(),
        "root": os.geteuid() == 0,
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "release": os.uname().release,
        "machine": os.uname().machine,
        "python": list(sys.version_info[:2]),
        "memory_mb": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MIB,
        "processors": len(os.sched_getaffinity(0)),
        "spaces": {path.name: str(path.readlink()) for path in Path("/proc/self/ns").iterdir()},
        "stage": _digest(stage) if stage.exists() else "",
        "guests": sorted(path.stem for path in BAKED.glob("guests/*.pyz")),
        "content": sorted(path.name for path in BAKED.glob("content/*")),
    }


def _digest(path: Path) -> str:
    import hashlib  # its library takes long to load, where nothing else needs it

    return hashlib.sha256(path.read_bytes()).hexdigest()


def _missing() -> list[str]:
    places = _ENVIRONMENT["PATH"].split(":")
    return [tool for tool in TOOLS if not any(os.access(f"{place}/{tool}", os.X_OK) for place in places)]


def start(at: Path) -> dict[str, Any]:
    """Makes the sandbox of an order; returns the agent's process and the limits in force.

    Raises ValueError.
    """
    order = json.loads(at.read_text())
    at.unlink()
    return _made(order)


def _made(order: dict[str, Any]) -> dict[str, Any]:
    if missing := _missing():
        raise ValueError(f"the template lacks {', '.join(missing)}")
    if order["filters"].get(os.uname().machine) is None:
        raise ValueError(f"no filter of system calls is known for {os.uname().machine}")
    ROOT.mkdir(mode=0o755, parents=True, exist_ok=True)
    _unpack(order)
    AGENT.symlink_to(order["guest"])
    groups = _group(order["group"])
    _make_places(order)
    return {"pid": _launch(order, groups), "groups": sorted(groups)}


def _unpack(order: dict[str, Any]) -> None:
    """Unpacks what was uploaded: each below the digest of its content."""
    archive, into = ROOT / "content.tar", ROOT / "content"
    into.mkdir(mode=0o755, exist_ok=True)
    if archive.exists():
        import tarfile  # most sandboxes do not wait for it

        try:
            with tarfile.open(archive) as packed:
                if hasattr(tarfile, "data_filter"):
                    packed.extraction_filter = staticmethod(tarfile.tar_filter)
                packed.extractall(into)  # noqa: S202 - it is made by our server, of content that was checked
        except tarfile.TarError as error:
            raise ValueError(f"the content is damaged: {error}") from None
        archive.unlink()
    for source, *_ in order["mounts"]:
        _content(source)


def _content(name: str) -> str:
    """Returns the place of a content. Raises ValueError where it did not come."""
    for place in (BAKED / "content" / name, ROOT / "content" / name):
        if place.exists():
            return str(place)
    raise ValueError(f"the content {name} did not come")


def _group(wanted: dict[str, Any]) -> dict[str, Path]:
    """Makes control groups with limits; returns those that could be made, by limit."""
    found: dict[str, Path] = {}
    if (_GROUPS / "cgroup.controllers").exists():
        group = _GROUPS / "skillyard"
        limits = {
            "memory": {"memory.max": wanted["memory"], "memory.swap.max": 0, "memory.oom.group": 0},
            "pids": {"pids.max": wanted["pids"]},
            "cpus": {"cpu.max": f"{int(wanted['cpus'] * 100_000)} 100000"},
        }
        for name, controller in (("memory", "memory"), ("pids", "pids"), ("cpus", "cpu")):
            if _written(_GROUPS / "cgroup.subtree_control", f"+{controller}"):
                group.mkdir(exist_ok=True)
                if all(_written(group / key, value) or key == "memory.swap.max" for key, value in limits[name].items()):
                    found[name] = group
        return found
    settings = {
        "memory": ("memory", {"limit_in_bytes": wanted["memory"], "memsw.limit_in_bytes": wanted["memory"]}),
        "pids": ("pids", {"max": wanted["pids"]}),
        "cpus": ("cpu", {"cfs_period_us": 100_000, "cfs_quota_us": int(wanted["cpus"] * 100_000)}),
    }
    for name, (controller, values) in settings.items():
        group = _GROUPS / controller / "skillyard"
        try:
            group.mkdir(exist_ok=True)
        except OSError:
            continue
        if all(_written(group / f"{controller}.{key}", value) or "memsw" in key for key, value in values.items()):
            found[name] = group
    return found


def _written(file: Path, value: object) -> bool:
    try:
        file.write_text(str(value))
    except OSError:
        return False
    return True


def _make_places(order: dict[str, Any]) -> None:
    """Makes the writable places, in one file system of a fixed size, and files of /etc."""
    uid, size = order["uid"], order["disk_mb"]
    places, etc = ROOT / "places", ROOT / "etc"
    for directory in (places, etc):
        directory.mkdir(mode=0o755, exist_ok=True)
    options = f"size={size}m,nr_inodes={max(4096, size * _FILES_PER_MB)},mode=0755,nosuid,nodev"
    mount = os.posix_spawnp("mount", ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(places)], _ENVIRONMENT)
    if status := os.waitpid(mount, 0)[1]:
        raise OSError(f"mount ended with status {os.waitstatus_to_exitcode(status)}")
    for name in PLACES:
        (places / name).mkdir(mode=0o700)
        os.chown(places / name, uid, uid)
    files = {
        "passwd": f"sandbox:x:{uid}:{uid}::/workspace:/bin/sh\n",
        "group": f"sandbox:x:{uid}:\n",
        "hosts": f"127.0.0.1 localhost {order['host']}\n::1 localhost\n",
        "nothing": "",
    }
    for name, text in files.items():
        (etc / name).write_text(text)
        (etc / name).chmod(0o444)


def _launch(order: dict[str, Any], groups: dict[str, Path]) -> int:
    """Starts the agent as process 1 of its sandbox; returns its process id in the machine."""
    machine = os.uname().machine
    told, info = os.pipe()
    settings = order["agent"] | {"filters": order["filters"][machine]}
    with (
        socket.socket(socket.AF_UNIX) as listener,
        (ROOT / "settings").open("w+b") as said,
        (ROOT / "log").open("wb") as log,
        os.fdopen(told, "rb") as telling,
    ):
        usual = os.umask(0o177)
        listener.bind(str(SOCKET))
        os.umask(usual)
        listener.listen(16)
        (ROOT / "settings").unlink()
        said.write(json.dumps(settings).encode() + b"\n")
        said.seek(0)
        agent = [sys.executable, "-I", "-S", GUEST, "agent", "listen", f"fd:{listener.fileno()}"]
        words = [*_words(order, groups, info), "--", *_become(order["uid"]), *agent]
        given = {0: said.fileno(), 1: os.open(os.devnull, os.O_WRONLY), 2: log.fileno()}
        _apart(words, sorted(set(groups.values())), given, (listener.fileno(), info))
        os.close(info)
        text = telling.read()
    try:
        return int(json.loads(text)["child-pid"])
    except ValueError:
        raise ValueError(f"bubblewrap failed: {(ROOT / 'log').read_text('utf-8', 'replace')[:300]}") from None


def _apart(words: list[str], groups: list[Path], given: dict[int, int], kept: tuple[int, ...]) -> None:
    """Starts a command in control groups and a session of its own, as an orphan."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            for group in groups:
                (group / "cgroup.procs").write_text("0")
            for number, opened in given.items():
                os.dup2(opened, number)
            for opened in kept:
                os.set_inheritable(opened, True)
            os.execvpe(words[0], words, _ENVIRONMENT)  # noqa: S606
    finally:
        os._exit(0)


def _words(order: dict[str, Any], groups: dict[str, Path], info: int) -> Iterator[str]:
    """Yields the command line of bubblewrap up to the program."""
    yield from ("bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
    yield from ("--hostname", order["host"], "--as-pid-1", "--clearenv", "--cap-drop", "ALL")
    for name in _CAPABILITIES:
        yield from ("--cap-add", name)
    yield from _system(order)
    yield from _packages(order["packages"])
    for source, target, *aliases in order["mounts"]:
        yield from _bind(_content(source), target)
        for alias in aliases:
            yield from (*_parents(alias), "--symlink", target, alias)
    yield from _bind(order["guest"], GUEST)
    for group in sorted(set(groups.values())):
        yield from _bind(str(group), str(group.parent))
    for name, target in PLACES.items():
        yield from ("--bind", str(ROOT / "places" / name), target)
    yield from ("--tmpfs", "/dev/pts", "--remount-ro", "/dev/pts", "--remount-ro", "/dev", "--remount-ro", "/")
    yield from ("--chdir", "/", "--info-fd", str(info))


def _become(uid: int) -> list[str]:
    user = ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    return ["setpriv", *user, "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs", "--"]


def _system(order: dict[str, Any]) -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            yield from ("--symlink", f"usr/{name}", f"/{name}")
        elif Path("/", name).exists():
            yield from ("--ro-bind", f"/{name}", f"/{name}")
    yield from ("--perms", "0755", "--dir", "/etc")
    for name in _ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    for name in ("passwd", "group", "hosts"):
        yield from ("--ro-bind", str(ROOT / "etc" / name), f"/etc/{name}")
    if not sys.base_prefix.startswith("/usr"):
        yield from _bind(sys.base_prefix, sys.base_prefix)
    yield from ("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev")
    for name in order["masked_files"]:
        if Path("/proc", name).exists():
            yield from ("--ro-bind", str(ROOT / "etc" / "nothing"), f"/proc/{name}")
    for name in order["masked_directories"]:
        if Path("/proc", name).is_dir():
            yield from ("--tmpfs", f"/proc/{name}", "--remount-ro", f"/proc/{name}")


def _packages(name: str) -> Iterator[str]:
    """Shows the packages of the sandbox in the place of the interpreter's own."""
    first, *others = [directory for directory in site.getsitepackages() if Path(directory).is_dir()]
    for directory in {*others, _DEBIAN} - {first}:
        if Path(directory).is_dir():
            yield from ("--tmpfs", directory, "--remount-ro", directory)
    if name:
        yield from ("--ro-bind", _content(name), first)
    else:
        yield from ("--tmpfs", first, "--remount-ro", first)


def _bind(source: str, target: str) -> Iterator[str]:
    yield from (*_parents(target), "--ro-bind", source, target)


def _parents(target: str) -> Iterator[str]:
    """Yields the parents, which bubblewrap would close where those of the source are closed."""
    for parent in reversed(Path(target).parents[:-1]):
        yield from ("--perms", "0755", "--dir", str(parent))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
