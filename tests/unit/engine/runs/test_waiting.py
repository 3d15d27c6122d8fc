"""Calls that wait for a run: woken by its changes, bounded in time and in number."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from skillyard.domain.errors import Busy, InvalidInput, RunNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.sandbox.spec import Owner, Stream
from skillyard.domain.work.event import MOST_EVENTS
from skillyard.domain.work.record import Outcome, RunKind, RunRecord, RunStatus
from skillyard.ports.records import RecordStore
from skillyard.testing.twin_sandbox import TwinProcess
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import result
from tests.unit.engine.runs.test_grant import SECRET, secret_skill

pytestmark = pytest.mark.anyio

LONG_MS = 60_000
SOON_S = 20.0
MALLORY = Principal("mallory", frozenset({Scope.RUN_CODE}))


class Talking:
    """A program that works until a test ends it."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.process: TwinProcess | None = None

    async def __call__(self, process: TwinProcess) -> None:
        self.process = process
        self.began.set()
        await process.ended

    @property
    def id(self) -> str:
        assert self.process is not None
        return self.process.id

    def say(self, data: bytes) -> None:
        assert self.process is not None
        self.process.log(data)

    def finish(self) -> None:
        assert self.process is not None
        self.process.write(result({"done": 1}))
        self.process.end()


async def begun(rig: Rig, **params: Any) -> tuple[Talking, asyncio.Task[dict[str, Any]]]:
    talking = Talking()
    running = asyncio.create_task(rig.run(talking, **params))
    await asyncio.wait_for(talking.began.wait(), SOON_S)
    return talking, running


async def blocked(call: asyncio.Task[Any], rig: Rig, count: int = 1) -> None:
    """Returns when so many calls wait; ``call`` is one of them."""
    async with asyncio.timeout(SOON_S):
        while len(rig.app.waiting._bounds) < count and not call.done():
            await asyncio.sleep(0)
    assert not call.done()


async def soon(call: asyncio.Task[dict[str, Any]]) -> dict[str, Any]:
    return await asyncio.wait_for(call, SOON_S)


def asking(rig: Rig, method: str, /, **params: Any) -> asyncio.Task[dict[str, Any]]:
    return asyncio.create_task(rig.call(method, **params))


async def detached(rig: Rig, run_id: str = "run_d", **changes: Any) -> RunRecord:
    """A record as a run has that outlives its server. Nobody drives it."""
    record = RunRecord(run_id, RunKind.CODE, "local", RunStatus.QUEUED, 5.0, owner=Owner.TASK, request_digest="d")
    record = replace(record, **changes)
    await records(rig).insert(record, "{}")
    return record


def records(rig: Rig) -> RecordStore:
    return rig.app.ports.records


async def test_the_end_of_a_run_wakes_who_waits_for_it(rig: Rig) -> None:
    talking, running = await begun(rig)
    waits = [asking(rig, "runs.wait", run_id=talking.id, wait_ms=LONG_MS) for _ in range(3)]
    await blocked(waits[0], rig, 3)
    talking.finish()
    run = await soon(running)
    assert [await soon(wait) for wait in waits] == [{"ended": True, "run": run}] * 3
    assert rig.app.waiting._turns == {}
    assert await rig.call("runs.wait", run_id=talking.id) == {"ended": True, "run": run}


async def test_a_wait_ends_with_its_time(rig: Rig) -> None:
    talking, running = await begun(rig, labels={"team": "crm"})
    for wait_ms in (0, 20):
        answer = await rig.call("runs.wait", run_id=talking.id, wait_ms=wait_ms)
        assert not answer["ended"]
        run = answer["run"]
        assert (run["status"], run["summary"], run["labels"]) == ("running", "the run is going on", {"team": "crm"})
    brief = (await rig.call("runs.wait", run_id=talking.id, wait_ms=0, detail="brief"))["run"]
    assert brief == {"run_id": talking.id, "status": "running", "summary": "the run is going on"}
    assert rig.app.waiting._turns == {}
    talking.finish()
    await soon(running)


