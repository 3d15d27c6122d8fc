"""A disk with Debian, its Python, our dependencies and this project, and a kernel for it; made once a directory.

Needs root (debootstrap makes device files), apt-get, debootstrap and mke2fs. The kernel is fetched and unpacked, never
installed on this host. It has NVMe built in, so that no initial ramdisk is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
SUITE = "bookworm"
PACKAGES = "python3,procps,iproute2,util-linux"
KERNEL = "linux-image-cloud-amd64"
PYTHON = "3.11"
"""Debian's of that suite."""
NEEDED = {
    "qemu-system-x86_64": "qemu-system-x86",
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
class Image:
    kernel: Path
    disk: Path


def missing() -> str:
    """Why no image can be made and started here; empty when it can."""
    if os.geteuid() != 0:
        return "debootstrap needs root"
    if os.uname().machine != "x86_64":
        return "the emulated machine is x86_64"
    lacking = sorted({package for command, package in NEEDED.items() if shutil.which(command, path=_PATH) is None})
    return f"needs {', '.join(lacking)}" if lacking else ""


def make(directory: Path) -> Image:
    """With what an earlier call made there, the project excepted, which is copied as it is."""
    directory.mkdir(parents=True, exist_ok=True)
    kernel = _kernel(directory / "kernel")
    root = _debian(directory / "debian")
    _dependencies(root / "opt" / "site")
    _project(root / "opt" / "skillyard")
    return Image(kernel, _disk(root, directory / "disk.img"))


def _kernel(directory: Path) -> Path:
    found = sorted(directory.glob("x/boot/vmlinuz-*"))
    if not found:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        _run("apt-get", "-qq", "update")
        depends = _said("apt-cache", "depends", KERNEL)
        (package,) = [line.split()[1] for line in depends.splitlines() if line.strip().startswith("Depends: linux-im")]
        _run("apt-get", "-qq", "download", package, cwd=directory)
        _run("dpkg-deb", "-x", str(next(directory.glob("*.deb"))), "x", cwd=directory)
        found = sorted(directory.glob("x/boot/vmlinuz-*"))
    return found[-1]


def _debian(root: Path) -> Path:
    """From the mirror that this host's apt uses."""
    stamp = root.with_name("debian.complete")
    if not stamp.exists():
        shutil.rmtree(root, ignore_errors=True)
        listed = _said(
            "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {SUITE}"
        )
        mirror = next(iter(listed.split()), "")
        assert mirror, f"apt on this host knows no {SUITE}"
        _run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root), mirror)
        shutil.rmtree(root / "var" / "cache" / "apt", ignore_errors=True)
        stamp.touch()
    return root


def _dependencies(target: Path) -> None:
    """The locked ones, as wheels for the Python in there."""
    locked = PROJECT / "requirements" / "dev.txt"
    stamp = target / "complete"
    if stamp.exists() and stamp.read_text() == locked.read_text():
        return
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    _run(
        *(sys.executable, "-m", "uv", "pip", "install", "-q", "--target", str(target), "--no-deps", "--require-hashes"),
        *("--python-version", PYTHON, "--python-platform", "x86_64-manylinux_2_28", "--only-binary", ":all:"),
        *("-r", str(locked)),
    )
    stamp.write_text(locked.read_text())


def _project(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in ("src", "tests"):
        shutil.copytree(PROJECT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "pyproject.toml", target)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.suffix == ".sh" else 0o644)


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
