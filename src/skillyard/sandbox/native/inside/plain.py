"""The interpreter that foreign code gets: a plain one, perhaps with modules imported ahead."""

from __future__ import annotations

import os
import site
import sys

from skillyard.sandbox.native.inside.agreed import CODE_ROOT

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Numerical libraries read these when they load. Threads of theirs would not survive the fork."""


def be_plain(packages: str, code_root: str = CODE_ROOT) -> None:
    """Makes the interpreter a plain one: with site builtins and packages, without our path."""
    site.setquit()
    site.setcopyright()
    site.sethelper()
    sys.path[:] = [path for path in sys.path if path != code_root]
    if packages:
        sys.path.append(packages)
    sys.argv = [""]
    sys.orig_argv = [sys.executable]


def import_ahead(names: list[str]) -> dict[str, str]:
    """Imports modules; returns those that failed with the reason."""
    failed: dict[str, str] = {}
    os.environ.update(_ONE_THREAD)
    for name in names:
        try:
            __import__(name)
        except BaseException as error:  # noqa: BLE001 - a package may raise anything while it is imported
            failed[name] = f"{type(error).__name__}: {error}"
    for name in _ONE_THREAD:
        os.environ.pop(name, None)
    return failed