async def test_a_detached_run_is_told_as_it_is(rig: Rig) -> None:
    record: RunRecord | None = await detached(rig)
    for status, said in ((RunStatus.QUEUED, "waits for its turn"), (RunStatus.STARTING, "is being made")):
        assert record is not None
        record = await records(rig).change(replace(record, status=status), 6.0)
        run = (await rig.call("runs.wait", run_id="run_d", wait_ms=0))["run"]
        assert run["status"] == status.value
        assert said in run["summary"]
        [line] = (await rig.call("runs.list", status=status.value))["runs"]
        assert (line["run_id"], line["detached"], line["labels"]) == ("run_d", True, {})
    shown = (await rig.call("runs.show", run_id="run_d"))["run"]
    private = {"lease", "deadline", "program", "offsets", "blob_prefix", "secrets", "network_session", "revision"}
    assert not private & shown.keys()
    assert shown["cancel_requested"] is None


@pytest.mark.parametrize("method", ["runs.wait", "runs.events", "runs.logs"])
async def test_nobody_waits_for_a_run_of_another(rig: Rig, method: str) -> None:
    talking, running = await begun(rig)
    for run_id in (talking.id, "run_none"):
        with pytest.raises(RunNotFound):
            await rig.call(method, MALLORY, run_id=run_id, wait_ms=LONG_MS)
    talking.finish()
    await soon(running)


async def test_events_of_a_run_come_when_they_happen(rig: Rig) -> None:
    record: RunRecord | None = await detached(rig)
    assert record is not None
    page = await rig.call("runs.events", run_id="run_d", wait_ms=LONG_MS)
    assert page["events"] == [{"seq": 1, "at": 5.0, "kind": "queued", "data": {}}]
    assert not page["complete"]
    wait = asking(rig, "runs.events", run_id="run_d", after=page["next_after"], wait_ms=LONG_MS)
    await blocked(wait, rig)
    record = await records(rig).change(replace(record, status=RunStatus.RUNNING), 6.0, "attached", {"by": "s"})
    assert record is not None
    page = await soon(wait)
    assert [(event["seq"], event["kind"], event["data"]) for event in page["events"]] == [
        (2, "running", {}),
        (3, "attached", {"by": "s"}),
    ]
    at = rig.clock.time  # a sweep removes what ended long ago
    ended = replace(record, status=RunStatus.FAILED, outcome=Outcome.LOST, reason="gone", ended_at=at)
    wait = asking(rig, "runs.events", run_id="run_d", after=3, wait_ms=LONG_MS)
    await blocked(wait, rig)
    assert await records(rig).finish(ended)
    page = await soon(wait)
    assert page["events"] == [{"seq": 4, "at": at, "kind": "failed", "data": {"outcome": "lost", "reason": "gone"}}]
    assert page["complete"]
    assert await rig.call("runs.events", run_id="run_d", after=4, wait_ms=LONG_MS) == {
        "run_id": "run_d",
        "events": [],
        "next_after": 4,
        "complete": True,
    }
    pages = [await rig.call("runs.events", run_id="run_d", after=after, limit=2) for after in (0, 2, 4)]
    assert [[event["seq"] for event in page["events"]] for page in pages] == [[1, 2], [3, 4], []]
    assert [page["complete"] for page in pages] == [False, False, True]


async def test_an_attached_run_has_two_events(rig: Rig) -> None:
    talking, running = await begun(rig)
    page = await rig.call("runs.events", run_id=talking.id)
    assert [event["kind"] for event in page["events"]] == ["running"]
    wait = asking(rig, "runs.events", run_id=talking.id, after=1, wait_ms=LONG_MS)
    await blocked(wait, rig)
    talking.finish()
    run = await soon(running)
    [event] = (await soon(wait))["events"]
    assert (event["seq"], event["kind"]) == (2, "completed")
    assert event["data"] == {"outcome": "exit", "reason": ""}
    assert event["at"] == (await rig.record(run)).ended_at


