"""Taking turns: every subject meets the same weather."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.peers import open_peers
from skillyard.bench import turns
from skillyard.bench.installations import interpreter, printed
from skillyard.bench.subject import PLAIN, SUM, Awaited, Blocking, GivenUp, Subject, WrongResult
from skillyard.bench.turns import CONCURRENCY, Plan

pytestmark = pytest.mark.anyio


@dataclass
class Log:
    """Who worked and rested, in order."""

    events: list[str] = field(default_factory=list)

    def subject(self, name: str, *, block: int = 1, every: int = 1) -> Subject:
        async def work() -> None:
            self.events.append(name)

        async def rest() -> None:
            self.events.append(f"({name})")

        return Subject(name, name, "none", SUM, Awaited(work), rest, block, every, True)


def plan(rounds: int, seconds: float = 60.0) -> Plan:
    return Plan(rounds, seconds, windows=2, window_s=0.01, ready=1, data=False)


async def test_everybody_has_a_turn_in_each_round_and_another_one_begins() -> None:
    log = Log()
    found = await turns.latency([log.subject(name) for name in "abc"], plan(3), GivenUp())
    assert [name for name in log.events if "(" not in name] == list("abcbcacab")
    assert {name: len(rounds.samples) for name, rounds in found.items()} == {"a": 3, "b": 3, "c": 3}


async def test_a_subject_rests_before_each_job_of_its_block() -> None:
    log = Log()
    await turns.latency([log.subject("a", block=2)], plan(1), GivenUp())
    assert log.events == ["(a)", "a", "(a)", "a"]


async def test_a_slow_subject_takes_part_in_some_rounds() -> None:
    log = Log()
    found = await turns.latency([log.subject("fast"), log.subject("slow", every=4)], plan(9), GivenUp())
    assert sorted(found["slow"].blocks) == [0, 4, 8]
    assert len(found["fast"].blocks) == 9


async def test_time_ends_it_but_not_before_one_round() -> None:
    log = Log()
    found = await turns.latency([log.subject("a"), log.subject("b")], plan(1000, seconds=0.0), GivenUp())
    assert [len(rounds.blocks) for rounds in found.values()] == [1, 1]


async def test_throughput_has_a_window_for_each_level_and_subject() -> None:
    def work() -> None:
        Path("/").stat()

    subject = Subject("a", "a", "none", SUM, Blocking(work), loaded=True)
    found = await turns.throughput([subject], plan(1), GivenUp())
    assert {level: len(rounds.samples) for level, rounds in found["a"].items()} == dict.fromkeys(CONCURRENCY, 2)
    assert any(rate > 0 for rounds in found["a"].values() for rate in rounds.samples), (
        "a busy machine may take a window"
    )


async def test_a_failing_job_is_not_a_sample() -> None:
    async def work() -> None:
        raise WrongResult("no")

    with pytest.raises(WrongResult):
        await turns.latency([Subject("a", "a", "none", SUM, Awaited(work))], plan(1), GivenUp())


async def test_a_peer_that_fails_is_asked_no_more_and_the_others_go_on() -> None:
    calls = []

    def work() -> None:
        calls.append(1)
        raise WrongResult("its socket is in use")

    log, given_up = Log(), GivenUp()
    peer = Subject("peer", "peer", "none", SUM, Blocking(work), loaded=True, peer=True)
    found = await turns.latency([peer, log.subject("a")], plan(3), given_up)
    rates = await turns.throughput([peer], plan(1), given_up)
    assert given_up == {"peer": "its socket is in use"}
    assert (len(calls), len(found["a"].blocks), found["peer"].samples) == (1, 3, [])
    assert not any(rounds.samples for rounds in rates["peer"].values())


def test_a_wrong_sum_is_no_result() -> None:
    SUM.check({"sum": 31})
    for wrong in ({"sum": 30}, {}, None, {"sum": 31, "more": 1}):
        with pytest.raises(WrongResult, match="'sum' gave"):
            SUM.check(wrong)


def test_a_plain_interpreter_does_the_job_with_its_argument_and_output() -> None:
    assert printed([interpreter(), "-I", "-c", PLAIN, SUM.request(None)]) == '{"sum": 31}\n'


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(WrongResult, match="status 3: broken"):
        printed([interpreter(), "-c", "import sys; sys.exit(print('broken', file=sys.stderr) or 3)"])


def test_peers_that_are_absent_are_skipped_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with open_peers(tmp_path, interpreter(), None) as (found, skipped):
        assert [subject.id for subject in found][:1] == ["fork"]
        reasons = {one.id: one.reason for one in skipped}
    assert {"bubblewrap", "srt", "docker"} <= reasons.keys()
    assert all("not installed" in reasons[name] for name in ("bubblewrap", "srt", "docker"))
