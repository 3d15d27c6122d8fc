"""CPython's own regression tests inside a sandbox: the walls must not break ordinary Python.

What fails inside and passes outside stands in expected.toml with its reason. An interpreter without the ``test``
package (Debian's, for one) has nothing to run here.
"""

from __future__ import annotations

import re
import sysconfig
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from skillyard.domain.limits import Limits
from skillyard.domain.outcome import Outcome
from skillyard.domain.sandbox import Argv, SandboxSpec, Stream
from skillyard.sandbox.native.backend import NativeBackend

SHORT = ("test_json", "test_csv", "test_re", "test_struct", "test_tempfile", "test_sqlite3", "test_uuid")
LONG = (
    "test_asyncio",
    "test_bz2",
    "test_ctypes",
    "test_datetime",
    "test_decimal",
    "test_gzip",
    "test_hashlib",
    "test_importlib",
    "test_inspect",
    "test_io",
    "test_logging",
    "test_lzma",
    "test_mmap",
    "test_multiprocessing_fork",
    "test_multiprocessing_spawn",
    "test_os",
    "test_pathlib",
    "test_pickle",
    "test_posix",
    "test_queue",
    "test_random",
    "test_select",
    "test_selectors",
    "test_shutil",
    "test_signal",
    "test_socket",
    "test_ssl",
    "test_subprocess",
    "test_tarfile",
    "test_threading",
    "test_time",
    "test_zipfile",
)
BOUND_MS = 900_000
FAILED = re.compile(rb"^(?:ERROR|FAIL): (\w+) \((test\.[\w.]+)\)", re.MULTILINE)
TOTAL = re.compile(rb"^Total tests: run=([\d,]+)", re.MULTILINE)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        not (Path(sysconfig.get_path("stdlib")) / "test" / "test_json").is_dir(),
        reason="this interpreter came without its regression tests",
    ),
]


def there(modules: tuple[str, ...]) -> tuple[str, ...]:
    """Builds leave some of them out."""
    home = Path(sysconfig.get_path("stdlib")) / "test"
    return tuple(name for name in modules if (home / name / "__init__.py").exists() or (home / f"{name}.py").exists())


def expected() -> dict[str, dict[str, str]]:
    return tomllib.loads((Path(__file__).parent / "expected.toml").read_text())


def is_expected(name: str, where: str) -> bool:
    full = f"{where}.{name}"
    return any(
        fnmatchcase(full, f"test.{module}.*.{pattern}") or fnmatchcase(full, f"test.{module}.{pattern}")
        for module, patterns in expected().items()
        for pattern in patterns
    )


async def run(base: Path, modules: tuple[str, ...]) -> tuple[set[tuple[str, str]], int, bytes]:
    """What failed as (test, its class), how many ran, and all that was printed."""
    backend = NativeBackend(base / "run")
    limits = Limits(timeout_ms=BOUND_MS, memory_mb=2048, cpus=2.0, pids=512, disk_mb=1024)
    environment = {"TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        sandbox = await backend.create(SandboxSpec(limits=limits), "regrtest")
        command = Argv(("python3", "-m", "test", "-j2", "--timeout", "300", *modules), env=environment)
        process = await sandbox.start(command, id="tests")
        text = b"".join([piece async for piece in process.output(Stream.STDOUT)])
        text += b"".join([piece async for piece in process.output(Stream.STDERR)])
        ending = await process.wait()
    finally:
        await backend.close()
    assert ending.outcome is Outcome.EXIT, ending
    ran = TOTAL.search(text)
    count = int(ran[1].replace(b",", b"")) if ran else 0
    return {(name.decode(), where.decode()) for name, where in FAILED.findall(text)}, count, text


def unexpected(failed: set[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted((name, where) for name, where in failed if not is_expected(name, where))


@pytest.mark.timeout(300)
async def test_the_standard_library_works_inside(tmp_path: Path) -> None:
    failed, _, text = await run(tmp_path, there(SHORT))
    assert unexpected(failed) == []
    assert f"All {len(there(SHORT))} tests OK".encode() in text or b"Result: SUCCESS" in text, text[-2000:]


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_what_fails_inside_is_known_with_its_reason(tmp_path: Path) -> None:
    failed, count, text = await run(tmp_path, there(LONG))
    print(f"\nCPython's own tests inside: {len(failed)} of {count or 'all'} fail, each for a known reason")
    assert unexpected(failed) == [], text[-3000:].decode("utf-8", "replace")
