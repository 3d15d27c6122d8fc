"""The jail round one runsc, which holds foreign code that took over sentry or gofer.

A clone of the keeper gets namespaces of its own, an id of its own, and a root that holds runsc, the sandbox's
read-only root and nothing else of the host; then it becomes runsc. It is pid 1 of its pid namespace, so sentry, gofer,
mounts and state end with it. namespaces(7), user_namespaces(7). runsc reads an OCI bundle (runtime-spec 1.0), which
this module writes, too.
"""

from __future__ import annotations

import json
import os
import py_compile
import resource
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillyard.sandbox.native.grounds import root
from skillyard.sandbox.native.grounds.gvisor import modules
from skillyard.sandbox.native.grounds.gvisor.runsc import Runsc
from skillyard.sandbox.native.grounds.namespaces.zygote import environment
from skillyard.sandbox.native.grounds.root import Interpreter, inside_modules
from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.inside.steps import FIRST
from skillyard.sandbox.native.linux import bpf, kernel, seccomp
from skillyard.sandbox.native.linux.namespaces import write
from skillyard.sandbox.native.linux.syscall_numbers import numbers

ROOTFS, SHOW, STATE, BUNDLE = "/rootfs", "/show", "/state", "/bundle"

_INIT = "from skillyard.sandbox.native.grounds.gvisor.inside import main, start_later, work"
_START = modules.start(
    walls.CODE_ROOT, f"import gc, sys, json; gc.disable(); sys.path.append({walls.CODE_ROOT!r}); {_INIT}"
)
_COLLECT = (
    "import sys, json; place, shown = sys.argv[1:]; sys.path.append(place); "
    f"{_INIT}; from skillyard.sandbox.native.grounds.gvisor.modules import collect; collect(place, shown)"
)
_BOUND_S = 60.0
_INIT_CAPABILITIES = (
    "CAP_CHOWN", "CAP_KILL", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN",
)  # fmt: skip
"""Our init has them for gVisor's kernel only: it mounts and changes its ids."""
_NAMESPACES = ("pid", "network", "ipc", "uts", "mount")


@dataclass(frozen=True, slots=True)
class Contents:
    """The orders for the init of a sandbox."""

    python: Interpreter
    packages: str
    preload: Sequence[str]
    disk_bytes: int
    memory_bytes: int
    processes: int
    single: bool = False
    """Whether the static program is its first process."""


def config(contents: Contents) -> bytes:
    """Returns the bundle's config.json for the root at ROOTFS."""
    spec: dict[str, Any] = {
        "ociVersion": "1.0.0",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": _arguments(contents),
            "env": [f"{name}={value}" for name, value in environment(contents.python).items()],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), _INIT_CAPABILITIES),
        },
        "root": {"path": ROOTFS, "readonly": True},
        "hostname": walls.HOSTNAME,
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, *_shown_mounts()],
        "linux": {
            "namespaces": [{"type": kind} for kind in _NAMESPACES],
            "resources": {"memory": {"limit": contents.memory_bytes}},
        },
    }
    return json.dumps(spec, separators=(",", ":")).encode()


def _shown_mounts() -> Iterator[dict[str, Any]]:
    # Slaves of the keeper's mounts: skills and blobs that it attaches later appear inside.
    for name, target in walls.SHOWN.items():
        options = ["ro", "rbind", "rslave", "nosuid", "nodev"]
        yield {"destination": target, "type": "bind", "source": f"{SHOW}/{name}", "options": options}


def _arguments(contents: Contents) -> list[str]:
    packages = contents.python.packages if contents.packages else ""
    bounds = [contents.disk_bytes, contents.processes, assembled_filters()]
    if not contents.single:
        return _python(contents, "main(*json.loads(sys.argv[1]))", [packages, list(contents.preload), *bounds])
    worker = _python(contents, "work(*json.loads(sys.argv[1]))", [packages, *bounds])
    later = _python(contents, "start_later(*json.loads(sys.argv[1]), *sys.argv[2:])", [packages, *bounds])
    return [f"{walls.CODE_ROOT}/{_FIRST}", "box", str(len(worker)), *worker, *later]


def _python(contents: Contents, then: str, told: list[Any]) -> list[str]:
    return [contents.python.executable, "-I", "-S", "-B", "-c", f"{_START}; {then}", json.dumps(told)]


_TYPE = 0xF000


