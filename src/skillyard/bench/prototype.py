"""A rough prototype of a run, whose cost moves with the machine as ours does.

One interpreter makes a fresh process a job by clone(2), with all namespaces, three mounts, no capabilities and a token
filter. It has no keeper, no record, no control group and no Landlock. It speaks as :mod:`skillyard.bench.at_work` does;
its argument is the number of processes to make ahead. It needs root and x86_64.
"""

import array
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_libc = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter lock: a clone comes back into a held one
_api = ctypes.pythonapi
_CLONE, _PIVOT_ROOT, _CAPSET, _MOUNT_SETATTR = 56, 155, 126, 442
_NEWNS, _NEWNET = 0x20000, 0x40000000
_SPACES = 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | _NEWNS | _NEWNET
_NOSUID, _NODEV, _BIND, _REC, _PRIVATE = 2, 4, 4096, 16384, 1 << 18
_NOBODY = 65534
_REFUSED = (
    101, 155, 165, 166, 167, 168, 169, 175, 176, 246, 248, 249, 250, 272, 298, 304, 308, 310, 311, 312, 313, 320, 321,
    323, 425, 426, 427, 428, 429, 430, 431, 432, 433, 435, 442,
)  # fmt: skip
CODE = 'def main(args): return {"sum": sum(args["xs"])}'
ARGS = {"xs": [3, 1, 4, 1, 5, 9, 2, 6]}


def _call(name: str, *args: object) -> None:
    if _libc[name](*args) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [text.encode() if text else None for text in (source, target, kind)]
    _call("mount", *texts, ctypes.c_ulong(flags), data.encode() if data else None)


def _make_root() -> None:
    """Makes a read-only root of the system and this interpreter, once."""
    _call("unshare", _NEWNS | _NEWNET)
    _mount("none", "/", None, _REC | _PRIVATE)
    new = "/mnt"
    _mount("root", new, "tmpfs", _NOSUID | _NODEV, "mode=755")
    for path in map(Path, ("/bin", "/sbin", "/lib", "/lib64")):
        if path.is_symlink():
            Path(f"{new}{path}").symlink_to(path.readlink())
    prefixes = sorted({sys.prefix, os.path.realpath(sys.base_prefix)})
    shown = ["/usr", *(prefix for prefix in prefixes if not prefix.startswith("/usr"))]
    for name in shown:
        Path(new + name).mkdir(parents=True, exist_ok=True)
        _mount(name, new + name, None, _BIND)
    for name in ("/proc", "/tmp", "/workspace", "/dev"):  # noqa: S108
        Path(new + name).mkdir(parents=True, exist_ok=True)
    _mount("/proc", f"{new}/proc", None, _BIND | _REC)
    for name in ("null", "zero", "urandom"):
        os.close(os.open(f"{new}/dev/{name}", os.O_CREAT | os.O_WRONLY))
        _mount(f"/dev/{name}", f"{new}/dev/{name}", None, _BIND)
    for name in (*shown, ""):
        attributes = struct.pack("QQQQ", 1 | 2, 0, 0, 0)
        _call("syscall", _MOUNT_SETATTR, -100, (new + name).encode(), 0, attributes, len(attributes))
    os.chdir(new)
    _call("syscall", _PIVOT_ROOT, b".", b".")
    _call("umount2", b".", 2)
    os.chdir("/")
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    _call("prctl", 4, 1, 0, 0, 0)  # dumpable again, else /proc/self/uid_map cannot be written


def _filter() -> tuple[ctypes.Array[ctypes.c_char], ctypes.Array[ctypes.c_char]]:
    code = [(0x20, 0, 0, 0)]
    code += [(0x15, len(_REFUSED) - index, 0, number) for index, number in enumerate(_REFUSED)]
    code += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]
    raw = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    return ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(raw))), raw


