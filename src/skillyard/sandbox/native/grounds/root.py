"""The read-only root directory that all sandboxes of a zygote share: an allow-list.

The keeper opens the sources as detached mounts, since a sandbox's rights may not reach them. The process that becomes
the zygote attaches them to a fresh tmpfs, makes that its root, and lets go of the host's.
"""

from __future__ import annotations

import errno
import functools
import glob
import hashlib
import importlib.util
import marshal
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from skillyard.sandbox.native.inside import walls
from skillyard.sandbox.native.inside.steps import FIRST, LIBRARY
from skillyard.sandbox.native.linux import kernel

_PARTS = ("bin", "lib", "lib64", "include", "share", "ssl")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The host's Python: its ``directories`` and those of packages in it, which are ``masked``.

    ``packages`` is the masked one in whose place an environment's packages are shown.
    """

    executable: str
    directories: tuple[str, ...]
    masked: tuple[str, ...]
    packages: str


def _base_executable() -> str:
    found: str = getattr(sys, "_base_executable", "") or sys.executable
    return os.path.realpath(found)


def find_interpreter() -> Interpreter:
    """Returns the base interpreter behind this one, also in a virtual environment."""
    prefixes = sorted({sys.base_prefix, sys.base_exec_prefix})
    directories = [
        path
        for prefix in prefixes
        if prefix != "/usr"
        for part in _PARTS
        if os.path.isdir(path := os.path.join(prefix, part))
    ]
    roots = {*directories, "/usr/lib", "/usr/lib64"}
    masked = sorted(
        {
            os.path.realpath(path)
            for root in roots
            for pattern in ("python3*/site-packages", "python3*/dist-packages")
            for path in glob.glob(os.path.join(root, pattern))
        }
    )
    return Interpreter(_base_executable(), tuple(directories), tuple(masked), _home_of_packages(masked))


def _home_of_packages(masked: list[str]) -> str:
    """Returns the directory where this interpreter looks for packages; the first that exists."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = os.path.realpath(sysconfig.get_path("purelib", vars={"base": sys.base_prefix}))
    ranked = [own, *(path for path in masked if f"/{version}/" in path), "/usr/lib/python3/dist-packages", *masked]
    return next((path for path in ranked if path in masked), "")


SYSTEM_DIRECTORIES = (
    "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/libexec", "/usr/share",
    "/usr/include",
)  # fmt: skip
LINKS_OR_DIRECTORIES = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf",
    "/etc/pki/ca-trust/extracted", "/etc/ca-certificates/extracted", "/etc/mime.types", "/etc/localtime",
    "/etc/services", "/etc/protocols", "/etc/fonts", "/etc/inputrc", "/etc/magic",
)  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom")
_OWN_TERMINAL = "tty"
"""The terminal that controls the process which opens it, if any does (tty(4))."""
_ATTRIBUTES = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID

