"""CPython's own tests inside a sandbox: whatever passes outside passes there too, or the table says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillyard.config.backends import NativeSettings
from skillyard.sandbox.native.backend import NativeBackend
from tests.conformance.regrtest import expected, modules, places
from tests.conformance.regrtest.results import FAILED, PASSED, SKIPPED, Results

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(bool(modules.missing()), reason=modules.missing())]
BOUND_S = 600.0

_SHORT = modules.there(modules.SHORT)
MODULES = [
    *_SHORT,
    *(pytest.param(name, marks=pytest.mark.long) for name in modules.there(modules.LONG) if name not in _SHORT),
]


@pytest.mark.timeout(4 * BOUND_S)
@pytest.mark.parametrize("module", MODULES)
async def test_module(tmp_path: Path, module: str) -> None:
    backend = NativeBackend(tmp_path / "run", NativeSettings(ready=0))
    try:
        inside = await places.inside(backend, module, BOUND_S)
        print(f"\n{module}: {_counts(inside)}")
        surprising = await _surprising(module, inside)
        if surprising:  # some of these tests measure time, and this host has other things to do
            surprising &= await _surprising(module, await places.inside(backend, module, BOUND_S))
    finally:
        await backend.close()
    assert not surprising, "\n".join(f"{test}: {inside.texts.get(test, inside.said)}" for test in sorted(surprising))


def test_table_gives_a_reason_for_each_test() -> None:
    assert all(reason for patterns in expected.load().values() for reason in patterns.values())


async def _surprising(module: str, inside: Results) -> set[str]:
    """What fails inside, passes outside, and is not in the table; the module itself when it did not come to its end."""
    failed = expected.unexplained(inside.of(FAILED) | (set() if inside.whole else {module}))
    if not failed:
        return failed
    outside = await places.outside(module, BOUND_S)
    return failed & (outside.of(PASSED) | outside.of(SKIPPED) | ({module} if outside.whole else set()))


def _counts(results: Results) -> str:
    failed = results.of(FAILED)
    text = f"{len(results.of(PASSED))} passed, {len(failed)} failed, {len(results.of(SKIPPED))} skipped"
    return f"{text}: {', '.join(sorted(failed))}" if failed else text
