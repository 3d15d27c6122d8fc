"""The suite can fail: each wall that is taken away, each promise that is broken, is noticed by the check for it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.sandbox.guarantees import ABILITIES, GUARANTEES, PROTECTIONS, Level
from skillyard.domain.sandbox.spec import SandboxSpec, Stream
from skillyard.domain.work.record import Ending, Outcome, Usage
from skillyard.testing.sandbox_suite import CHECKS, Check, Ground, Status, examine, examine_all
from skillyard.testing.sandbox_suite.check import SURVIVAL, expect
from tests.conformance.sandbox import exec_walls
from tests.conformance.sandbox.exec_backend import ExecBackend

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.ordinary,
    pytest.mark.skipif(bool(exec_walls.missing_tools()), reason=exec_walls.missing_tools()),
]
NAMED = {check.id: check for check in CHECKS}
Sabotage = Callable[[list[str]], list[str]]


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Over a backend whose probe was taken while all was well."""
    base = tmp_path_factory.mktemp("exec")
    backend = ExecBackend(base)
    (base / "scratch").mkdir()
    await backend.probe()
    yield Ground(backend, base / "scratch", hidden=(base,))
    await backend.close()
    assert list(base.glob("exec-*")) == []


def without(*words: str) -> Sabotage:
    return lambda argv: [word for word in argv if word not in words]


def _etc_of_the_host(argv: list[str]) -> list[str]:
    """All of it lies over the few files that are shown."""
    at = argv.index("--proc")
    return [*argv[:at], "--ro-bind", "/etc", "/etc", *argv[at:]]


def _packages_of_the_server(argv: list[str]) -> list[str]:
    hidden = exec_walls.site_directories()[0]
    at = argv.index(hidden)
    return [*argv[: at - 1], "--ro-bind", str(Path(pytest.__file__).parent.parent), hidden, *argv[at + 3 :]]


def _as_root(argv: list[str]) -> list[str]:
    at = argv.index("setpriv")
    return [*argv[: at - 1], "--cap-add", "ALL", "--", *argv[argv.index("--", at) + 1 :]]


def _open_settings(argv: list[str]) -> list[str]:
    at = argv.index("/proc/sys")
    return argv[: at - 1] + argv[at + 2 :]


WALLS: list[tuple[str, Sabotage]] = [
    ("network-interfaces", without("--unshare-net")),
    ("canaries-listeners", without("--unshare-net")),
    ("network-meet-by-ports", without("--unshare-net")),
    ("namespaces-host-name", without("--unshare-uts", "--hostname", "sandbox")),
    ("canaries-shared-memory", without("--unshare-ipc")),
    ("files-places", _etc_of_the_host),
    ("proc-settings", _open_settings),
    ("files-packages", _packages_of_the_server),
]
AS_ROOT: list[tuple[str, Sabotage]] = [
    ("privileges-capabilities", without("--bounding-set=-all")),
    ("privileges-who", _as_root),
    ("walls-user_is_not_root_outside", _as_root),
]


