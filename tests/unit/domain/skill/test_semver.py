"""Semantic versions: order, ranges and the latest one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import InvalidInput
from skillyard.domain.skill.requirement import Requirement
from skillyard.domain.skill.semver import Precedence, Range, Version, is_version, latest, newest_first

ORDERED = [
    *("0.0.1", "0.1.0", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2"),
    *("1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0"),
]
"""Rising precedence; the pre-releases are the example of semver §11."""

numbers = st.integers(0, 10**6)
identifier = st.one_of(numbers.map(str), st.from_regex(r"[0-9]{0,3}[a-zA-Z-][0-9A-Za-z-]{0,5}", fullmatch=True))
versions = st.builds(
    Version,
    numbers,
    numbers,
    numbers,
    st.lists(identifier, max_size=3).map(".".join),
    st.lists(st.from_regex(r"[0-9A-Za-z-]{1,6}", fullmatch=True), max_size=2).map(".".join),
)


def precedence(text: str) -> Precedence:
    return Version.parse(text).precedence


def test_the_order_is_that_of_the_specification() -> None:
    mixed = ORDERED[1::2] + ORDERED[::2]
    assert sorted(mixed, key=precedence) == ORDERED
    assert newest_first(ORDERED) == ORDERED[::-1]


def test_build_metadata_does_not_order() -> None:
    assert precedence("1.0.0+a") == precedence("1.0.0+b")
    assert newest_first(["1.0.0+a", "1.0.0+b"]) == newest_first(["1.0.0+b", "1.0.0+a"])


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "1.2", "1.2.3.4", "v1.2.3", "01.2.3", "1.02.3", "1.2.3-", "1.2.3-01", "1.2.3-a..b", "1.2.3+"),
        *(" 1.2.3", "1.2.3\n", "1.2.3-é", "1.2.x", "-1.2.3", "1\u0660.0.0", "9" * 5000 + ".0.0", "1.0.0-" + "a" * 200),
    ],
)
def test_what_is_no_version(text: str) -> None:
    assert not is_version(text)
    with pytest.raises(InvalidInput, match=r"^requires: must be a semantic version"):
        Version.parse(text, "requires")


@given(versions)
def test_a_version_survives_its_text(version: Version) -> None:
    if len(str(version)) <= 128:
        assert Version.parse(str(version)) == version


@given(versions, versions)
def test_a_release_is_above_its_pre_releases(one: Version, other: Version) -> None:
    if one.release == other.release and not one.pre and other.pre:
        assert one.precedence > other.precedence
    if one.release < other.release:
        assert one.precedence < other.precedence


def test_latest_prefers_releases() -> None:
    assert latest(["1.0.0", "2.0.0-rc.1"]) == "1.0.0"
    assert latest(["2.0.0-rc.1", "2.0.0-rc.2"]) == "2.0.0-rc.2"
    assert latest([]) is None


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (">=1.2,<2", ["1.2.0", "1.99.0"], ["1.1.9", "2.0.0", "2.0.0-rc.1", "1.2.0-rc.1"]),
        ("", ["0.0.1", "9.9.9", "1.0.0-a"], ["no"]),
        ("==1.2", ["1.2.0", "1.2.0+build"], ["1.2.1"]),
        ("!=1.2.3", ["1.2.2"], ["1.2.3"]),
        (">1", ["1.0.1"], ["1.0.0"]),
        ("<=2", ["2.0.0", "2.0.0-rc.1"], ["2.0.1"]),
        ("<2.0.0-rc.1", ["2.0.0-beta"], ["2.0.0-rc.1"]),
        (" >= 1.2 , < 2 ", ["1.2.0"], ["2.0.0"]),
    ],
)
def test_ranges(text: str, inside: list[str], outside: list[str]) -> None:
    versions_within = Range.parse(text)
    assert [v for v in inside + outside if versions_within.admits(v)] == inside


@pytest.mark.parametrize("text", ["1.2", "^1.2", "~1", ">=1.2,", ">=", ">=a", ">=1.2.3.4", ">=1 <2", ">=" + "1" * 300])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(InvalidInput, match="bounds"):
        Range.parse(text)


def test_choosing_leaves_pre_releases_to_who_asks_for_them() -> None:
    have = ["1.0.0", "1.5.0", "2.0.0-rc.1", "2.0.0"]
    assert Range.parse(">=1,<2").choose(have) == "1.5.0"
    assert Range.parse(">=2.0.0-rc.1,<2.0.0-z").choose(have) == "2.0.0-rc.1"
    assert Range.parse(">=1.6").choose(["1.7.0-a"]) == "1.7.0-a"
    assert Range.parse(">=3").choose(have) is None


def test_requirements_have_a_plain_form() -> None:
    need = Requirement.parse(" sales.leads.sync  >=1.2, <2 ")
    assert (need.name, str(need)) == ("sales.leads.sync", "sales.leads.sync >=1.2.0,<2.0.0")
    assert Requirement.parse(str(need)) == need
    assert need.choose(["1.0.0", "1.4.0", "2.1.0"]) == "1.4.0"
    assert str(Requirement.parse("pdf-tools")) == "pdf-tools"


@pytest.mark.parametrize("text", ["", " ", ".a", "a..b", "a/b", "a ^1", "a >=1;", "../x", "-a", "a" * 600])
def test_what_is_no_requirement(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^requires"):
        Requirement.parse(text)


@given(st.text(max_size=40))
def test_no_text_breaks_the_parsers(text: str) -> None:
    for parse in (Version.parse, Range.parse, Requirement.parse):
        try:
            parsed = str(parse(text))
        except InvalidInput:
            continue
        assert str(parse(parsed)) == parsed
