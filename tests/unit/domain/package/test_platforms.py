"""Platforms of sandboxes: what hostile lines become of them, and what uv knows."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import uv
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import InvalidInput
from skillyard.domain.package.environment import Wanted
from skillyard.domain.package.platforms import GLIBC, MACHINES, Platform, foreign, interpreter, own

LINE = "cpython 3.{minor}.{patch} {machine} {libc}"
LIBCS = st.one_of(st.just("musl"), st.integers(0, 999).map(lambda minor: f"glibc 2.{minor}"))
HOSTILE = st.one_of(
    st.text(),
    st.none(),
    st.integers(),
    st.lists(st.text()),
    st.builds(lambda line, end: line + end, st.just("cpython 3.12.1 x86_64 musl"), st.text(min_size=1)),
)


def ours() -> str:
    """The line of this very interpreter, in the words that a test may change."""
    return interpreter()


def test_this_interpreter_is_not_foreign_to_itself() -> None:
    assert foreign(ours()) is None
    assert own().version == "{}.{}.{}".format(*sys.version_info[:3])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("cpython 3.12.1 x86_64 glibc 2.36", "cpython-3.12-x86_64-manylinux_2_36"),
        ("cpython 3.12.1 x86_64 glibc 2.30", "cpython-3.12-x86_64-manylinux_2_28"),
        ("cpython 3.9.18 aarch64 glibc 2.17", "cpython-3.9-aarch64-manylinux_2_17"),
        ("cpython 3.14.0 aarch64 glibc 2.99", "cpython-3.14-aarch64-manylinux_2_40"),
        ("cpython 3.13.5 x86_64 musl", "cpython-3.13-x86_64-unknown-linux-musl"),
    ],
)
def test_each_has_the_name_of_the_newest_platform_that_fits(line: str, name: str) -> None:
    assert Platform.told(line).name == name


@pytest.mark.parametrize(
    "line",
    [
        "pypy 3.10.14 x86_64 glibc 2.36",
        "cpythont 3.13.0 x86_64 glibc 2.36",
        "cpythond 3.12.1 x86_64 glibc 2.36",
        "cpython 3.12.1 x86_64 (32 bit) glibc 2.36",
        "cpython 3.12.1 armv7l glibc 2.36",
        "cpython 3.12.1 x86_64 glibc 2.16",
        "cpython 3.12.1 x86_64 unknown",
        "cpython 3.12.1 x86_64 musl\n",
        "cpython 3.१२.1 x86_64 musl",
        "cpython 3.12.1 x86_64 glibc 2.36 --index-url=https://evil.example",
        None,
    ],
)
def test_others_are_refused_by_name(line: object) -> None:
    with pytest.raises(InvalidInput, match="use an image with one of these") as refused:
        foreign(line)
    assert refused.value.field == "packages"


@given(HOSTILE)
def test_a_hostile_line_is_refused(line: object) -> None:
    with pytest.raises(InvalidInput):
        Platform.told(line)


@given(st.integers(0, 99), st.integers(0, 999), st.sampled_from(MACHINES), LIBCS)
def test_nothing_else_reaches_a_command_line(minor: int, patch: int, machine: str, libc: str) -> None:
    line = LINE.format(minor=minor, patch=patch, machine=machine, libc=libc)
    try:
        platform = Platform.told(line)
    except InvalidInput:
        assert libc != "musl"
        assert int(libc.partition(".")[2]) < GLIBC[0]
        return
    assert re.fullmatch(r"3\.\d+\.\d+", platform.version)
    assert platform.uv in known_to_uv()
    assert platform.serves(platform)
    assert Wanted(("a",), platform=platform).digest != Wanted(("a",)).digest


def known_to_uv(found: set[str] = set()) -> set[str]:  # noqa: B006 - it is asked once
    if not found:
        command = [uv.find_uv_bin(), "pip", "install", "--help"]
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        found |= set(re.findall(r"(?:x86_64|aarch64)-[\w-]+", told))
    return found


def test_uv_knows_all_of_them() -> None:
    platforms = [Platform("3.12", machine, glibc) for machine in MACHINES for glibc in (0, *GLIBC)]
    assert {platform.uv for platform in platforms} <= known_to_uv()


@pytest.mark.parametrize(
    ("other", "fits"),
    [
        (Platform("3.12", "x86_64", 36), True),
        (Platform("3.12", "x86_64", 40), True),
        (Platform("3.12", "x86_64", 36, patch=9), True),
        (Platform("3.12", "x86_64", 35), False),
        (Platform("3.12", "x86_64", 0), False),
        (Platform("3.12", "aarch64", 36), False),
        (Platform("3.13", "x86_64", 36), False),
    ],
)
def test_what_was_built_on_an_older_system_fits_a_newer_one(other: Platform, fits: bool) -> None:
    assert Platform("3.12", "x86_64", 36).serves(other) is fits


def test_patch_releases_share_packages() -> None:
    one, other = (Wanted(("a",), platform=Platform("3.12", "x86_64", 36, patch=patch)) for patch in (1, 7))
    assert one.digest == other.digest
