"""Builds an image of machines from Debian packages, without running anything of them.

apt fetches the packages that the wanted ones need, dpkg-deb unpacks them, and mksquashfs packs the root. The root may
be given instead, as a directory or as the archive of one (``docker export``); the kernel then still comes from a
package. Neither root rights nor a network device are needed, beside apt's own fetching.
"""

from __future__ import annotations

import compileall
import lzma
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from skillyard.domain.errors import InvalidInput, SkillyardError, shown
from skillyard.sandbox.microvm.first import INIT, MODULES
from skillyard.sandbox.microvm.image import INITIAL, KERNEL, MANIFEST, ROOT, write_manifest

PACKAGES = (
    "python3", "bash", "dash", "coreutils", "grep", "sed", "findutils", "procps", "util-linux", "mount",
    "mawk", "tar", "gzip", "diffutils", "ca-certificates", "tzdata",
)  # fmt: skip
"""Packages of a root that is not given."""
KERNEL_PACKAGE, BUSYBOX_PACKAGE = "linux-image-cloud-amd64", "busybox-static"
_NEEDED = ("bash", "python3")
"""Programs that a given root must have."""
_LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "boot", "usr/share/lintian")
_PLACES = ("dev", "proc", "sys", "run", "tmp", "workspace", "var", "etc", "root")
_LINKED = ("bin", "sbin", "lib", "lib64")
_BOUND_S = 600.0
_MEND = "it needs Debian's apt and dpkg, and squashfs-tools"


class BuildFailed(SkillyardError):
    """A tool failed, or a file is missing."""

    type = "BuildFailed"


def build_image(
    output: Path, source: Path | None, packages: Sequence[str], said: Callable[[str], None]
) -> dict[str, str]:
    """Makes an image at ``output`` and returns its facts. Raises InvalidInput, BuildFailed.

    ``packages`` are further ones of Debian; ``source`` is a root in their place. An image that is there is replaced at
    the end, by a rename.
    """
    if os.uname().machine != "x86_64":
        raise BuildFailed("images of machines are made for x86_64 only")
    if output.exists() and not (output / MANIFEST).exists() and any(output.iterdir()):
        raise InvalidInput("--output", "must be a new directory, or an image that was built before", shown(str(output)))
    if source is not None and not (source.is_dir() or (source.is_file() and tarfile.is_tarfile(source))):
        raise InvalidInput("--from", "must be a directory with a root, or a tar archive of one", shown(str(source)))
    if source is not None and packages:
        raise InvalidInput("--package", "is for a root made of packages; leave out --from, or this")
    for tool in ("apt-get", "dpkg-deb", "mksquashfs"):
        if shutil.which(tool) is None:
            raise BuildFailed(f"{tool} is not installed; {_MEND}")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".image-", dir=output.parent) as scratch:
        made = Path(scratch, "image")
        made.mkdir(mode=0o755)
        facts = _build(made, Path(scratch), source, packages, said)
        if output.exists():
            output.rename(Path(scratch, "before"))
        made.rename(output)
    return facts


def _build(
    made: Path, scratch: Path, source: Path | None, packages: Sequence[str], said: Callable[[str], None]
) -> dict[str, str]:
    root, system = scratch / "root", scratch / "system"
    said("fetching packages")
    debs = _Debs(scratch / "debs")
    real = _real_kernel(debs)
    unpack([*debs.fetch(real), *debs.fetch(BUSYBOX_PACKAGE)], system)
    if source is None:
        _skeleton(root)
        unpack(debs.closure((*PACKAGES, *packages)), root)
        _certificates(root)
    else:
        _given(source, root)
    version = _finish(root)
    said("packing the root")
    _compile(root, version)
    _run("mksquashfs", str(root), str(made / ROOT), "-noappend", "-no-progress", "-quiet", "-all-root", "-comp", "lz4")
    kernel = next((system / "boot").glob("vmlinuz-*"), None)
    if kernel is None:
        raise BuildFailed(f"{real} has no kernel")
    shutil.copy(kernel, made / KERNEL)
    (made / INITIAL).write_bytes(initial(system))
    facts = {
        "kernel": kernel.name.removeprefix("vmlinuz-"),
        "python": version,
        "from": "packages of Debian" if source is None else str(source),
    }
    write_manifest(made, facts)
    return facts


