"""An engine of the tests' own for the oci backend, and images for it.

The base is made of this machine's Debian packages, and the image of sandboxes of that, by ``skillyard image build``.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skillyard.config.backends import OciSettings
from tests.hosts.docker_engine import Docker, docker_daemon

BASE, IMAGE = "skillyard-tests/python:1", "skillyard-tests/run:1"
WANTED = ("python3", "bash", "dash", "coreutils", "grep", "sed", "findutils", "procps", "util-linux", "ca-certificates")
_LEFT_OUT = re.compile(
    r"/usr/share/(?!zoneinfo|python|ca-certificates)|/usr/lib/python3/dist-packages|/usr/include|/boot"
)
_LINKS = ("bin", "sbin", "lib", "lib64")
_MADE = ("/etc/ssl/certs", "/etc/alternatives")
"""Made when packages were installed."""
_BOUND_S = 120.0


@contextmanager
def engine(scratch: Path, *options: str, hidden: Path | None = None) -> Iterator[tuple[Docker, OciSettings]]:
    """Skips, with the reason, where there is none to be had."""
    if not Path("/var/lib/dpkg/status").exists():
        pytest.skip("the image is made of Debian's packages, and this is no Debian")
    with docker_daemon(scratch, *options, hidden=hidden) as docker:
        import_python(docker)
        built = build(docker, "--from", BASE, "--tag", IMAGE)
        assert built.returncode == 0, built.stderr
        yield docker, OciSettings(socket=str(scratch / "docker.sock"), image=IMAGE)


def build(docker: Docker, *words: str) -> subprocess.CompletedProcess[str]:
    """``skillyard image build`` without a network, at this engine; never checked."""
    with tempfile.TemporaryDirectory() as data:
        return subprocess.run(
            [sys.executable, "-m", "skillyard", "image", "build", "--offline", "--data-dir", data, *words],
            env={**os.environ, "SKILLYARD_OCI__SOCKET": str(docker.socket)},
            capture_output=True, text=True, timeout=_BOUND_S,
        )  # fmt: skip


def import_python(docker: Docker) -> None:
    """The image BASE: :func:`root_files`."""
    changes = ["--change", "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    docker("import", *changes, "-", BASE, stdin=root_files())


def root_files() -> bytes:
    """Returns an archive with the files of Python and of the usual commands as they are on this machine."""
    made = [str(path) for place in _MADE for path in Path(place).rglob("*")]
    files = "\n".join(sorted({*files_of(closure()), *(f"/{name}" for name in _LINKS), *made, "/etc/ld.so.cache"}))
    with tempfile.NamedTemporaryFile("w") as listed, tempfile.TemporaryDirectory() as empty:
        Path(empty).chmod(0o755)  # rootless engines keep the mode of the root
        for name in ("proc", "sys", "dev", "run", "tmp", "var", "workspace", "home", "root"):
            Path(empty, name).mkdir()
        listed.write(files)
        listed.flush()
        return subprocess.run(
            ["tar", "-cf", "-", "-P", "--no-recursion", "-T", listed.name, "-C", empty, "--recursion", "."],
            check=True, capture_output=True, timeout=_BOUND_S,
        ).stdout  # fmt: skip


@functools.cache
def closure() -> tuple[str, ...]:
    """The installed packages that the wanted ones need, with themselves."""
    shown = subprocess.run(
        ["dpkg-query", "-W", "-f", "${binary:Package}\t${db:Status-Abbrev}\t${Pre-Depends}, ${Depends}\t${Provides}\n"],
        check=True, capture_output=True, text=True, timeout=_BOUND_S,
    ).stdout  # fmt: skip
    needs: dict[str, set[str]] = {}
    for line in shown.splitlines():
        name, status, depends, _ = line.split("\t")
        if status.startswith("ii"):
            needs[name.partition(":")[0]] = set(re.findall(r"[a-z0-9][a-z0-9+.-]+", re.sub(r"\([^)]*\)", "", depends)))
    found: set[str] = set()
    open_ = {"libc6", "libc-bin", *WANTED}
    while open_:
        name = open_.pop()
        if name in needs and name not in found:
            found.add(name)
            open_ |= needs[name]
    return tuple(sorted(found))


def files_of(packages: tuple[str, ...]) -> Iterator[str]:
    """Yields the paths of packages, and of the links that alternatives made."""
    listed = subprocess.run(
        ["dpkg-query", "-L", *packages], check=True, capture_output=True, text=True, timeout=_BOUND_S
    ).stdout
    for path in listed.splitlines():
        if path.startswith("/") and path != "/." and not _LEFT_OUT.match(path):
            at = Path(path)
            if at.parts[1] in _LINKS:
                path = f"/usr{path}"
                at = Path(path)
            if at.is_symlink() or at.exists():
                yield path