def _clone() -> int:
    _api.PyOS_BeforeFork()
    pid: int = _libc.syscall(_CLONE, ctypes.c_ulong(_SPACES | signal.SIGCHLD), 0, 0, 0, 0)
    if pid:
        _api.PyOS_AfterFork_Parent()
    else:
        _api.PyOS_AfterFork_Child()
    return pid


def _write(path: str, text: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, text)
    os.close(fd)


def _confine(program: object, null: int) -> None:
    _write("/proc/self/setgroups", b"deny")
    _write("/proc/self/uid_map", b"1000 %d 1" % _NOBODY)
    _write("/proc/self/gid_map", b"1000 %d 1" % _NOBODY)
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV)
    for path in ("/tmp", "/workspace"):  # noqa: S108
        _mount("box", path, "tmpfs", _NOSUID | _NODEV, "size=64m")
    os.chdir("/workspace")
    resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
    resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
    os.dup2(null, 0)
    os.dup2(null, 1)
    _call("prctl", 38, 1, 0, 0, 0)  # no new privileges
    _call("syscall", _CAPSET, struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6))
    _call("prctl", 22, 2, program, 0, 0)  # the filter


def _take(sock: socket.socket) -> tuple[dict[str, object], int]:
    data, ancillary, _, _ = sock.recvmsg(1 << 16, socket.CMSG_SPACE(4))
    if not data:
        os._exit(0)
    fds = array.array("i")
    fds.frombytes(ancillary[0][2][:4])
    return json.loads(data), fds[0]


def _work(job: dict[str, object], fd: int, tell: int = -1) -> None:
    names: dict[str, object] = {}
    exec(str(job["code"]), names)  # noqa: S102 - a job of ours
    os.write(fd, json.dumps(names["main"](job["args"])).encode())  # type: ignore[operator]
    if tell >= 0:  # a successor is wanted only now: to make it would compete
        os.write(tell, b"x")
    os._exit(0)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def _serve_zygote(sock: socket.socket, ahead: int, parent: int) -> None:
    program, _kept = _filter()
    null = os.open("/dev/null", os.O_RDWR)
    told, tell = os.pipe()
    wanted = ahead
    while os.getppid() == parent:
        while wanted:
            wanted -= 1
            if _clone() == 0:
                os.close(told)
                _confine(program, null)
                _work(*_take(sock), tell)
        waiting = told if ahead else sock.fileno()
        for _ in select.select([waiting], [], [], 0.02)[0]:
            if ahead:
                wanted += len(os.read(told, 64))
                continue
            job, answer = _take(sock)
            if _clone() == 0:
                sock.close()
                _confine(program, null)
                _work(job, answer)
            os.close(answer)
        _reap()


def _runs(sock: socket.socket, order: dict[str, float]) -> Iterator[float]:
    """Yields the seconds of each run, as many at once as there are callers."""
    message, poll = json.dumps({"code": CODE, "args": ARGS}).encode(), select.poll()
    began: dict[int, float] = {}
    left = int(order["runs"])
    while left or began:
        while left and len(began) < order["callers"]:
            time.sleep(order["pause_s"])
            read, write = os.pipe()
            began[read] = time.perf_counter()
            sock.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [write]))])
            os.close(write)
            poll.register(read, select.POLLIN)
            left -= 1
        for fd, _ in poll.poll():
            answer = json.loads(os.read(fd, 4096))
            if answer != {"sum": sum(ARGS["xs"])}:
                raise ValueError(f"a wrong result: {answer!r}")
            yield time.perf_counter() - began.pop(fd)
            poll.unregister(fd)
            os.close(fd)


def main(ahead: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        ours.close()
        _make_root()
        gc.collect()
        gc.freeze()
        _serve_zygote(theirs, ahead, parent)
        os._exit(0)
    theirs.close()
    for line in sys.stdin:
        began = time.perf_counter()
        times = list(_runs(ours, json.loads(line)))
        sys.stdout.write(json.dumps({"times": times, "took": time.perf_counter() - began}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