class _Debs:
    """Packages that apt fetches, as for a machine that has none installed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "archives" / "partial").mkdir(parents=True)
        (directory / "status").touch()

    def fetch(self, name: str) -> list[Path]:
        """Fetches one package alone."""
        place = Path(tempfile.mkdtemp(dir=self._directory))
        _run("apt-get", "-qq", "-o", "APT::Sandbox::User=", "download", name, cwd=place)
        return list(place.glob("*.deb"))

    def closure(self, names: Sequence[str]) -> list[Path]:
        """Fetches packages with all that they need."""
        options = (
            f"Dir::State::status={self._directory / 'status'}", f"Dir::Cache::archives={self._directory / 'archives'}",
            "Debug::NoLocking=1", "APT::Sandbox::User=",
        )  # fmt: skip
        words = [word for option in options for word in ("-o", option)]
        _run("apt-get", "-qq", "-y", "--no-install-recommends", "--download-only", *words, "install", *names)
        return sorted((self._directory / "archives").glob("*.deb"))


def _real_kernel(debs: _Debs) -> str:
    """Returns the package with the files of the kernel, which the other one needs."""
    (package,) = debs.fetch(KERNEL_PACKAGE)
    needs = _run("dpkg-deb", "-f", str(package), "Depends")
    found = re.search(r"linux-image-[a-z0-9.+-]+", needs)
    if found is None:
        raise BuildFailed(f"{KERNEL_PACKAGE} needs no kernel: {needs[:200]}")
    return found[0]


def unpack(debs: Sequence[Path], into: Path) -> None:
    """Unpacks packages. Their scripts do not run."""
    into.mkdir(parents=True, exist_ok=True)
    for deb in debs:
        _run("dpkg-deb", "-x", str(deb), str(into))


def _skeleton(root: Path) -> None:
    """Makes the directories that are links in a system with a merged /usr."""
    for name in _LINKED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")


def _certificates(root: Path) -> None:
    """Joins the certificates, as the script of their package does."""
    found = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    place = root / "etc/ssl/certs/ca-certificates.crt"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("".join(path.read_text() for path in found))


def _given(source: Path, root: Path) -> None:
    """Copies a root that is given: a directory, or a tar archive of one."""
    if source.is_dir():
        _run("cp", "-a", "--reflink=auto", f"{source}/.", str(root))
        return
    root.mkdir()
    into = ("-x", "-f", str(source), "-C", str(root))
    _run("tar", *into, "--exclude=dev/*", "--no-same-owner", "--delay-directory-restore")


def _finish(root: Path) -> str:
    """Removes what machines do not need, makes what they do, and returns the version of Python.

    Raises InvalidInput where a program is missing.
    """
    for name in _LEFT_OUT:
        shutil.rmtree(root / name, ignore_errors=True)
    missing = [name for name in _NEEDED if _program(root, name) is None]
    if missing:
        raise InvalidInput("--from", f"lacks {', '.join(missing)}: install bash and python3 in it")
    for name in _PLACES:
        if not (root / name).is_symlink():
            (root / name).mkdir(exist_ok=True)
    for place in ("proc", "sys", "dev", "run"):
        for left in (root / place).iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    python = _program(root, "python3")
    assert python is not None
    found = re.fullmatch(r"python(3\.\d+)", python.name)
    if found is None:
        raise InvalidInput("--from", "its python3 must be a link to python3.N, so that its version is known")
    return found[1]


def _program(root: Path, name: str) -> Path | None:
    """Returns a program of a root, with links followed inside of it."""
    for directory in ("usr/local/bin", "usr/bin", "bin", "usr/sbin", "sbin"):
        place = root / directory / name
        for _ in range(20):
            if not place.is_symlink():
                break
            to = place.readlink()
            place = root / str(to).lstrip("/") if to.is_absolute() else place.parent / to
        if place.is_file():
            return place
    return None


def _compile(root: Path, version: str) -> None:
    """Compiles Python's own modules where this interpreter has their version."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        for place in root.glob(f"usr/lib/python{version}"):
            compileall.compile_dir(
                place, quiet=2, stripdir=str(root), prependdir="/", workers=1, invalidation_mode=_UNCHECKED
            )


