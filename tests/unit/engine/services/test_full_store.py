"""Output of tasks while the store is full: it is told, kept in the sandbox, and taken once there is room."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skillyard.domain.blob import BlobLimits
from skillyard.domain.skill.skill import SkillKind
from skillyard.engine.runs import log, patience
from skillyard.stores.clock import SystemIds
from skillyard.testing.memory_blobs import MemoryBlobs
from tests.unit.engine.commands.stepping import ANN, Stepping, start, status, until, watched
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill
from tests.unit.engine.runs.resuming import idle, killed, next_server

pytestmark = pytest.mark.anyio

KEPT, ROOM, OTHER = 40_000, 100_000, 75_000
LINE = b"\x001%06d ................................................................................\n"


@pytest.fixture(autouse=True)
async def full(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> str:
    """A blob of the same principal, beside which there is no room for a whole log; returns its id."""
    monkeypatch.setattr(patience, "FIRST_S", 0.01)
    rig.skills.add(a_skill("acme.notes", kind=SkillKind.INSTRUCTION))
    rig.principal = ANN
    rig.extra["blobs"] = MemoryBlobs(rig.home, rig.clock, SystemIds(), limits=BlobLimits(owner_bytes=ROOM))
    rig.configure(output={"log_bytes": KEPT})
    return (await rig.app.ports.blobs.create(ANN.name, "text/plain", bytes(OTHER))).blob_id


def say(work: Stepping, numbers: range) -> None:
    work.say(*(LINE % number for number in numbers))


async def problem(rig: Rig, task_id: str) -> str:
    return str((await status(rig, task_id))["log_problem"])


async def text_of(rig: Rig, task_id: str) -> tuple[int, str]:
    """Returns the number of dropped bytes, and the whole log behind them."""
    offset, dropped, text = 0, 0, ""
    while True:
        page: dict[str, Any] = await rig.call("skills.task_logs", task_id=task_id, offset=offset)
        dropped += page["dropped"]
        text += "".join(chunk["text"] for chunk in page["chunks"])
        if page["next_offset"] == offset:
            return dropped, text
        offset = page["next_offset"]


async def service(rig: Rig, work: Stepping) -> str:
    rig.backend.script = work
    return str((await rig.call("skills.run_service", skill_name="acme.notes", command="serve"))["task_id"])


async def test_the_log_of_a_service_stalls_is_told_and_goes_on(rig: Rig, full: str) -> None:
    work = Stepping()
    task_id = await service(rig, work)
    say(work, range(600))  # 53 kB: more than there is room for, and than is kept
    told = await until(lambda: problem(rig, task_id))
    assert "would pass the quota" in told, told
    page = await rig.call("skills.task_logs", task_id=task_id)
    assert (page["log_problem"], page["running"]) == (told, True)
    watching = await watched(rig, task_id, heartbeat_sec=5, timeout_sec=0.1)
    assert (watching["status"], watching["log_problem"]) == ("running", told)

    await rig.app.ports.blobs.delete(full)

    async def goes_on() -> bool:
        return not await problem(rig, task_id)

    await until(goes_on)
    say(work, range(600, 700))
    last = (LINE % 699)[2:].decode()

    async def taken() -> bool:
        return (await text_of(rig, task_id))[1].endswith(last)

    await until(taken)
    dropped, text = await text_of(rig, task_id)
    whole = "".join((LINE % number)[2:].decode() for number in range(700))
    assert dropped
    assert whole.endswith(text), "what is kept is the end, without a hole"
    assert len(text) > KEPT // 2
    work.say(None)
    assert (await watched(rig, task_id))["log_problem"].startswith("the first ")
    await idle(rig)


async def test_a_server_that_starts_while_the_store_is_full_tells_and_goes_on(rig: Rig, full: str) -> None:
    work = Stepping()
    task_id = await service(rig, work)
    say(work, range(600))
    await until(lambda: problem(rig, task_id))
    await killed(rig)
    await next_server(rig)
    assert "would pass the quota" in await until(lambda: problem(rig, task_id))
    await rig.app.ports.blobs.delete(full)
    say(work, range(600, 700))
    last = (LINE % 699)[2:].decode()

    async def taken() -> bool:
        return (await text_of(rig, task_id))[1].endswith(last)

    await until(taken)
    assert not await problem(rig, task_id)
    work.say(None)
    assert (await watched(rig, task_id))["status"] == "succeeded"


async def test_a_task_that_ends_before_there_is_room_says_that_its_log_is_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "PART_BYTES", 10_000)
    work = Stepping()
    task_id = await start(rig, work, quiet_after_sec=1)
    say(work, range(400))  # 35 kB
    told = await until(lambda: problem(rig, task_id))
    assert "would pass the quota" in told
    waited = await watched(rig, task_id, timeout_sec=1.1)
    assert (waited["status"], waited["quiet"]) == ("running", False), "nobody heard it, so nobody calls it silent"
    work.say(None)
    ended = await watched(rig, task_id)
    assert (ended["status"], ended["exit_code"]) == ("succeeded", 0)
    assert ended["log_problem"].startswith("the full log was not kept: "), ended["log_problem"]
    assert "logs_blob" not in ended
    await idle(rig)


async def test_a_stalled_task_is_cancelled_at_once(rig: Rig) -> None:
    work = Stepping()
    task_id = await service(rig, work)
    say(work, range(600))
    await until(lambda: problem(rig, task_id))
    async with asyncio.timeout(5):
        assert (await rig.call("skills.task_cancel", task_id=task_id))["canceled"]
    await idle(rig)
