"""The compiled part of zygotes as this checkout's source makes it, for tests."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import skillyard

PROJECT = Path(skillyard.__file__).parents[2]
SOURCE = PROJECT / "src/skillyard/sandbox/native/inside/steps.c"
SOURCES = (SOURCE, SOURCE.with_name("first.c"))


def make_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.PyDLL:
    """The compiled part as this checkout's source makes it."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    target = tmp_path_factory.mktemp("steps") / "libsteps.so"
    subprocess.run(["cc", *hook().FLAGS, "-Werror", "-o", target, SOURCE], check=True, timeout=60)
    found = ctypes.PyDLL(str(target), use_errno=True)
    found.sy_check.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return found


def make_first(directory: Path) -> Path:
    """Makes the static first process as this checkout's source has it, and as nobody can read it."""
    target = directory / "first"
    command = ["cc", *hook().FIRST_FLAGS, "-Werror", "-o", target, SOURCE.with_name("first.c")]
    subprocess.run(command, check=True, timeout=60)
    target.chmod(0o111)
    return target


def hook() -> Any:
    spec = importlib.util.spec_from_file_location("hatch_build", PROJECT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
