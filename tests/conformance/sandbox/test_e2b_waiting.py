"""A stage that waits in a template: it serves one order, and where none waits or it fails another one starts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.spec import Argv, Guest, Mount, Owner, SandboxSpec, Start, StreamLimits, clear_request
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Outcome
from skillyard.sandbox.e2b import stage
from skillyard.sandbox.e2b.backend import E2bBackend
from skillyard.sandbox.e2b.probe import WITHOUT
from skillyard.sandbox.e2b.provider import Provider
from skillyard.testing.sandbox_suite.ground import code, look, run
from tests.conformance.sandbox import e2b_ground
from tests.conformance.sandbox.e2b_ground import BAKED, BOUND_S, COLD, StandIn

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
_WAITED, _STARTED = "waiting.py", "stage.pyc start"
_END = f"tr '\\0' ' ' </proc/$(cat {stage.ROOT}/channel.pid)/cmdline"


@pytest.fixture
async def backend(provider: StandIn, tmp_path: Path) -> AsyncIterator[E2bBackend]:
    settings = provider.settings.model_copy(update={"template": BAKED, "templates": ("base", COLD, "dead", "older")})
    backend = E2bBackend(tmp_path / "e2b", settings, e2b_ground.key)
    yield backend
    for held in await backend.survey():
        await backend.destroy(held.handle)
    await backend.close()


def _spec(**more: object) -> SandboxSpec:
    return SandboxSpec(owner=Owner.TASK, allow_degraded=WITHOUT, **more)  # type: ignore[arg-type]


async def _in(provider: StandIn, handle: str, command: str) -> str:
    """Returns what a command of root says in a machine."""
    machine = await Provider(provider.settings, e2b_ground.key).connect(handle, 60)
    return str((await machine.commands.run(command, user="root")).stdout)


@pytest.mark.parametrize(
    ("template", "end"),
    [(BAKED, _WAITED), (COLD, _STARTED), ("base", "python3 -I -S"), ("dead", _STARTED), ("older", _STARTED)],
)
async def test_the_stage_that_waits_serves_a_sandbox_and_another_where_none_does(
    template: str, end: str, backend: E2bBackend, provider: StandIn, tmp_path: Path
) -> None:
    (tmp_path / "shown").write_text("content")
    mounts = (Mount(Content("c" * 64, tmp_path / "shown"), "/skills/shown"),)
    for key in ("first", "again"):  # the first machine of a template is looked at before
        sandbox = await backend.create(_spec(image=template, mounts=mounts), f"{key}-{template}")
        assert end in await _in(provider, sandbox.handle, _END)
        told = await run(sandbox, code("def main(args): print(open('/skills/shown').read())"))
        assert told.stdout == b"content\n"
        await backend.destroy(sandbox.handle)


@pytest.mark.parametrize(
    ("leaves", "starts"),
    [
        ("true", False),
        ("touch /tmp/left", True),
        ("mkdir /dev/shm/left", True),
        ("chmod 700 /tmp", True),
        ("chmod 500 /workspace", True),
        ("setsid sleep 1000 >/dev/null 2>&1 & sleep 0.2", False),  # the agent ends it with its program
    ],
)
async def test_a_sandbox_that_is_clear_is_not_cleared_by_a_process(
    leaves: str, starts: bool, backend: E2bBackend
) -> None:
    sandbox = await backend.create(_spec(), "one")
    sandbox.follow("one", Start(Guest(clear_request()), "clears", 30_000, StreamLimits(64 * 1024, 64 * 1024)))
    process = await sandbox.start(Argv(("bash", "-c", leaves)), id="one")
    assert (await process.wait()).code == 0
    told = await sandbox.followed()
    assert told is not None
    channel, ending = told
    assert (ending.outcome, ending.code, json.loads(channel[5:])) == (Outcome.EXIT, 0, {"left": []})
    assert bool(ending.usage.wall_ms) == starts
    look = "stat -c '%a %h %s' /tmp /dev/shm; ls -A /tmp /dev/shm; stat -c %a /workspace; ls -d /proc/[0-9]*"
    seen = (await run(sandbox, Argv(("bash", "-c", look)))).stdout.decode()
    assert seen.startswith("1777 2 40\n1777 2 40\n/dev/shm:\n\n/tmp:\n700\n/proc/1\n"), seen


async def test_a_stage_waits_once_and_root_alone_reaches_it(backend: E2bBackend, provider: StandIn) -> None:
    api = Provider(provider.settings, e2b_ground.key)
    machine = await api.create(BAKED, {}, 60, "one")
    look = f"stat -c '%F %a %u' {stage.WAITS}/*/order {stage.WAITS}/*/over"
    assert await _in(provider, machine.sandbox_id, look) == "fifo 600 0\n" * 2
    await api.kill(machine.sandbox_id)
    sandbox = await backend.create(_spec(), "one")
    assert "order" not in await _in(provider, sandbox.handle, f"ls {stage.WAITS}/*")
    text = f"cat {stage.WAITS}/*/pid; ls /opt/skillyard /run/skillyard {stage.WAITS} /.machine; cat /proc/1/environ"
    told = await run(sandbox, Argv(("sh", "-c", f"{text}; kill -9 1; ls /run")))
    assert told.stdout == b"guest.pyz\n"
    await backend.destroy(sandbox.handle)


async def test_a_channel_that_is_lost_is_opened_anew(backend: E2bBackend, provider: StandIn) -> None:
    sandbox = await backend.create(_spec(), "one")
    await _in(provider, sandbox.handle, f"kill -9 $(cat {stage.ROOT}/channel.pid)")
    assert (await run(sandbox, Argv(("echo", "there")))).stdout == b"there\n"
    assert _WAITED not in await _in(provider, sandbox.handle, _END)
    machine = await Provider(provider.settings, e2b_ground.key).connect(sandbox.handle, 60)
    async with asyncio.timeout(BOUND_S):
        while len([one for one in await machine.commands.list() if one]) > 1:  # that which brought the order has ended
            await asyncio.sleep(0.05)
    await backend.destroy(sandbox.handle)


async def test_limits_are_those_of_the_order_and_not_of_the_template(backend: E2bBackend, provider: StandIn) -> None:
    for disk_mb in (16, 64):
        limits = Limits(memory_mb=128, disk_mb=disk_mb, pids=20, cpus=0.5, timeout_ms=30_000)
        sandbox = await backend.create(_spec(limits=limits), f"disk-{disk_mb}")
        source = "import os; found = os.statvfs('/workspace'); print(found.f_blocks * found.f_frsize >> 20)"
        assert await look(sandbox, source) == disk_mb
        group = "f=/sys/fs/cgroup; cat $f/pids/skillyard/pids.max 2>/dev/null || cat $f/skillyard/pids.max"
        assert await _in(provider, sandbox.handle, group) == "22\n"
        await backend.destroy(sandbox.handle)


async def test_programs_share_no_layout_and_no_seed_with_the_stage(backend: E2bBackend) -> None:
    source = (
        "import json, subprocess\n"
        "def main(args):\n"
        "    shell = subprocess.run(['bash', '-c', 'cat /proc/self/maps'], capture_output=True, text=True).stdout\n"
        "    maps = [open('/proc/self/maps').read(), shell]\n"
        "    found = [line.split('-')[0] for text in maps for line in text.splitlines() if 'stack' in line]\n"
        "    print(json.dumps([hash('seed'), *found]))\n"
    )
    sandbox = await backend.create(_spec(), "one")
    first, second = [json.loads((await run(sandbox, code(source))).stdout) for _ in range(2)]
    assert len(first) == 3
    assert not {*first} & {*second}
    await backend.destroy(sandbox.handle)