def assembled_filters() -> list[str]:
    """Returns the filters in hexadecimal, in the order of their installation. The closing one forbids further ones."""
    made = (_no_devices(), seccomp.large_filter(), seccomp.closing_filter())
    return [bpf.assemble(program).hex() for program in made]


def _no_devices() -> list[bpf.Instruction]:
    """Refuses device files, which gVisor lets anybody make and opens anywhere (mknod(2))."""
    nr = numbers(kernel.ARCH)
    program = seccomp.head(kernel.ARCH)
    for name, mode in (("mknod", bpf.ARG1), ("mknodat", bpf.ARG2)):
        if name in nr:
            program += bpf.when(nr[name], _neither(mode, stat.S_IFCHR, stat.S_IFBLK))
    return [*program, bpf.ALLOW]


def _neither(mode: int, one: int, other: int) -> list[bpf.Instruction]:
    steps = [(bpf.LOAD, 0, 0, mode), (bpf.AND, 0, 0, _TYPE), (bpf.JEQ, 2, 0, one), (bpf.JEQ, 1, 0, other)]
    return [*steps, bpf.ALLOW, bpf.refuse()]


_GROUNDS = "skillyard/sandbox/native/grounds"
_FIRST = f"skillyard/sandbox/native/inside/{FIRST}"