async def test_events_are_bounded(rig: Rig) -> None:
    record: RunRecord | None = await detached(rig)
    for number in range(MOST_EVENTS + 5):
        assert record is not None
        record = await records(rig).change(record, float(number), "tick")
    page = await rig.call("runs.events", run_id="run_d", after=MOST_EVENTS - 3, limit=500)
    assert [event["kind"] for event in page["events"]] == ["tick", "dropped"]


async def test_a_follower_gets_the_log_as_it_comes(rig: Rig) -> None:
    talking, running = await begun(rig)
    said, offset = "", 0
    for number in range(5):
        page = asking(rig, "runs.logs", run_id=talking.id, offset=offset, wait_ms=LONG_MS)
        await blocked(page, rig)
        talking.say(b"line %d\n" % number)
        answer = await soon(page)
        assert not answer["complete"]
        said += answer["content"]
        offset = answer["next_offset"]
    last = asking(rig, "runs.logs", run_id=talking.id, offset=offset, wait_ms=LONG_MS)
    await blocked(last, rig)
    talking.finish()
    await soon(running)
    assert await soon(last) | {"run_id": ""} == {
        "run_id": "",
        "content": "",
        "encoding": "utf-8",
        "offset": offset,
        "next_offset": offset,
        "dropped": 0,
        "running": False,
        "complete": True,
    }
    assert said == "".join(f"line {number}\n" for number in range(5))


async def test_a_follower_waits_for_the_program_to_start(rig: Rig) -> None:
    rig.backend.gate = asyncio.Event()
    talking = Talking()
    running = asyncio.create_task(rig.run(talking))
    async with asyncio.timeout(SOON_S):
        while not rig.app.active:
            await asyncio.sleep(0)
        while not (listed := (await rig.call("runs.list"))["runs"]):
            await asyncio.sleep(0)
    page = asking(rig, "runs.logs", run_id=listed[0]["run_id"], wait_ms=LONG_MS)
    await blocked(page, rig)
    rig.backend.gate.set()
    await asyncio.wait_for(talking.began.wait(), SOON_S)
    talking.say(b"first")
    assert (await soon(page))["content"] == "first"
    talking.finish()
    await soon(running)


async def test_a_follower_goes_on_behind_what_was_dropped(rig: Rig) -> None:
    talking, running = await begun(rig)
    assert talking.process is not None
    talking.say(b"0123456789")
    page = await rig.call("runs.logs", run_id=talking.id, wait_ms=LONG_MS, max_bytes=4)
    assert (page["content"], page["next_offset"], page["dropped"]) == ("0123", 4, 0)
    talking.process.drop(7)
    page = await rig.call("runs.logs", run_id=talking.id, offset=4, wait_ms=LONG_MS)
    assert (page["content"], page["next_offset"], page["dropped"]) == ("789", 10, 3)
    talking.finish()
    await soon(running)


async def test_no_part_of_a_secret_stands_beside_a_gap(rig: Rig) -> None:
    rig.skills.add(secret_skill("a.b", "TOKEN"))
    rig.secrets.values["TOKEN"] = SECRET
    talking = Talking()
    rig.backend.script = talking
    running = asyncio.create_task(rig.call("execute_skill", name="a.b"))
    await asyncio.wait_for(talking.began.wait(), SOON_S)
    assert talking.process is not None
    before, behind = f"{'a' * 300}{SECRET[:6]}".encode(), f"{SECRET[4:]}{'b' * 300}".encode()
    talking.say(before)
    first = await rig.call("runs.logs", run_id=talking.id, wait_ms=LONG_MS)
    talking.process.drop(len(before) + 1000)
    talking.say(b"x" * 1000 + behind)
    page = await rig.call("runs.logs", run_id=talking.id, offset=first["next_offset"], wait_ms=LONG_MS)
    assert page["dropped"] == 1000 + len(before) - len(first["content"])
    assert set(first["content"]) == {"a"}
    assert set(page["content"]) == {"b"}
    assert page["next_offset"] == first["next_offset"] + page["dropped"] + len(page["content"])
    talking.finish()
    await soon(running)


