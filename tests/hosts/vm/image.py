"""A disk with Debian, its Python, our dependencies and this project, and a kernel for it; made once a directory.

Needs root (debootstrap makes device files), apt-get, debootstrap and mke2fs. The kernel is fetched and unpacked, never
installed on this host. It has NVMe built in, so that no initial ramdisk is needed. Packages of another machine are
unpacked too: their own scripts, which nothing here can run, are left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests.unit.sandbox.native.compiled import hook

PROJECT = Path(__file__).resolve().parents[3]
SUITE = "bookworm"
PACKAGES = "python3,procps,iproute2,util-linux"
PYTHON = "3.11"
"""Debian's of that suite."""
ZIG = os.environ.get("SKILLYARD_TEST_ZIG", "/usr/local/lib/skillyard-ci/zig/bin/python")
NEEDED = {
    "debootstrap": "debootstrap",
    "mke2fs": "e2fsprogs",
    "dpkg-deb": "dpkg",
    "apt-get": "apt",
}
"""Commands and the Debian packages that have them."""
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_SLACK_MB = 1536
_BOUND_S = 900


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of machine: ``debian`` is its name there, ``emulator`` its command and arguments in QEMU."""

    name: str
    debian: str
    package: str
    emulator: tuple[str, ...]
    console: str

    @property
    def foreign(self) -> bool:
        return self.name != os.uname().machine


X86 = Kind("x86_64", "amd64", "qemu-system-x86", ("qemu-system-x86_64", "-M", "q35"), "ttyS0")
ARM = Kind("aarch64", "arm64", "qemu-system-arm", ("qemu-system-aarch64", "-M", "virt"), "ttyAMA0")


@dataclass(frozen=True, slots=True)
class Image:
    kind: Kind
    kernel: Path
    disk: Path


def missing(kind: Kind) -> str:
    """Returns why no image of that kind can be made and started here, or nothing."""
    if os.geteuid() != 0:
        return "debootstrap needs root"
    needed = {**NEEDED, kind.emulator[0]: kind.package}
    lacking = {package for command, package in needed.items() if shutil.which(command, path=_PATH) is None}
    if kind.foreign and not os.access(ZIG, os.X_OK):
        lacking.add("ziglang (.ci/setup long)")
    return f"needs {', '.join(sorted(lacking))}" if lacking else ""


def make(directory: Path, kind: Kind) -> Image:
    """Makes one with what an earlier call made there, the project excepted, which is copied as it is."""
    directory.mkdir(parents=True, exist_ok=True)
    apt = _apt(directory, kind)
    kernel = _kernel(directory / "kernel", kind, apt)
    root = _debian(directory / "debian", kind)
    _dependencies(root / "opt" / "site", kind)
    _project(root / "opt" / "skillyard", kind)
    if f"{sys.version_info.major}.{sys.version_info.minor}" == PYTHON:
        _compile(root / "usr" / "lib" / f"python{PYTHON}", root / "opt")
    return Image(kind, kernel, _disk(root, directory / "disk.img"))


def _apt(directory: Path, kind: Kind) -> tuple[str, ...]:
    """Returns the options with which apt speaks of that kind's packages, with lists and a cache of their own."""
    at = directory / "apt"
    for each in (at / "lists" / "partial", at / "cache" / "archives" / "partial"):
        each.mkdir(parents=True, exist_ok=True)
    said = {
        "APT::Architecture": kind.debian, "APT::Architectures": kind.debian, "APT::Sandbox::User": "",
        "Dir::State::Lists": at / "lists", "Dir::State::Status": "/dev/null", "Dir::Cache": at / "cache",
        "Acquire::Languages": "none",
    }  # fmt: skip
    return tuple(part for name, value in said.items() for part in ("-o", f"{name}={value}"))


def _kernel(directory: Path, kind: Kind, apt: tuple[str, ...]) -> Path:
    found = sorted(directory.glob("x/boot/vmlinuz-*"))
    if not found:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        _run("apt-get", "-qq", *apt, "update")
        depends = _said("apt-cache", *apt, "depends", f"linux-image-cloud-{kind.debian}")
        (package,) = [line.split()[1] for line in depends.splitlines() if line.strip().startswith("Depends: linux-im")]
        _run("apt-get", "-qq", *apt, "download", package, cwd=directory)
        _run("dpkg-deb", "-x", str(next(directory.glob("*.deb"))), "x", cwd=directory)
        found = sorted(directory.glob("x/boot/vmlinuz-*"))
    return found[-1]


