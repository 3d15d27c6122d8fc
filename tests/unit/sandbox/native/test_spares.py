"""A control group serves a second sandbox where nothing shows the first one, and no other does."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillyard.sandbox.native.groups.groups import Group, GroupLimits
from skillyard.sandbox.native.groups.spares import KEPT_S, MOST, REST_S, Spares

LIMITS = GroupLimits(memory_bytes=64 << 20, pids=17, cpus=1.5)
OTHERS = GroupLimits(memory_bytes=64 << 20, pids=18, cpus=1.5)
FRESH = {
    1: {
        "tasks": "",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
        "memory.max_usage_in_bytes": "9999999\n",
        "memory.usage_in_bytes": f"{2 << 20}\n",
        "pids.current": "0\n",
        "pids.events": "max 0\n",
        "cpu.shares": "1024\n",
    },
    2: {
        "cgroup.procs": "",
        "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
        "memory.peak": "9999999\n",
        "memory.current": f"{2 << 20}\n",
        "pids.current": "0\n",
        "pids.events": "max 0\n",
        "cpu.weight": "100\n",
    },
}


class Kept:
    """Spares whose time is set, and the groups that they gave up."""

    def __init__(self) -> None:
        self.now = 100.0
        self.buried: list[Group] = []
        self.spares = Spares(self.buried.append, lambda: self.now)

    def rest(self) -> None:
        self.now += REST_S

    def gives_up(self, group: Group) -> None:
        """Holds that a group that has rested goes to no sandbox, and is removed."""
        self.spares.keep(group, LIMITS)
        self.rest()
        assert self.spares.take(LIMITS) is None
        assert self.buried == [group]


@pytest.fixture
def kept() -> Kept:
    return Kept()


def _group(place: Path, version: int, **files: str) -> Group:
    place.mkdir()
    for name, text in (FRESH[version] | {name.replace("__", "."): text for name, text in files.items()}).items():
        (place / name).write_text(text)
    group = Group(version, dict.fromkeys(("memory", "pids", "cpu") if version == 1 else ("",), str(place)))
    group.open_counters()
    return group


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_without_a_trace_is_used_again_with_its_peak_forgotten(
    kept: Kept, tmp_path: Path, version: int
) -> None:
    group = _group(tmp_path / "one", version)
    group.weigh(3)
    kept.spares.keep(group, LIMITS)
    kept.rest()
    assert kept.spares.take(OTHERS) is None
    assert kept.spares.take(LIMITS) is group
    assert group.peak_memory() != 9999999
    name, weight = ("cpu.shares", "1024") if version == 1 else ("cpu.weight", "100")
    assert (tmp_path / "one" / name).read_text().strip() == weight
    assert kept.spares.take(LIMITS) is None
    assert kept.buried == []


@pytest.mark.parametrize(
    ("version", "traces"),
    [
        (1, {"pids__current": "1\n"}),
        (1, {"pids__current": "", "tasks": "4711\n"}),
        (1, {"memory__oom_control": "oom_kill 1\n"}),
        (1, {"pids__events": "max 1\n"}),
        (1, {"memory__usage_in_bytes": f"{(2 << 20) + 1}\n"}),
        (1, {"memory__usage_in_bytes": ""}),
        (1, {"memory__kmem__tcp__usage_in_bytes": "4096\n"}),
        (2, {"pids__current": "1\n"}),
        (2, {"pids__current": "", "cgroup__procs": "4711\n"}),
        (2, {"memory__events": "oom_kill 1\n"}),
        (2, {"pids__events": "max 1\n"}),
        (2, {"memory__current": f"{(2 << 20) + 1}\n"}),
    ],
    ids=str,
)
def test_a_group_with_a_trace_is_removed(kept: Kept, tmp_path: Path, version: int, traces: dict[str, str]) -> None:
    group = _group(tmp_path / "one", version, **traces)
    kept.gives_up(group)


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_that_was_looked_at_is_not_looked_at_again(kept: Kept, tmp_path: Path, version: int) -> None:
    group = _group(tmp_path / "one", version)
    kept.spares.keep(group, LIMITS)
    assert not kept.spares.look()
    for name in ("pids.current", "tasks" if version == 1 else "cgroup.procs"):
        (tmp_path / "one" / name).write_text("1\n")
    assert kept.spares.take(LIMITS) is None, "it rests all the same"
    kept.rest()
    assert kept.spares.take(LIMITS) is group
    assert group.peak_memory() != 9999999


@pytest.mark.parametrize("late", [True, False])
def test_a_group_that_is_not_clean_yet_is_looked_at_when_it_is_taken(kept: Kept, tmp_path: Path, late: bool) -> None:
    group = _group(tmp_path / "one", 2, memory__current=f"{3 << 20}\n")
    kept.spares.keep(group, LIMITS)
    kept.spares.look()
    if late:
        (tmp_path / "one" / "memory.current").write_text("0\n")
    kept.rest()
    assert kept.spares.take(LIMITS) is (group if late else None)
    assert kept.buried == ([] if late else [group])


def test_groups_are_looked_at_one_at_a_time(kept: Kept, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        kept.spares.keep(_group(tmp_path / name, 1), LIMITS)
    assert [kept.spares.look() for _ in range(4)] == [True, True, False, False]


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_that_is_used_again_is_opened_once_more_for_all_later_ones(
    kept: Kept, tmp_path: Path, version: int
) -> None:
    group = _group(tmp_path / "one", version)
    joins = group.join_descriptors()
    group.joined(joins)
    assert not any(map(_is_open, joins))
    opened = []
    for _ in range(3):
        kept.spares.keep(group, LIMITS)
        kept.rest()
        assert kept.spares.take(LIMITS) is group
        opened.append(group.join_descriptors())
        group.joined(opened[-1])
        assert all(map(_is_open, opened[-1]))
    assert opened == opened[:1] * 3
    group.close_counters()
    assert not any(map(_is_open, opened[0]))


def _is_open(fd: int) -> bool:
    return Path(f"/proc/self/fd/{fd}").exists()


def test_a_group_whose_quota_was_lifted_is_removed(kept: Kept, tmp_path: Path) -> None:
    group = _group(tmp_path / "one", 1)
    group.hurry()
    kept.gives_up(group)


def test_a_group_that_somebody_removed_is_not_used(kept: Kept, tmp_path: Path) -> None:
    group = Group(1, {"pids": str(tmp_path / "gone")})
    kept.gives_up(group)


def test_a_peak_that_cannot_be_forgotten_is_shown_to_nobody(kept: Kept, tmp_path: Path) -> None:
    """Before Linux 6.12 the file cannot be written to."""
    (tmp_path / "one").mkdir()
    for name, text in FRESH[2].items():
        (tmp_path / "one" / name).write_text(text)
    (tmp_path / "one" / "memory.peak").chmod(0o444)
    group = Group(2, {"": str(tmp_path / "one")})
    group.open_counters()
    kept.gives_up(group)


def test_a_group_rests_until_the_period_of_its_quota_is_over(kept: Kept, tmp_path: Path) -> None:
    group = _group(tmp_path / "one", 1)
    kept.spares.keep(group, LIMITS)
    assert kept.spares.take(LIMITS) is None
    assert kept.buried == []
    kept.rest()
    assert kept.spares.take(LIMITS) is group


def test_few_groups_are_kept_and_the_oldest_go_first(kept: Kept, tmp_path: Path) -> None:
    groups = [_group(tmp_path / str(number), 2) for number in range(MOST + 1)]
    for group in groups[:-1]:
        kept.spares.keep(group, LIMITS)
    kept.rest()
    kept.spares.keep(groups[-1], LIMITS)
    assert kept.buried == groups[:1]


def test_many_short_runs_do_not_remove_groups_that_rest(kept: Kept, tmp_path: Path) -> None:
    groups = [_group(tmp_path / str(number), 2) for number in range(MOST + 1)]
    for group in groups:
        kept.spares.keep(group, LIMITS)
    assert kept.buried == groups[-1:]
    kept.rest()
    assert kept.spares.take(LIMITS) is groups[0]


def test_groups_that_nobody_asks_for_are_given_up(kept: Kept, tmp_path: Path) -> None:
    first, second = _group(tmp_path / "first", 1), _group(tmp_path / "second", 1)
    kept.spares.keep(first, LIMITS)
    kept.now += KEPT_S / 2
    kept.spares.keep(second, LIMITS)
    assert kept.spares.fade() == KEPT_S / 2
    assert kept.buried == []
    kept.now += KEPT_S / 2
    assert kept.spares.fade() == KEPT_S / 2
    assert kept.buried == [first]
    kept.now += KEPT_S
    assert kept.spares.fade() is None
    assert kept.buried == [first, second]
