"""The kernel's surface: no larger than written here, a reason for each call, and as documented in a real sandbox."""

from __future__ import annotations

import errno
import json
import runpy
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.backends import NativeSettings
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.sandbox.spec import Argv, SandboxSpec, Stream
from skillyard.domain.work.limits import Limits
from skillyard.sandbox.native.backend import NativeBackend
from skillyard.sandbox.native.linux import call_arguments, kernel, seccomp
from skillyard.sandbox.native.linux.syscall_numbers import numbers
from tests.unit.sandbox.native.bpf_machine import ALLOW, ERRNO, strictest

CEILING = {"x86_64": 236, "aarch64": 201}
"""Every call more is more of the kernel to attack. What CPython's own tests and the packages people use need is in:
raise this only for a program that cannot do without, name it in the group's reason, and lower it when a call goes."""

GROUPS = seccomp.ALLOWED
EVERY_RULE = (*call_arguments.RULES, *call_arguments.CLOSING_RULES, *call_arguments.UNCOUNTED_RULES)
LAST = 600
PROGRAM = Path(__file__).with_name("each_call.py")
SIGCHLD = 17

GOOD: dict[str, list[int]] = {
    "socket": [1, 1, 0],
    "socketpair": [1, 1, 0, -1],
    "personality": [0xFFFFFFFF],
    "clone": [SIGCHLD, 0, 0, 0, 0],
    "close_range": [-1, -1, 0],
    "prctl": [3],
    "mmap": [0, 4096, 0, 0x22, -1, 0],
    "memfd_create": [-1, 1],
    "ioctl": [-1, 0x5413],
    "fcntl": [-1, 3],
    "setsockopt": [-1, 1, 2],
    "getsockopt": [-1, 1, 3],
    "sendto": [-1, 0, 0, 0],
    "sendmsg": [-1, 0, 0],
    "sendmmsg": [-1, 0, 0, 0],
}
"""Arguments that the rules let through, where -1 is none."""


def documented(arch: str) -> set[str]:
    page = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "system_calls.py"))
    reachable: set[str] = page["reachable"](arch)
    return reachable


@pytest.mark.parametrize("arch", sorted(CEILING))
def test_surface_is_no_larger_than_this(arch: str) -> None:
    assert len(documented(arch)) <= CEILING[arch], "a call was added: see CEILING"


@pytest.mark.parametrize("arch", sorted(CEILING))
def test_documented_calls_are_those_that_the_filters_let_through(arch: str) -> None:
    filters = [seccomp.large_filter(arch), seccomp.closing_filter(arch)]
    known = numbers(arch)
    passed = {name for name, nr in known.items() if strictest(filters, arch, nr, *_arguments(name)) == ALLOW}
    assert passed == documented(arch)


def test_each_call_stands_once_and_with_a_reason() -> None:
    names = [name for group in GROUPS for name in group.calls]
    assert len(names) == len(set(names))
    assert [group.name for group in GROUPS if len(group.why.split()) < 2] == []
    assert [rule.calls for rule in EVERY_RULE if not rule.why or not rule.says] == []
    tables = (seccomp.ABSENT, seccomp.BUILDING, seccomp.UNFILTERED)
    assert [name for table in tables for name, why in table.items() if not why] == []


def test_each_name_is_a_call() -> None:
    known = numbers("x86_64").keys() | numbers("aarch64").keys()
    named = {name for group in GROUPS for name in group.calls} | {name for rule in EVERY_RULE for name in rule.calls}
    assert (named | seccomp.ABSENT.keys() | seccomp.BUILDING.keys()) - known == set()


@pytest.mark.anyio
async def test_a_sandbox_answers_each_number_as_documented(tmp_path: Path) -> None:
    backend = NativeBackend(tmp_path / "run", NativeSettings(ready=0))
    try:
        counted = (await backend.probe()).protections["memory"].level is Level.KERNEL
        answers = await _inside(backend)
    finally:
        await backend.close()
    filters = [seccomp.large_filter(), seccomp.closing_filter(memory_counted=counted)]
    expected = {nr: strictest(filters, kernel.ARCH, nr, *_by_number(nr)) for nr in range(LAST + 1)}
    refused = {nr: _errno(word) for nr, word in expected.items() if word & 0xFFFF0000 == ERRNO}
    known = {nr: name for name, nr in numbers(kernel.ARCH).items()}
    unasked = {nr for nr in refused if known.get(nr) in seccomp.UNFILTERED and answers[nr] != refused[nr]}
    assert {nr: answers[nr] for nr in refused.keys() - unasked} == {nr: refused[nr] for nr in refused.keys() - unasked}
    assert {nr: answers[nr] for nr in unasked} == _outside(unasked)
    passed = expected.keys() - refused.keys()
    assert {known[nr] for nr in passed} == documented(kernel.ARCH) - (set() if counted else {"memfd_create"})
    assert [nr for nr in passed if answers[nr] == "SIGSYS"] == []
    doubtful = {nr: answers[nr] for nr in passed if answers[nr] in ("EPERM", "ENOSYS")}
    assert doubtful == _outside(doubtful), "refused inside, and not by the kernel"
    assert len(doubtful) <= 12, "this kernel lacks too much to say anything"


def _arguments(name: str) -> list[int]:
    return GOOD.get(name, [-1] * 6)


def _by_number(number: int) -> list[int]:
    return _GOOD_BY_NUMBER.get(number, [-1] * 6)


_GOOD_BY_NUMBER = {nr: GOOD[name] for name, nr in numbers(kernel.ARCH).items() if name in GOOD}


def _errno(word: int) -> str:
    return errno.errorcode[word & 0xFFFF]


def _words(wanted: Iterable[int]) -> tuple[str, ...]:
    return ("-c", PROGRAM.read_text(), json.dumps(_GOOD_BY_NUMBER), json.dumps(sorted(wanted)))


async def _inside(backend: NativeBackend) -> dict[int, str]:
    spec = SandboxSpec(Limits(), allow_degraded=frozenset({"own_uid", "uts_namespace", "cgroup_namespace"}))
    sandbox = await backend.create(spec, "surface")
    try:
        program = Argv(("python3", *_words(range(LAST + 1))))
        process = await sandbox.start(program, id="calls", timeout_ms=60_000)
        await process.wait()
        said = {stream: await _all(process.output(stream)) for stream in (Stream.STDOUT, Stream.STDERR)}
    finally:
        await backend.destroy(sandbox.handle)
    assert said[Stream.STDOUT], said[Stream.STDERR]
    return _read(said[Stream.STDOUT])


async def _all(pieces: Any) -> bytes:
    return b"".join([piece async for piece in pieces])


def _outside(wanted: Iterable[int]) -> dict[int, str]:
    """The kernel's own answers, without a filter, to somebody who has no more privileges than foreign code."""
    done = subprocess.run([sys.executable, *_words(wanted)], capture_output=True, timeout=60, check=True)
    return _read(done.stdout)


def _read(told: bytes) -> dict[int, str]:
    return {int(number): answer for number, answer in json.loads(told).items()}
