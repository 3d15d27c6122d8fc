"""Installing wheels with uv, which is a dependency of ours: no pip, no build step, no code of a package runs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from skillyard.engine.environments import InstallFailed

TIMEOUT_S = 900.0
_TIED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes a program that ends with us, however we end: PR_SET_PDEATHSIG, SIGKILL (prctl(2))."""
_SHOWN = 1500


async def install_with_uv(packages: tuple[str, ...], target: Path) -> None:
    """Wheels for the interpreter that sandboxes use. uv's own settings (index, proxy, cache) are honoured.

    Raises InstallFailed with the end of what uv said.
    """
    # Copies, because sealing a hard link would change the file in uv's cache.
    process = await asyncio.create_subprocess_exec(
        base_interpreter(),
        *("-I", "-S", "-c", _TIED, str(os.getpid()), _uv()),
        *("pip", "install", "--target", str(target), "--python", base_interpreter()),
        *("--only-binary", ":all:", "--link-mode", "copy", "--compile-bytecode", "--no-progress"),
        *("--", *packages),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, errors = await process.communicate()
    except TimeoutError:
        raise InstallFailed(f"uv did not finish within {TIMEOUT_S:.0f} s") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        raise InstallFailed(_explained(errors))


def base_interpreter() -> str:
    """The interpreter below any virtual environment: the one that sandboxes run."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def _uv() -> str:
    import uv

    try:
        return uv.find_uv_bin()
    except FileNotFoundError as error:
        raise InstallFailed(f"uv is missing ({error}); reinstall skillyard") from error


def _explained(errors: bytes) -> str:
    text = errors.decode("utf-8", "replace").strip()
    return " ".join(text[-_SHOWN:].split()) or "uv failed and said nothing"