@pytest.mark.parametrize(("id", "sabotage"), WALLS, ids=[id for id, _ in WALLS])
async def test_a_wall_that_is_gone_is_noticed(
    id: str, sabotage: Sabotage, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _noticed(id, sabotage, ground, monkeypatch)


@pytest.mark.skipif(not exec_walls.as_root(), reason="needs root: bubblewrap gives an ordinary user no less")
@pytest.mark.parametrize(("id", "sabotage"), AS_ROOT, ids=[id for id, _ in AS_ROOT])
async def test_a_wall_of_root_that_is_gone_is_noticed(
    id: str, sabotage: Sabotage, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _noticed(id, sabotage, ground, monkeypatch)


@pytest.mark.parametrize("id", ["canaries-environment", "programs-environment_is_small_and_documented"])
async def test_an_environment_that_leaks_is_noticed(id: str, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    small = exec_walls.environment
    monkeypatch.setattr(exec_walls, "environment", lambda: {**os.environ, **small()})
    await _fails(id, ground)


async def _noticed(id: str, sabotage: Sabotage, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await examine(NAMED[id], ground)).status is Status.PASSED
    command = exec_walls.command
    monkeypatch.setattr(exec_walls, "command", lambda *args, **options: sabotage(command(*args, **options)))
    await _fails(id, ground)


async def _fails(id: str, ground: Ground) -> None:
    verdict = await examine(NAMED[id], ground)
    assert verdict.status is Status.FAILED, verdict
    assert verdict.reason.startswith("Failed: "), verdict


class Delegate:
    """Everything as the real one does it, but for what a subclass does worse."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class KillsNobody(Delegate):
    async def kill(self, reason: str = "") -> None:
        self._ending = Ending(Outcome.CANCELLED, reason=reason)

    async def wait(self) -> Ending:
        ending: Ending = self.__dict__.get("_ending") or await self._real.wait()
        return ending


class KnowsNoOffset(Delegate):
    async def output(self, stream: Stream, offset: int = 0) -> AsyncIterator[bytes]:
        async for data in self._real.output(stream):
            yield data


class LosesTheEnd(Delegate):
    async def output(self, stream: Stream, offset: int = 0) -> AsyncIterator[bytes]:
        async for data in self._real.output(stream, offset):
            yield data[:-1]


class MixesStreams(Delegate):
    async def output(self, stream: Stream, offset: int = 0) -> AsyncIterator[bytes]:
        for each in {stream, Stream.STDOUT}:
            async for data in self._real.output(each, offset):
                yield data


class HidesSignals(Delegate):
    async def wait(self) -> Ending:
        ending = await self._real.wait()
        return Ending(Outcome.EXIT, code=128 + ending.signal) if ending.signal else ending


class WorseSandbox(Delegate):
    def __init__(self, real: Any, process: type[Delegate]) -> None:
        super().__init__(real)
        self._process = process

    async def start(self, *args: Any, **options: Any) -> Delegate:
        return self._process(await self._real.start(*args, **options))


class WorseBackend(Delegate):
    process: type[Delegate] = Delegate

    async def create(self, spec: SandboxSpec, key: str) -> WorseSandbox:
        return WorseSandbox(await self._real.create(spec, key), self.process)


class ForgetsItsKeys(WorseBackend):
    async def create(self, spec: SandboxSpec, key: str) -> WorseSandbox:
        return await super().create(spec, f"{key}-{os.urandom(4).hex()}")


class DestroysNothing(WorseBackend):
    async def destroy(self, handle: str) -> Usage:
        return Usage()


class TakesEverySpec(WorseBackend):
    async def create(self, spec: SandboxSpec, key: str) -> WorseSandbox:
        probe = await self._real.probe()
        missing = frozenset(n for n, p in probe.protections.items() if p.level is Level.MISSING)
        return await super().create(replace(spec, allow_degraded=missing, kernel_only=frozenset()), key)


class IgnoresNames(WorseBackend):
    async def create(self, spec: SandboxSpec, key: str) -> WorseSandbox:
        return await super().create(replace(spec, image="", resource_class="", snapshot=""), key)


class LosesFiles(WorseBackend):
    """Its sandboxes take every tree, and unpack none."""

    async def create(self, spec: SandboxSpec, key: str) -> WorseSandbox:
        made = await super().create(spec, key)
        made.__dict__["put"] = _takes_all
        return made


class FollowsLinks(WorseBackend):
    """Its sandboxes remove what a link names."""

    async def create(self, spec: SandboxSpec, key: str) -> WorseSandbox:
        made = await super().create(spec, key)

        async def remove(path: str) -> None:
            await made._real.remove("/workspace/kept" if path == "/workspace/two" else path)

        made.__dict__["remove"] = remove
        return made


async def _takes_all(path: str, chunks: AsyncIterator[bytes]) -> None:
    async for _ in chunks:
        pass


def _with(process: type[Delegate]) -> type[WorseBackend]:
    return type(f"Backend{process.__name__}", (WorseBackend,), {"process": process})


PROMISES: list[tuple[str, type[WorseBackend]]] = [
    ("endings-kill_ends_the_whole_tree", _with(KillsNobody)),
    ("endings-signal_is_told", _with(HidesSignals)),
    ("output-reads_from_any_offset_and_again", _with(KnowsNoOffset)),
    ("output-five_megabytes_in_order", _with(LosesTheEnd)),
    ("output-streams_are_apart", _with(MixesStreams)),
    ("output-ring_keeps_the_tail", _with(LosesTheEnd)),
    ("output-slow_reader_delays_nobody", _with(LosesTheEnd)),
    ("trees-hostile_streams_are_refused", LosesFiles),
    ("trees-names_are_removed", FollowsLinks),
    ("lifecycle-names_that_it_does_not_have_are_refused", IgnoresNames),
    ("lifecycle-create_is_idempotent_on_its_key", ForgetsItsKeys),
    ("lifecycle-survey_lists_what_is_lent", DestroysNothing),
    ("lifecycle-what_is_missing_is_refused", TakesEverySpec),
    ("lifecycle-attach_of_what_is_gone_says_so", DestroysNothing),
    ("endings-destroy_ends_what_runs", DestroysNothing),
]


@pytest.mark.parametrize(("id", "worse"), PROMISES, ids=[f"{id}-{worse.__name__}" for id, worse in PROMISES])
async def test_a_broken_promise_is_noticed(id: str, worse: type[WorseBackend], ground: Ground) -> None:
    assert (await examine(NAMED[id], ground)).status is Status.PASSED
    broken = replace(ground, backend=worse(ground.backend))
    verdict = await examine(NAMED[id], broken)
    assert verdict.status is Status.FAILED, verdict
    assert verdict.reason.startswith("Failed: "), verdict


async def test_what_the_probe_calls_missing_is_skipped_with_its_reason(ground: Ground) -> None:
    verdict = await examine(NAMED["syscalls-tracing"], ground)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "seccomp: bubblewrap alone does not give it")


async def test_what_needs_a_restart_is_skipped_without_one(ground: Ground) -> None:
    verdict = await examine(NAMED["survival-run_ends_with_its_server"], ground)
    assert verdict.status is Status.SKIPPED
    assert "not offered" in verdict.reason


async def test_a_check_that_raises_fails_alone(ground: Ground) -> None:
    async def broken(_ground: Ground) -> None:
        raise RuntimeError("no such thing")

    async def kept(_ground: Ground) -> None:
        expect(held=True, promise="it holds")

    checks = [Check("broken", "own", frozenset(), broken), Check("kept", "own", frozenset(), kept)]
    first, second = await examine_all(checks, ground)
    assert (first.status, first.reason) == (Status.FAILED, "RuntimeError: no such thing")
    assert second.status is Status.PASSED


def test_every_check_has_a_name_of_its_own() -> None:
    assert len(NAMED) == len(CHECKS)
    assert all(check.needs | check.any_of <= {*GUARANTEES, *PROTECTIONS, *ABILITIES, SURVIVAL} for check in CHECKS)