_ID = walls.INSIDE_ID
_FILES: Mapping[str, str] = {
    "etc/passwd": f"root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nsandbox:x:{_ID}:{_ID}::/workspace:/bin/sh\n",
    "etc/group": f"root:x:0:\nsandbox:x:{_ID}:\n",
    "etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "etc/hostname": walls.HOSTNAME + "\n",
    # Names are asked of 127.0.0.1 alone, where a gate answers or a refusal does, at once. What ``dns`` cannot answer is
    # unknown: the last ``files`` makes that the error, and no temporary failure after which programs try again.
    "etc/resolv.conf": "nameserver 127.0.0.1\noptions timeout:1 attempts:1 no-aaaa\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns files\nservices: files\nprotocols: files\n",
    walls.TRUST.lstrip("/"): "",
}
_EMPTY_DIRECTORIES = (
    "dev/pts", "dev/shm", "etc", "home", "opt", "proc", "run/box", "run/egress", "run/empty", "tmp", "var/tmp",
    "workspace", "skills", "blobs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bind:
    """A detached mount to be attached at ``target``, relative to the new root."""

    fd: int
    target: str
    directory: bool


def sources(python: Interpreter, packages: str, *, memory_counted: bool) -> list[Bind]:
    """Opens everything that is shown. The caller closes the descriptors. Raises OSError; nothing is open then."""
    binds: list[Bind] = []
    try:
        for bind in _sources(python, packages, memory_counted):
            binds.append(bind)
    except BaseException:
        for bind in binds:
            os.close(bind.fd)
        raise
    return binds


def _sources(python: Interpreter, packages: str, memory_counted: bool) -> Iterator[Bind]:
    for path in (*SYSTEM_DIRECTORIES, *python.directories, *LINKS_OR_DIRECTORIES):
        if os.path.isdir(path) and not os.path.islink(path):
            yield open_bind(path, path, kernel.MOUNT_ATTR_NODEV)
    for path in ETC:
        if os.path.exists(path):
            # An operator may have mounted something over a file of it, such as certificates: that comes too.
            yield open_bind(os.path.realpath(path), path, kernel.MOUNT_ATTR_NODEV, whole=True)
    if packages and python.packages:
        yield open_bind(packages, python.packages, kernel.MOUNT_ATTR_NODEV)
    for name in (*DEVICES, *((_OWN_TERMINAL,) if os.path.exists(f"/dev/{_OWN_TERMINAL}") else ())):
        # No process shows a shared mapping of /dev/zero as its own memory, so only a controller can count it.
        if memory_counted or name != "zero":
            yield open_bind(f"/dev/{name}", f"/dev/{name}", kernel.MOUNT_ATTR_NOEXEC)
    yield proc()


def proc() -> Bind:
    """Opens the /proc of our own mount namespace. Raises OSError."""
    return open_bind("/proc", "/proc", kernel.MOUNT_ATTR_NODEV | kernel.MOUNT_ATTR_NOEXEC, read_only=False)


def open_bind(source: str, target: str, attributes: int, *, read_only: bool = True, whole: bool = False) -> Bind:
    """Opens a detached mount, ``whole`` with the mounts below it.

    Raises OSError; nothing is open then.
    """
    fd, recursive = (kernel.open_tree(source, recursive=True), True) if whole else detached(source)
    attributes |= kernel.MOUNT_ATTR_NOSUID | (kernel.MOUNT_ATTR_RDONLY if read_only else 0)
    try:
        kernel.mount_setattr(fd, "", attributes, recursive=recursive)
    except OSError:
        os.close(fd)
        raise
    return Bind(fd, target.lstrip("/"), os.path.isdir(source))


def detached(source: str) -> tuple[int, bool]:
    """Returns a mount of ``source``, and whether it holds the mounts below, too.

    It does not where the kernel lets that be uncovered: not a container's own mounts, such as its engine's init in
    /usr/sbin, when our user namespace is younger than they (mount_namespaces(7)).
    """
    try:
        return kernel.open_tree(source), False
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return kernel.open_tree(source, recursive=True), True


def fill(
    binds: list[Bind], python: Interpreter, packages: str, code: Iterable[tuple[str, Path | bytes | None]]
) -> None:
    """Makes the working directory a root of ``binds``, with our own ``code`` copied in."""
    for path in _EMPTY_DIRECTORIES:
        os.makedirs(path, 0o755, exist_ok=True)
    for path, text in _FILES.items():
        Path(path).write_text(text)
    _link_system_directories()
    os.symlink("/workspace", "home/user")  # the home of many programs for other providers' sandboxes
    _link_devices()
    _copy_code(code)
    for bind in sorted(binds, key=lambda b: b.target.count("/")):
        _hang(bind)
    for path in python.masked:
        if not (packages and path == python.packages):
            kernel.mount("run/empty", path.lstrip("/"), None, kernel.MS_BIND)
            kernel.mount_setattr(kernel.AT_FDCWD, path.lstrip("/"), _ATTRIBUTES)


def _hang(bind: Bind) -> None:
    if bind.directory:
        os.makedirs(bind.target, 0o755, exist_ok=True)
    elif not os.path.lexists(bind.target):
        os.makedirs(os.path.dirname(bind.target), 0o755, exist_ok=True)
        Path(bind.target).touch(0o644)
    kernel.move_mount(bind.fd, bind.target)
    os.close(bind.fd)


def _link_system_directories() -> None:
    for path in LINKS_OR_DIRECTORIES:
        if os.path.islink(path):
            os.symlink(os.readlink(path), path.lstrip("/"))


def _link_devices() -> None:
    os.symlink("/proc/self/fd", "dev/fd")
    os.symlink("pts/ptmx", "dev/ptmx")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"dev/{name}")


