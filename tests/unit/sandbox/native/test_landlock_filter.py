"""The filter of the landlock level over every family, type and protocol, for both processors."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.sandbox.native.grounds.landlock.zygote import zygote_filter
from skillyard.sandbox.native.linux import seccomp
from skillyard.sandbox.native.linux.bpf import Instruction
from skillyard.sandbox.native.linux.call_arguments import INTERFACES
from skillyard.sandbox.native.linux.supervision import ASK
from skillyard.sandbox.native.linux.syscall_numbers import numbers
from tests.unit.sandbox.native.bpf_machine import ALLOW, ERRNO, verdict

ARCHES = pytest.mark.parametrize("arch", sorted(seccomp.AUDIT_ARCH))
WORDS = st.integers(0, 2**32 - 1)
ASKED = ASK[3]


def answer(arch: str, name: str, *args: int, supervised: bool = True) -> int:
    raw = zygote_filter((1000, 10), 6, arch, supervised=supervised)
    program: list[Instruction] = [(step[0], step[1], step[2], step[3]) for step in struct.iter_unpack("HBBI", raw)]
    return verdict(program, numbers(arch)[name], seccomp.AUDIT_ARCH[arch], *args)


@ARCHES
@given(
    family=WORDS | st.sampled_from([2, 10]), kind=WORDS | st.integers(0, 6), protocol=WORDS | st.sampled_from([0, 6])
)
def test_the_supervisor_is_asked_for_tcp_alone(arch: str, family: int, kind: int, protocol: int) -> None:
    tcp = family in (2, 10) and kind & 0xF == 1 and protocol in (0, 6)
    said = answer(arch, "socket", family, kind, protocol)
    assert said == ASKED if tcp else said & ~0xFFFF == ERRNO and said & 0xFFFF


@ARCHES
def test_a_supervised_program_can_only_take_connections(arch: str) -> None:
    said = {name: answer(arch, name) for name in ("bind", "listen", "accept4", "connect")}
    assert said == {"bind": ASKED, "listen": ASKED, "accept4": ALLOW, "connect": ERRNO | errno.EPERM}
    others = {name: answer(arch, name, supervised=False) for name in (*said, "socket")}
    assert set(others.values()) == {ERRNO | errno.EPERM, ERRNO | errno.EAFNOSUPPORT}


@ARCHES
@given(flags=WORDS)
def test_no_message_connects(arch: str, flags: int) -> None:
    for name, place in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        said = answer(arch, name, *[0] * place, flags)
        assert (said == ALLOW) == (not flags & 0x20000000)


@ARCHES
@given(level=WORDS, option=WORDS)
def test_other_levels_have_no_options(arch: str, level: int, option: int) -> None:
    if level not in (0, 1, 6, 41):
        assert answer(arch, "setsockopt", 3, level, option) == ERRNO | errno.ENOPROTOOPT


@ARCHES
def test_the_walls_of_a_socket_stay(arch: str) -> None:
    for level, options in ((1, (25, 26, 27, 36, 44, 50, 51, 52, 60, 62, 68)), (6, (14, 19, 23, 30, 31, 32, 38))):
        for option in options:
            assert answer(arch, "setsockopt", 3, level, option) == ERRNO | errno.ENOPROTOOPT, (level, option)
    for level, option in ((1, 2), (1, 15), (6, 1), (41, 26)):
        assert answer(arch, "setsockopt", 3, level, option) == ALLOW, (level, option)


@ARCHES
@pytest.mark.parametrize("supervised", [False, True])
def test_no_socket_tells_of_interfaces(arch: str, supervised: bool) -> None:
    said = {answer(arch, "ioctl", 3, request, supervised=supervised) for request in INTERFACES}
    assert said == {ERRNO | errno.ENOTTY}
    assert answer(arch, "ioctl", 3, 0x541B, supervised=supervised) == ALLOW