def install(directory: Path) -> None:
    """Puts our modules into a fresh ``directory``, compiled.

    Those of the first process are in one file, too. Each gofer has another user, so everybody can read them. Raises
    OSError.
    """
    if directory.exists():
        shutil.rmtree(directory)
    for name, source in _modules():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source is None:
            target.touch()
        else:
            shutil.copyfile(source, target)
        py_compile.compile(
            str(target),
            dfile=f"/opt/{name}",
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    words = [root.find_interpreter().executable, "-I", "-S", "-B", "-c", _COLLECT, str(directory), walls.CODE_ROOT]
    try:
        subprocess.run(words, check=True, capture_output=True, text=True, timeout=_BOUND_S, env={})
    except subprocess.SubprocessError as error:
        raise OSError(
            0, f"the modules of sandboxes cannot be loaded: {getattr(error, 'stderr', '') or error}"
        ) from None
    for top, _, files in os.walk(directory):
        os.chmod(top, 0o755)
        for name in files:
            os.chmod(os.path.join(top, name), 0o644)
    if (part := root.compiled_part()) is not None:
        # Its gofer reads it for gVisor's exec, and has another user.
        os.chmod(shutil.copyfile(part.with_name(FIRST), directory / _FIRST), 0o755)


def _modules() -> Iterator[tuple[str, Path | None]]:
    yield from inside_modules()
    for name in (_GROUNDS, f"{_GROUNDS}/gvisor"):
        yield f"{name}/__init__.py", None
    for name in ("inside.py", "modules.py"):
        yield f"{_GROUNDS}/gvisor/{name}", Path(__file__).with_name(name)


NAMESPACES = walls.NAMESPACES | kernel.CLONE_NEWUSER
_PROGRAM = "/bin/runsc"
_DIRECTORIES = ("bin", "bundle", "dev", "proc", "rootfs", "show", "state", "tmp")
_MS_SHARED = 1 << 20
_QUIET = kernel.MS_NOSUID | kernel.MS_NODEV
_OOM_SCORE = "500"


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one jail.

    ``name`` shows in the host's list of processes. ``uid`` is the keeper's id that becomes 0 in the jail; ``own_uid``
    says that no other sandbox has it. ``mount_on`` is an existing directory, covered in the jail's mount namespace
    only. ``code`` is the directory that :func:`install` made.
    """

    name: str
    runsc: Runsc
    contents: Contents
    mount_on: str
    code: str
    uid: int
    own_uid: bool
    cpus: tuple[int, ...]
    shown: Mapping[str, int]
    """Detached mounts by name; skills and blobs are hung below them later."""


def start(plan: Plan, stdin: int, errors: int, groups: Sequence[int], into: int) -> tuple[int, int]:
    """Starts runsc in its jail; returns its pid and pidfd. Raises OSError; nothing is left then.

    ``groups`` are joined by writing (cgroup version 1), ``into`` by the clone (version 2; -1 for none).
    """
    contents = plan.contents
    fds: list[int] = []
    try:
        binds = root.sources(contents.python, contents.packages, memory_counted=True)
        fds += [bind.fd for bind in binds]
        for path, target in ((plan.runsc.path, _PROGRAM), (plan.code, walls.CODE_ROOT)):
            binds.append(root.open_bind(path, target, kernel.MOUNT_ATTR_NODEV))
            fds.append(binds[-1].fd)
        go_r, go_w = os.pipe2(os.O_CLOEXEC)
        fds += (go_r, go_w)
        pid, pidfd = kernel.clone(NAMESPACES, cgroup=into)
        if pid == 0:
            _become_runsc(plan, binds, (stdin, errors), groups, (go_r, go_w))
        try:
            _map(pid, plan)
        except OSError:
            kernel.pidfd_kill(pidfd)
            os.waitpid(pid, 0)
            os.close(pidfd)
            raise
        os.write(go_w, b"x")
    finally:
        for fd in fds:
            os.close(fd)
    return pid, pidfd


def _map(pid: int, plan: Plan) -> None:
    if not plan.own_uid:
        write(f"/proc/{pid}/setgroups", "deny")
    for name in ("gid_map", "uid_map"):
        write(f"/proc/{pid}/{name}", f"0 {plan.uid} 1")


def _become_runsc(
    plan: Plan, binds: list[root.Bind], stdio: tuple[int, int], groups: Sequence[int], go: tuple[int, int]
) -> None:
    """Never returns."""
    try:
        os.close(go[1])
        if os.read(go[0], 1):
            _enter(plan, binds, groups)
            _exec(plan, *stdio)
    except BaseException as error:  # noqa: BLE001 - this process must end here, and say why
        os.write(stdio[1], f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(1)


def _enter(plan: Plan, binds: list[root.Bind], groups: Sequence[int]) -> None:
    for fd in groups:
        os.write(fd, b"0")
    kernel.unshare(kernel.CLONE_NEWCGROUP)
    write("/proc/self/oom_score_adj", _OOM_SCORE)
    if plan.cpus:
        os.sched_setaffinity(0, plan.cpus)
    _begin_root(plan)
    if plan.own_uid:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    os.umask(0o022)
    _fill_root(plan, binds)
    core = walls.core_limit()
    resource.setrlimit(resource.RLIMIT_CORE, (core, core))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)


def _begin_root(plan: Plan) -> None:
    # Only the keeper's id may be able to reach the directory, so this comes before the change of ids.
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("jail", plan.mount_on, "tmpfs", _QUIET, "size=16m,mode=0755,uid=0,gid=0")
    os.chdir(plan.mount_on)


def _fill_root(plan: Plan, binds: list[root.Bind]) -> None:
    for name in _DIRECTORIES:
        os.mkdir(name, 0o755)
    for name, fd in plan.shown.items():
        _mount_shown(fd, f"show/{name}")
    Path("bundle/config.json").write_bytes(config(plan.contents))
    _hang_outer([bind for bind in binds if _outer(bind)])
    inner = [bind for bind in binds if not _outer(bind) and bind.target != "proc"]
    os.chdir("rootfs")
    root.fill(inner, plan.contents.python, plan.contents.packages, ())
    os.chdir("..")
    kernel.mount("proc", "proc", "proc", _QUIET | kernel.MS_NOEXEC)
    kernel.pivot_root(".", ".")
    kernel.umount(".")
    os.chdir("/")


def _mount_shown(fd: int, path: str) -> None:
    # A shared mount passes later mounts below it on to the gofer's copy (mount_namespaces(7)).
    os.mkdir(path, 0o755)
    kernel.move_mount(fd, path)
    kernel.mount("none", path, None, _MS_SHARED)


def _outer(bind: root.Bind) -> bool:
    # Devices are for runsc; gVisor has its own.
    return bind.target == _PROGRAM.lstrip("/") or bind.target.startswith("dev/")


def _hang_outer(binds: list[root.Bind]) -> None:
    for bind in binds:
        Path(bind.target).touch(0o644)
        kernel.move_mount(bind.fd, bind.target)


def _exec(plan: Plan, stdin: int, errors: int) -> None:
    high = [os.dup(fd) for fd in (stdin, errors)]
    os.dup2(high[0], 0)
    os.dup2(high[1], 1)
    os.dup2(high[1], 2)
    kernel.close_from(3)
    arguments = plan.runsc.arguments("runsc", STATE, BUNDLE, plan.name)
    os.execve(_PROGRAM, arguments, {"PATH": "/bin"})
