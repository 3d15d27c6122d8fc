"""The log of a service: its latest output is kept, and each offset means the same byte wherever it is read."""

from __future__ import annotations

from typing import Any

import pytest

from skillyard.domain.skill.skill import Needs, SecretNeed
from tests.unit.engine.commands.stepping import ANN, Stepping, status, until, watched
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill
from tests.unit.engine.runs.resuming import idle, killed, next_server

pytestmark = pytest.mark.anyio

KEPT = 40_000
SECRET = "tok-0123456789"
LINE = "{:06d} {} é out ................\n"
SHOWN = "{:06d} [redacted] é out ................\n"
MOST_HELD = 200
"""Bytes at the end of each stream that may begin a secret, and are not shown yet."""


class Reader:
    """Follows a log. ``text`` has by offset of the log what was read of each stream; ``dropped`` what was not."""

    def __init__(self, rig: Rig, task_id: str) -> None:
        self._rig, self._task_id = rig, task_id
        self.offset = self.dropped = 0
        self.said = {"stdout": "", "stderr": ""}
        self.pages: dict[int, list[Any]] = {}

    async def page(self, **asked: Any) -> bool:
        """Returns whether there was something new."""
        page = await self._rig.call("skills.task_logs", task_id=self._task_id, offset=self.offset, **asked)
        assert page["next_offset"] >= self.offset + page["dropped"]
        self.dropped += page["dropped"]
        for chunk in page["chunks"]:
            self.said[chunk["stream"]] += chunk["text"]
        news: bool = page["next_offset"] > self.offset
        self.offset = page["next_offset"]
        return news

    async def to_the_end(self) -> Reader:
        while await self.page(max_bytes=5000):
            pass
        return self


async def started(rig: Rig, work: Stepping) -> str:
    rig.principal = ANN
    rig.secrets.values["TOKEN"] = SECRET
    rig.skills.add(a_skill("acme.crm", needs=Needs(secrets=(SecretNeed("TOKEN"),))))
    rig.configure(policy={"run_code_secrets": "mounted"}, output={"log_bytes": KEPT})
    rig.backend.script = work
    return str((await rig.call("skills.run_service", skill_name="acme.crm", command="serve"))["task_id"])


async def said(rig: Rig, task_id: str, work: Stepping, numbers: range, reader: Reader) -> None:
    """Has the service say a line for each number, to both streams in turn, and reads them."""
    for number in numbers:
        work.say(f"\0{1 + number // 10 % 2}{LINE.format(number, SECRET)}".encode())
    last = SHOWN.format(numbers[-1]).rstrip("\n.")

    async def all_read() -> bool:
        await reader.page(wait_ms=1000)
        return last in reader.said["stdout"] + reader.said["stderr"]

    await until(all_read)


def lines(numbers: range, stream: int) -> str:
    return "".join(SHOWN.format(number) for number in numbers if number // 10 % 2 == stream)


async def test_the_latest_output_is_kept_and_offsets_stay_true(rig: Rig) -> None:
    work = Stepping()
    task_id = await started(rig, work)
    follower = Reader(rig, task_id)
    for first in range(0, 6000, 250):  # 170 kB, in batches that the ring of the sandbox holds
        await said(rig, task_id, work, range(first, first + 250), follower)
    assert follower.dropped == 0
    shown = lines(range(6000), 0), lines(range(6000), 1)
    for text, whole in zip(follower.said.values(), shown, strict=True):
        assert whole.startswith(text)
        assert len(whole) - len(text) < MOST_HELD
    record = await rig.app.ports.records.get(task_id)
    assert record is not None
    assert record.offsets.log.first > 0
    late = await Reader(rig, task_id).to_the_end()
    assert KEPT // 2 < late.offset - late.dropped <= KEPT
    assert late.offset == follower.offset
    for stream, text in follower.said.items():
        assert text.endswith(late.said[stream])
        assert len(late.said[stream]) > KEPT // 8
    held = list(await rig.app.ports.blobs.list(None))
    assert sum(info.size for info in held) <= KEPT, "parts that left the ring are gone"
    middle = Reader(rig, task_id)
    middle.offset = late.dropped + 12_345
    await middle.to_the_end()

    await killed(rig)
    await next_server(rig)
    await said(rig, task_id, work, range(6000, 6010), follower)
    work.say(None)
    ended = await watched(rig, task_id)
    await follower.to_the_end()
    assert (follower.dropped, follower.said["stdout"]) == (0, lines(range(6010), 0))
    assert follower.said["stderr"] == lines(range(6010), 1)
    assert (ended["status"], ended["stdout_truncated"], ended["stderr_truncated"]) == ("succeeded", True, True)
    again = await Reader(rig, task_id).to_the_end()
    assert again.offset == follower.offset
    for stream, text in follower.said.items():
        assert text.endswith(again.said[stream])
    again = Reader(rig, task_id)
    again.offset = late.dropped + 12_345
    await again.to_the_end()
    assert all(again.said[stream].startswith(text) for stream, text in middle.said.items())
    [blob] = await rig.app.ports.blobs.list(None)
    assert (blob.blob_id, blob.size) == (ended["logs_blob"], again.offset - (await first_kept(rig, task_id)))
    assert SECRET.encode() not in await rig.content(blob.blob_id)
    await idle(rig)


async def first_kept(rig: Rig, task_id: str) -> int:
    page: dict[str, Any] = await rig.call("skills.task_logs", task_id=task_id, offset=0)
    return int(page["dropped"])


async def test_output_that_nobody_could_take_is_told(rig: Rig) -> None:
    work = Stepping()
    task_id = await started(rig, work)
    follower = Reader(rig, task_id)
    await said(rig, task_id, work, range(10), follower)
    await killed(rig)
    for number in range(10, 4000):
        work.say(f"\0001{LINE.format(number, SECRET)}".encode())
    await until(lambda: _empty(work))
    await next_server(rig)
    await said(rig, task_id, work, range(4000, 4010), follower)
    assert follower.dropped > 2 * KEPT
    late = await Reader(rig, task_id).to_the_end()
    assert late.offset == follower.offset
    assert follower.said["stdout"].endswith(late.said["stdout"])
    assert (await status(rig, task_id))["status"] == "running"
    work.say(None)
    assert (
        "bytes of the log were dropped"
        in (await rig.record({"run_id": (await watched(rig, task_id))["task_id"]})).reason
    )


async def _empty(work: Stepping) -> bool:
    return work.texts.empty()