def _debian(root: Path, kind: Kind) -> Path:
    """From the mirror that this host's apt uses."""
    stamp = root.with_name("debian.complete")
    if not stamp.exists():
        shutil.rmtree(root, ignore_errors=True)
        listed = _said(
            "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {SUITE}"
        )
        mirror = next(iter(listed.split()), "")
        assert mirror, f"apt on this host knows no {SUITE}"
        how = (f"--arch={kind.debian}", *(["--foreign"] if kind.foreign else []))
        _run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", *how, SUITE, str(root), mirror)
        if kind.foreign:
            _unpack(root)
        shutil.rmtree(root / "var" / "cache" / "apt", ignore_errors=True)
        stamp.touch()
    return root


def _unpack(root: Path) -> None:
    """Puts in what the packages have, and what the scripts of a few of them would have made."""
    for package in sorted((root / "var" / "cache" / "apt" / "archives").glob("*.deb")):
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as archive:
            subprocess.run(
                ["tar", "-C", str(root), "--keep-directory-symlink", "-xpf", "-"],
                stdin=archive.stdout, check=True, timeout=_BOUND_S,
            )  # fmt: skip
        assert archive.returncode == 0, package
    for name in ("passwd", "group"):
        shutil.copy(root / "usr" / "share" / "base-passwd" / f"{name}.master", root / "etc" / name)
    for name, target in (("awk", "mawk"), ("sh", "dash")):
        link = root / "usr" / "bin" / name
        if not link.is_symlink():
            link.symlink_to(target)
    for name in ("proc", "sys", "dev"):
        place = root / name
        if place.is_symlink():  # where the host is a container itself
            place.unlink()
        place.mkdir(exist_ok=True)
    _run("ldconfig", "-r", str(root))


def _dependencies(target: Path, kind: Kind) -> None:
    """The locked ones, as wheels for the Python in there."""
    locked = PROJECT / "requirements" / "dev.txt"
    stamp = target / "complete"
    if stamp.exists() and stamp.read_text() == locked.read_text():
        return
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    _run(
        *(sys.executable, "-m", "uv", "pip", "install", "-q", "--target", str(target), "--no-deps", "--require-hashes"),
        *("--python-version", PYTHON, "--python-platform", f"{kind.name}-manylinux_2_28", "--only-binary", ":all:"),
        *("-r", str(locked)),
    )
    stamp.write_text(locked.read_text())


def _project(target: Path, kind: Kind) -> None:
    """With the compiled part of that kind of machine."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in ("src", "tests"):
        shutil.copytree(PROJECT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "pyproject.toml", target)
    with _compiler(kind):
        why = hook().build(target)
        assert not why, why
    for path in (target, *target.rglob("*")):
        program = path.is_dir() or path.suffix == ".sh" or path == target / hook().FIRST
        path.chmod(0o755 if program else 0o644)


@contextmanager
def _compiler(kind: Kind) -> Iterator[None]:
    cross = {"CC": f"{ZIG} -m ziglang cc -target {kind.name}-linux-gnu.2.17", "CFLAGS": "-fno-stack-protector"}
    with mock.patch.dict(os.environ, cross if kind.foreign else {}):
        yield


def _compile(*places: Path) -> None:
    """Makes bytecode of all sources: an emulated processor takes a minute for what a server imports."""
    command = [sys.executable, "-m", "compileall", "-q", *map(str, places)]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=_BOUND_S)


def _disk(root: Path, disk: Path) -> Path:
    used = int(_said("du", "-sm", str(root)).split()[0])
    disk.unlink(missing_ok=True)
    _run("mke2fs", "-q", "-t", "ext4", "-d", str(root), str(disk), f"{used + _SLACK_MB}M")
    return disk


def _run(*command: str, cwd: Path | None = None) -> None:
    environment = {**os.environ, "PATH": _PATH}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=_BOUND_S, check=False
    )
    assert done.returncode == 0, f"{command}: {(done.stdout + done.stderr)[-2000:]}"


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=_BOUND_S, check=True).stdout
