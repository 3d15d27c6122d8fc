"""What is measured is held against what is promised, and what is not measured is not called met."""

from __future__ import annotations

from bench.budget import MANY_SKILLS, Line, compare
from bench.catalogue import Shelf
from bench.network import Ways
from bench.readers import Reading
from bench.schemas import Checked
from bench.streams import Streams
from skillyard.bench.idle import Idle
from skillyard.bench.processor import MODES, OURS, PROTOTYPE, Processor
from skillyard.bench.turns import Rounds

MIB = 1024 * 1024
GOOD = {"python": 10, "ready": 1.3, "on_demand": 2.7, "data": 1.6, "http": 2.4, "numpy": 1.6}
BAD = {"python": 10, "ready": 1.5, "on_demand": 11, "data": 2.0, "http": 3.2, "numpy": 2.1}


def rounds(*milliseconds: float) -> Rounds:
    made = Rounds()
    for number, value in enumerate(milliseconds):
        made.add(number, [value / 1000])
    return made


def idle(count: int, unshared: int | None) -> Idle:
    return Idle(count, made_s=1, ended_s=1, processes=2 * count, unshared_bytes=unshared, host_bytes=None)


def shelf(added_s: float, page_ms: float) -> Shelf:
    """Of many skills."""
    made = Shelf(MANY_SKILLS, 5, starts=[1 + added_s], bare_starts=[1.0])
    made.asked["page"] = rounds(page_ms)
    return made


def streams(added_ms: float, trees: float, idle_s: float) -> Streams:
    return Streams(rounds(1), rounds(1), {"a": rounds(1 + added_ms)}, {"a": rounds(trees)}, idle={"a": idle_s})


def by_name(lines: list[Line]) -> dict[str, bool | None]:
    return {line.name: line.met for line in lines}


def processor(*, busy: float, times: float) -> Processor:
    """Returns runs that take ``times`` as long as the prototype's."""
    made = Processor("control group", busy)
    for mode in MODES:
        for subject, seconds in ((OURS, 0.001 * times), (PROTOTYPE, 0.001)):
            made.note(subject, mode, 0, {"times": [seconds], "cpu": seconds, "took": seconds, "parts": {}})
    return made


def test_nothing_measured_is_nothing_met() -> None:
    assert set(by_name(compare({}, {}, None, {})).values()) == {None}


def test_each_line_can_be_met_and_missed() -> None:
    good = compare(
        {name: rounds(ms) for name, ms in GOOD.items()},
        {"http": {8: rounds(310_000)}, "python": {1: rounds(100_000)}},
        idle(1000, 3 * MIB),
        {"import skillyard": [0.05], "skillyard version": [0.14]},
        Ways(1, plain=rounds(1.2), policy=rounds(3.1)),
        shelf(1.9, 4.9),
        Checked(small=[0.0009], quiet=[0.001], attacked=[0.099]),
        Reading({"a": 2.1, "b": 3.9}, 1.9, 39),
        streams(2.9, 5.9, 0.0049),
        processor(busy=0.1, times=1.4),
    )
    bad = compare(
        {name: rounds(ms) for name, ms in BAD.items()},
        {"http": {8: rounds(290_000)}, "python": {1: rounds(100_000)}},
        idle(1000, 5 * MIB),
        {"import skillyard": [0.151], "skillyard version": [0.1], "skillyard runs list": [0.2]},
        Ways(1, plain=rounds(1.2), policy=rounds(3.3)),
        shelf(2.1, 5.1),
        Checked(small=[0.0011], quiet=[0.001], attacked=[0.101]),
        Reading({"a": 2.1, "b": 4.1}, 2.1, 41),
        streams(3.1, 6.1, 0.0051),
        processor(busy=0.1, times=2.3),
    )
    assert set(by_name(good).values()) == {True}
    assert [name for name, met in by_name(bad).items() if met] == ["ready sandboxes at once"]


def test_a_busy_machine_meets_and_misses_nothing() -> None:
    lines = compare({name: rounds(ms) for name, ms in BAD.items()}, {}, None, {}, processor=processor(busy=1, times=9))
    assert set(by_name(lines).values()) == {None}
    assert any(line.measured is not None for line in lines)


def test_a_few_ready_sandboxes_say_nothing_about_a_thousand() -> None:
    assert by_name(compare({}, {}, idle(100, None), {}))["ready sandboxes at once"] is None


def test_what_http_adds_is_the_median_of_the_rounds() -> None:
    lines = compare({"ready": rounds(1, 10, 1), "http": rounds(2, 12, 2)}, {}, None, {})
    assert [line.measured for line in lines if line.name.startswith("what HTTP adds")] == [1.0]
