"""What a policy demands and a record claims, for whatever a backend says of itself."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import ProtectionMissing
from skillyard.domain.sandbox.guarantees import (
    ADVISORY,
    BOUNDARIES,
    GUARANTEES,
    KERNEL_CAN,
    LIMITS,
    PROTECTIONS,
    WALLS,
    Demand,
    Level,
    Nature,
    Protection,
    guarantees,
    weaker,
)

Offered = Mapping[str, Protection]
BARE = Nature()

levels = st.sampled_from(list(Level))
native_levels = st.sampled_from([Level.KERNEL, Level.SUPERVISED, Level.MISSING])


def names(of: tuple[str, ...]) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(of))


def offers(of: tuple[str, ...], level: st.SearchStrategy[Level] = levels) -> st.SearchStrategy[dict[str, Protection]]:
    """Some of the names, each with a level."""
    return st.dictionaries(st.sampled_from(of), level.map(Protection))


def every(level: Level, *of: str) -> dict[str, Protection]:
    return {name: Protection(level, by=name) for name in of}


def by_parts(offered: Offered, kernel_only: frozenset[str], allowed: frozenset[str]) -> list[str]:
    """The rule for backends that are made of walls: each of them, and each limit, by itself."""
    short = []
    for name in PROTECTIONS:
        level = offered[name].level if name in offered else Level.MISSING
        if name in allowed or name in ADVISORY:
            continue
        if level is Level.MISSING or (level is Level.SUPERVISED and name in kernel_only):
            short.append(name)
    return short


every_part = st.fixed_dictionaries({name: native_levels.map(Protection) for name in PROTECTIONS})


@given(every_part, names(PROTECTIONS), names(PROTECTIONS))
def test_a_backend_made_of_walls_is_held_to_each_of_them(
    offered: Offered, kernel_only: frozenset[str], allowed: frozenset[str]
) -> None:
    assert Demand(kernel_only, allowed).shortfall(offered) == by_parts(offered, kernel_only, allowed)


@given(offers(PROTECTIONS, native_levels), names(PROTECTIONS), names(PROTECTIONS))
def test_a_wall_that_is_not_named_is_no_way_round_the_demand(
    offered: Offered, kernel_only: frozenset[str], allowed: frozenset[str]
) -> None:
    if by_parts(offered, kernel_only, allowed):
        assert Demand(kernel_only, allowed).shortfall(offered)


@given(offers(GUARANTEES + WALLS), names(GUARANTEES), names(GUARANTEES + WALLS), st.sampled_from(GUARANTEES + WALLS))
def test_what_falls_away_never_helps(
    offered: Offered, kernel_only: frozenset[str], allowed: frozenset[str], name: str
) -> None:
    demand = Demand(kernel_only, allowed)
    better = {**offered, name: Protection(Level.KERNEL)}
    worse = {**offered, name: Protection(Level.MISSING)}
    if not demand.shortfall(worse):
        assert not demand.shortfall(better)
    for guarantee, stands in guarantees(worse, BARE).items():
        if stands.attestor is not Level.MISSING:
            assert guarantees(better, BARE)[guarantee].attestor is not Level.MISSING


@given(offers(GUARANTEES + WALLS), names(GUARANTEES + WALLS))
def test_a_guarantee_that_is_missing_is_refused_unless_it_was_excused(
    offered: Offered, allowed: frozenset[str]
) -> None:
    short = Demand(allow_degraded=allowed).shortfall(offered)
    for name, stands in guarantees(offered, BARE).items():
        excused = name in allowed or (name in BOUNDARIES and not allowed.isdisjoint(BOUNDARIES[name].bearing))
        if stands.attestor is Level.MISSING and not excused:
            assert short, name


@given(offers(GUARANTEES + WALLS), names(WALLS))
def test_a_nature_excuses_its_own_walls_and_no_other(offered: Offered, without: frozenset[str]) -> None:
    """Also a backend without the walls that usually bear a guarantee stands or falls with those that it has."""
    short = Demand(allow_degraded=without).shortfall(offered)
    for name, stands in guarantees(offered, Nature(without=without)).items():
        left = [wall for walls in BOUNDARIES.get(name, ()) for wall in walls if wall not in without | ADVISORY]
        if stands.attestor is Level.MISSING and (name in LIMITS or left):
            assert short, name


@given(names(tuple(BOUNDARIES)), st.sampled_from(WALLS))
def test_a_wall_is_demanded_while_one_demanded_guarantee_rests_on_it(allowed: frozenset[str], wall: str) -> None:
    rests = {name for name, walls in BOUNDARIES.items() if wall in (*walls.bearing, *walls.further)}
    demanded = wall not in ADVISORY and not rests <= allowed
    assert Demand(allow_degraded=allowed).demands(wall) is demanded
    offered = every(Level.KERNEL, *PROTECTIONS) | every(Level.MISSING, wall)
    assert Demand(allow_degraded=allowed).shortfall(offered) == [wall] * demanded


@given(st.text())
def test_an_attestation_that_is_not_known_is_missing(text: str) -> None:
    assert Level(text) is (Level.MISSING if text not in set(Level) else text)


def test_every_wall_that_is_demanded_upholds_a_guarantee() -> None:
    upholding = {wall for walls in BOUNDARIES.values() for wall in (*walls.bearing, *walls.further)}
    assert upholding == set(WALLS)
    assert not ADVISORY & {wall for walls in BOUNDARIES.values() for wall in walls.bearing}


def test_a_machine_of_ones_own_needs_to_name_no_wall() -> None:
    offered = every(Level.PROVIDER, *BOUNDARIES) | every(Level.SUPERVISED, *LIMITS)
    Demand().check(offered)
    stand = guarantees(offered, BARE)
    assert {stand[name].attestor for name in BOUNDARIES} == {Level.PROVIDER}
    assert stand["network"].evidence == ("network",)


def test_a_provider_is_not_the_kernel() -> None:
    with pytest.raises(ProtectionMissing, match=r"privilege \(only attested by its provider here") as caught:
        Demand(KERNEL_CAN).check(every(Level.KERNEL, *GUARANTEES) | every(Level.PROVIDER, "privilege"))
    assert caught.value.details["protections"] == ["privilege"]


def test_a_guarantee_that_a_backend_says_nothing_of_is_named_by_itself() -> None:
    offered = every(Level.PROVIDER, *BOUNDARIES) | every(Level.KERNEL, *LIMITS)
    del offered["neighbours"]
    with pytest.raises(ProtectionMissing, match=r"neighbours \(the backend does not offer it\)"):
        Demand().check(offered)


def test_a_wall_that_is_named_as_missing_belies_the_guarantee() -> None:
    offered = every(Level.KERNEL, *GUARANTEES) | every(Level.MISSING, "mount_namespace")
    assert guarantees(offered, BARE)["host_files"].attestor is Level.MISSING
    assert Demand().shortfall(offered) == ["mount_namespace"]


def test_the_weakest_attestation_is_that_of_the_guarantee() -> None:
    offered = every(Level.KERNEL, *PROTECTIONS) | every(Level.PROVIDER, "read_only_root")
    assert guarantees(offered, BARE)["host_files"].attestor is Level.PROVIDER


def test_evidence_names_the_walls_that_stand() -> None:
    offered = every(Level.KERNEL, *PROTECTIONS) | every(Level.MISSING, "landlock")
    found = guarantees(offered, BARE)["host_files"]
    assert (found.attestor, found.evidence, found.lacking) == (
        Level.KERNEL,
        ("mount_namespace", "read_only_root"),
        ("landlock",),
    )


def test_the_weaker_of_two_accounts_counts() -> None:
    one = {"memory": "kernel", "pids": "supervised", "seccomp": "missing", "own_kernel": "provider"}
    other = {"memory": "provider", "pids": "kernel", "seccomp": "kernel", "landlock": "kernel"}
    assert weaker(one, other) == {
        "memory": "provider",
        "pids": "supervised",
        "seccomp": "missing",
        "own_kernel": "missing",
    }