async def test_a_silent_log_answers_when_the_time_is_over(rig: Rig) -> None:
    talking, running = await begun(rig)
    began = time.monotonic()
    page = await rig.call("runs.logs", run_id=talking.id, wait_ms=30)
    assert (page["content"], page["next_offset"], page["running"], page["complete"]) == ("", 0, True, False)
    assert time.monotonic() - began < SOON_S
    talking.finish()
    await soon(running)


class Reads:
    """Counts the bytes of the log that are read from the program."""

    def __init__(self, process: TwinProcess) -> None:
        self.bytes = 0
        output = process.output

        async def counted(stream: Stream, offset: int = 0) -> Any:
            async for data in output(stream, offset):
                self.bytes += len(data)
                yield data

        process.output = counted  # type: ignore[method-assign]


@pytest.mark.parametrize(("secret", "max_bytes"), [(True, 700), (True, 4000), (False, 4000)])
async def test_a_follower_reads_each_byte_once(rig: Rig, secret: bool, max_bytes: int) -> None:
    rig.skills.add(secret_skill("a.b", *(["TOKEN"] if secret else [])))
    rig.secrets.values["TOKEN"] = SECRET
    talking = Talking()
    rig.backend.script = talking
    running = asyncio.create_task(rig.call("execute_skill", name="a.b"))
    await asyncio.wait_for(talking.began.wait(), SOON_S)
    assert talking.process is not None
    reads = Reads(talking.process)
    written, said, offset = b"", "", 0
    for number in range(20):
        line = f"{number} {SECRET} {'ü' * 400}\n".encode()
        written += line
        talking.say(line)
        page = await rig.call("runs.logs", run_id=talking.id, offset=offset, wait_ms=LONG_MS, max_bytes=max_bytes)
        said += page["content"]
        offset = page["next_offset"]
    assert reads.bytes <= len(written)
    assert (SECRET in said) is not secret
    whole = written.decode().replace(SECRET, "[redacted]") if secret else written.decode()
    assert whole.startswith(said)
    assert len(said) > 5000
    talking.finish()
    await soon(running)
    rest = await rig.call("runs.logs", run_id=talking.id, offset=offset, max_bytes=1 << 20)
    assert said + rest["content"] == whole
    assert rig.app.history._pages._readings == {}


async def test_one_principals_calls_leave_room_for_others(rig: Rig) -> None:
    rig.configure(admission={"polls": 8, "polls_each": 5})
    await detached(rig)
    await detached(rig, "run_m", principal="mallory")
    mine = [asking(rig, "runs.wait", run_id="run_d", wait_ms=LONG_MS) for _ in range(5)]
    await blocked(mine[0], rig, 5)
    more: dict[str, dict[str, Any]] = {"runs.events": {"after": 9}}
    waiting: dict[str, Any] = {"run_id": "run_d", "wait_ms": LONG_MS}
    for method in ("runs.wait", "runs.events", "runs.logs"):
        with pytest.raises(Busy, match="too many calls wait for runs at once") as caught:
            await rig.call(method, **waiting, **more.get(method, {}))
        assert caught.value.retry_after_ms > 0
    assert (await rig.call("runs.wait", run_id="run_d", wait_ms=0))["ended"] is False
    theirs = asyncio.create_task(rig.call("runs.wait", MALLORY, run_id="run_m", wait_ms=LONG_MS))
    await blocked(theirs, rig, 6)
    for call in (*mine, theirs):
        call.cancel()
    await asyncio.gather(*mine, theirs, return_exceptions=True)
    assert rig.app.waiting._turns == {}
    assert rig.app.waiting._polls.held == 0
    assert not (await rig.call("runs.wait", run_id="run_d", wait_ms=10))["ended"]