def _copy_code(code: Iterable[tuple[str, Path | bytes | None]]) -> None:
    for name, source in code:
        target = f"{walls.CODE_ROOT.lstrip('/')}/{name}"
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        if source is None:
            Path(target).touch(0o644)
        elif isinstance(source, bytes):
            Path(target).write_bytes(source)
        else:
            shutil.copyfile(source, target)
            if source.name == FIRST:
                os.chmod(target, _EXECUTE_ONLY)


def enter() -> None:
    """Makes the working directory, a tmpfs, the read-only root."""
    kernel.pivot_root(".", ".")
    kernel.umount(".")
    os.chdir("/")
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("none", "/", None, flags)


_EXECUTE_ONLY = 0o111
"""The mode of a program that nobody can read: the kernel then makes its process undumpable (execve(2))."""

_NATIVE = (
    *(f"linux/{name}" for name in ("__init__", "kernel", "landlock")),
    *(
        f"inside/{name}"
        for name in ("__init__", "agreed", "walls", "steps", "init", "kept", "plain", "zygote", "later")
    ),
)

START_ZYGOTE = (
    f"import sys, json; sys.path.append({walls.CODE_ROOT!r});"
    " from skillyard.sandbox.native.inside.zygote import main; main(*json.loads(sys.argv[1]))"
)


def inside_modules() -> Iterator[tuple[str, Path | None]]:
    """Yields our modules for a root: path below CODE_ROOT, source file or None for empty."""
    package = Path(__file__).parents[3]
    for name in ("skillyard", "skillyard/sandbox", "skillyard/sandbox/native", "skillyard/ipc"):
        yield f"{name}/__init__.py", None
    yield "skillyard/ipc/packets.py", package / "ipc" / "packets.py"
    for name in _NATIVE:
        yield f"skillyard/sandbox/native/{name}.py", package / "sandbox" / "native" / f"{name}.py"
    for source in sorted((package / "guest").rglob("*.py")):
        yield f"skillyard/{source.relative_to(package)}", source


@functools.cache
def bytecode() -> tuple[tuple[str, bytes], ...]:
    """Returns our modules for a root as bytecode (PEP 552).

    An interpreter of another version leaves it aside. A zygote that compiled them itself would start a tenth of a
    second later, and hold the memory of it.
    """
    return tuple(_compiled(name, source) for name, source in inside_modules() if source is not None)


def _compiled(name: str, source: Path) -> tuple[str, bytes]:
    shown, text = f"{walls.CODE_ROOT}/{name}", source.read_bytes()
    code = marshal.dumps(compile(text, shown, "exec", dont_inherit=True))
    head = importlib.util.MAGIC_NUMBER + _UNCHECKED.to_bytes(4, "little") + importlib.util.source_hash(text)
    return os.path.relpath(importlib.util.cache_from_source(shown), walls.CODE_ROOT), head + code


_UNCHECKED = 0b01
"""Bytecode that is not compared with its source."""


def compiled_modules() -> Iterator[tuple[str, Path | None]]:
    """Yields the compiled part as :func:`inside_modules` yields sources, where it was built."""
    if (part := compiled_part()) is not None:
        yield f"skillyard/sandbox/native/inside/{LIBRARY}", part
        yield f"skillyard/sandbox/native/inside/{FIRST}", part.with_name(FIRST)


_ELF_START = 20


def _machine(start: bytes) -> bytes:
    """Returns the class, the byte order and the machine of an ELF file (elf(5))."""
    return start[4:6] + start[18:_ELF_START]


def compiled_part() -> Path | None:
    """Returns the library of the compiled part, which has FIRST beside it.

    None where one of them is not of this machine and the sources beside them.
    """
    path = Path(__file__).parents[1] / "inside" / LIBRARY
    try:
        sources = b"".join(path.with_name(name).read_bytes() for name in ("steps.c", "first.c"))
        mark = f"compiled:{hashlib.sha256(sources).hexdigest()}".encode()
        with open("/proc/self/exe", "rb") as file:
            machine = _machine(file.read(_ELF_START))
        parts = (path.read_bytes(), path.with_name(FIRST).read_bytes())
        return path if all(mark in part and _machine(part) == machine for part in parts) else None
    except OSError:
        return None