_UNCHECKED = compileall.py_compile.PycInvalidationMode.UNCHECKED_HASH  # type: ignore[attr-defined]


def initial(system: Path) -> bytes:
    """Returns the initial file system: busybox, our script and the modules it loads."""
    files: dict[str, tuple[int, bytes]] = {}
    busybox_path = next((system / at for at in ("bin/busybox", "usr/bin/busybox") if (system / at).exists()), None)
    if busybox_path is None:
        raise BuildFailed(f"{BUSYBOX_PACKAGE} has no busybox")
    for name in ("bin", "dev", "proc", "sys", "root", "modules"):
        files[name] = (stat.S_IFDIR | 0o755, b"")
    files["bin/busybox"] = (stat.S_IFREG | 0o755, busybox_path.read_bytes())
    files["init"] = (stat.S_IFREG | 0o755, INIT.encode())
    modules = dict(modules_of(system, MODULES))
    files["modules/order"] = (stat.S_IFREG | 0o644, "".join(f"{name}.ko\n" for name in modules).encode())
    for name, data in modules.items():
        files[f"modules/{name}.ko"] = (stat.S_IFREG | 0o644, data)
    return archive(files)


def modules_of(system: Path, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yields modules of the kernel, those before that others need. Those that are built in are left out."""
    found = {}
    for path in system.rglob("*.ko*"):
        found[path.name.partition(".")[0].replace("-", "_")] = path
    if not found:
        raise BuildFailed("the kernel has no modules")
    built_in = "".join(path.read_text() for path in system.rglob("modules.builtin")).replace("-", "_")
    done: set[str] = set()

    def needed(name: str) -> Iterator[tuple[str, bytes]]:
        if name in done:
            return
        done.add(name)
        if name not in found:
            if f"/{name}.ko" not in built_in:
                raise BuildFailed(f"the kernel lacks the module {name}")
            return
        data = _module(found[name])
        for one in depends(data):
            yield from needed(one)
        yield name, data

    for name in wanted:
        yield from needed(name)


def depends(module: bytes) -> list[str]:
    """Returns the names of the modules that one needs, as it says itself (modinfo(8))."""
    found = re.search(rb"\0depends=([A-Za-z0-9_,-]*)\0", module)
    return [name.replace("-", "_") for name in found[1].decode().split(",") if name] if found else []


def _module(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dc"], input=data, check=True, capture_output=True).stdout
    return data


def archive(files: dict[str, tuple[int, bytes]]) -> bytes:
    """Returns a cpio archive in the form that the kernel unpacks (newc)."""
    pieces = []
    for number, (name, (mode, data)) in enumerate([*files.items(), ("TRAILER!!!", (0, b""))], 1):
        encoded = name.encode() + b"\0"
        numbers = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
        head = b"070701" + b"".join(b"%08X" % value for value in numbers) + encoded
        pieces += [head, bytes(-len(head) % 4), data, bytes(-len(data) % 4)]
    return b"".join(pieces)


def _run(*words: str, cwd: Path | None = None) -> str:
    """Runs a tool and returns its output. Raises BuildFailed with its complaint."""
    try:
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=_BOUND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFailed(f"{words[0]}: {error}; {_MEND}") from None
    if done.returncode:
        raise BuildFailed(f"{words[0]}: {done.stderr.strip()[-500:]}")
    return done.stdout