async def test_a_server_that_stops_answers_who_waits(rig: Rig) -> None:
    await detached(rig)
    calls = [
        asking(rig, "runs.wait", run_id="run_d", wait_ms=LONG_MS),
        asking(rig, "runs.events", run_id="run_d", after=1, wait_ms=LONG_MS),
        asking(rig, "runs.logs", run_id="run_d", wait_ms=LONG_MS),
    ]
    await blocked(calls[0], rig, 3)
    rig.app.close_admission()
    wait, events, logs = [await soon(call) for call in calls]
    assert (wait["ended"], events["events"], logs["content"]) == (False, [], "")
    assert not (await rig.call("runs.wait", run_id="run_d", wait_ms=LONG_MS))["ended"]


async def test_labels_find_runs(rig: Rig) -> None:
    runs = [await rig.run(labels=labels) for labels in ({"team": "crm", "n": "1"}, {"team": "crm"}, {})]
    assert [run.get("labels") for run in runs] == [{"team": "crm", "n": "1"}, {"team": "crm"}, None]
    for labels, found in (
        ({"team": "crm"}, [1, 0]),
        ({"team": "crm", "n": "1"}, [0]),
        ({"n": "2"}, []),
        ({}, [2, 1, 0]),
    ):
        page = await rig.call("runs.list", labels=labels)
        assert [line["run_id"] for line in page["runs"]] == [runs[index]["run_id"] for index in found]
    assert (await rig.call("runs.list", MALLORY, labels={"team": "crm"}))["runs"] == []


@pytest.mark.parametrize(
    ("labels", "refusal"),
    [
        ({f"n{number}": "" for number in range(17)}, "labels: must be at most 16 labels"),
        ({"Team": "x"}, "labels: must have names of a-z"),
        ({"": "x"}, "labels: must have names of a-z"),
        ({"a" * 64: "x"}, "labels: must have names of a-z"),
        ({"a\n": "x"}, "labels: must have names of a-z"),
        ({"a": "x" * 257}, "labels.a: must have at most 256 characters"),
        ({"a": "\ud800"}, "labels.a: must be well-formed Unicode"),
        ({"a": 1}, "labels.a: must be a string"),
        ({"a": None}, "labels.a: must be a string"),
        (["a"], "labels: must be an object"),
    ],
)
@pytest.mark.parametrize("method", ["run_code", "runs.list"])
async def test_labels_are_bounded(rig: Rig, method: str, labels: Any, refusal: str) -> None:
    given: dict[str, Any] = {"language": "python", "code": "x"} if method == "run_code" else {}
    with pytest.raises(InvalidInput) as caught:
        await rig.call(method, labels=labels, **given)
    assert str(caught.value).startswith(refusal)


async def test_a_live_run_has_no_end_yet(rig: Rig) -> None:
    """The end of a detached run is stored before its sandbox is destroyed."""
    error = {"type": "SandboxLost", "message": "gone"}
    ending: dict[str, Any] = {"outcome": Outcome.LOST, "reason": "gone", "ended_at": 6.0, "error": error}
    await detached(rig, status=RunStatus.RUNNING, **ending)
    shown = (await rig.call("runs.show", run_id="run_d"))["run"]
    [listed] = (await rig.call("runs.list"))["runs"]
    for run in (shown, listed):
        assert (run["status"], run["outcome"], run["reason"], run["ended_at"]) == ("running", None, "", None)
    assert shown["error"] is None
    waited = (await rig.call("runs.wait", run_id="run_d", wait_ms=0))["run"]
    assert waited["status"] == "running"
    assert not {"error", "outcome"} & waited.keys()
