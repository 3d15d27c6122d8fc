"""The filters, run in a small interpreter of classic BPF over every call of both processors."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.sandbox.native.linux import call_arguments, kernel, seccomp
from skillyard.sandbox.native.linux.syscall_numbers import numbers
from tests.unit.sandbox.native.bpf_machine import ALLOW, ERRNO, KILL, strictest, verdict

AUDIT = seccomp.AUDIT_ARCH
ARCHES = pytest.mark.parametrize("arch", sorted(AUDIT))
BY_ARGUMENT = {"socket", "socketpair", "ioctl", "personality", "clone", "prctl"}
SHARED, PRIVATE, ANONYMOUS = 1, 2, 32


WORDS = st.integers(0, 2**32 - 1)


def both(arch: str, name: str, *args: int) -> int:
    """What the kernel makes of two filters: the stricter word counts (seccomp(2))."""
    filters = (seccomp.large_filter(arch), seccomp.closing_filter(arch))
    return strictest(filters, arch, numbers(arch)[name], *args)


@ARCHES
def test_exactly_the_listed_calls_pass(arch: str) -> None:
    listed = {name for group in seccomp.ALLOWED for name in group.calls}
    passed = {name for name in numbers(arch) if name not in BY_ARGUMENT and both(arch, name) == ALLOW}
    assert passed == (listed - BY_ARGUMENT) & set(numbers(arch))


@ARCHES
def test_what_builds_walls_is_gone_once_they_stand(arch: str) -> None:
    for name in seccomp.BUILDING:
        assert verdict(seccomp.large_filter(arch), numbers(arch)[name], AUDIT[arch]) == ALLOW
        assert both(arch, name) != ALLOW


@ARCHES
@given(flags=WORDS)
def test_no_mount_becomes_writable_while_walls_are_built(arch: str, flags: int) -> None:
    remounts, reads_only = flags & 32, flags & 1  # MS_REMOUNT, MS_RDONLY
    passed = verdict(seccomp.large_filter(arch), numbers(arch)["mount"], AUDIT[arch], 0, 0, 0, flags) == ALLOW
    assert passed == (not remounts or bool(reads_only))


@ARCHES
@given(nr=st.integers(0, 2**32 - 1))
def test_a_number_that_is_no_listed_call_is_never_allowed(arch: str, nr: int) -> None:
    listed = {number for name, number in numbers(arch).items() if name in _listed()}
    if nr not in listed:
        assert verdict(seccomp.large_filter(arch), nr, AUDIT[arch]) != ALLOW


def _listed() -> set[str]:
    return {name for group in seccomp.ALLOWED for name in group.calls} | set(seccomp.BUILDING)


@ARCHES
def test_newer_calls_than_we_know_do_not_exist(arch: str) -> None:
    assert verdict(seccomp.large_filter(arch), 100_000, AUDIT[arch]) == ERRNO | errno.ENOSYS


def test_another_architecture_and_x32_end_the_process() -> None:
    for program in (seccomp.large_filter("x86_64"), seccomp.closing_filter("x86_64")):
        assert verdict(program, 0, 0x40000003) == KILL
        assert verdict(program, 0x40000000 | 39, AUDIT["x86_64"]) == KILL


@ARCHES
@given(family=WORDS | st.integers(0, 46), kind=WORDS | st.integers(0, 10), protocol=WORDS | st.integers(0, 262))
def test_sockets_are_unix_tcp_udp_and_netlink_route(arch: str, family: int, kind: int, protocol: int) -> None:
    internet = family in (2, 10) and kind & 0xF in (1, 2) and protocol in (0, 6, 17)
    allowed = family == 1 or internet or (family == 16 and protocol == 0)
    assert (both(arch, "socket", family, kind, protocol) == ALLOW) == allowed
    if family not in (1, 2, 10, 16):
        assert both(arch, "socket", family, kind, protocol) == ERRNO | errno.EAFNOSUPPORT


@ARCHES
@pytest.mark.parametrize(("family", "kind", "protocol"), [(1, 1, 0), (2, 1 | 0o2000000, 6), (10, 2, 17), (16, 3, 0)])
def test_ordinary_sockets_are_made(arch: str, family: int, kind: int, protocol: int) -> None:
    assert both(arch, "socket", family, kind, protocol) == ALLOW


@ARCHES
@given(flags=st.integers(0, 2**32 - 1))
def test_clone_makes_no_namespace(arch: str, flags: int) -> None:
    shared, thread = flags & 0x400 != 0, flags & 0x10000 != 0  # CLONE_FILES, CLONE_THREAD
    allowed = flags & call_arguments.NEW_NAMESPACES == 0 and shared == thread
    assert (both(arch, "clone", flags) == ALLOW) == allowed


@ARCHES
def test_threads_and_nobody_else_have_the_descriptors_of_their_process(arch: str) -> None:
    assert both(arch, "clone", 0x3D0F00) == ALLOW  # pthread_create(3)
    assert both(arch, "clone", 0x4111) == ALLOW  # posix_spawn(3)
    assert both(arch, "clone", 0x3D0F00 & ~0x400) == ERRNO | errno.EPERM
    assert both(arch, "clone", 0x400 | 17) == ERRNO | errno.EPERM
    assert both(arch, "close_range", 3, 0xFFFFFFFF, 4) == ALLOW  # CLOSE_RANGE_CLOEXEC
    assert both(arch, "close_range", 3, 0xFFFFFFFF, 2) == ERRNO | errno.EINVAL  # CLOSE_RANGE_UNSHARE


@ARCHES
@given(option=st.integers(0, 2**32 - 1))
def test_prctl_does_what_is_listed(arch: str, option: int) -> None:
    assert (both(arch, "prctl", option) == ALLOW) == (option in call_arguments.PRCTL_OPTIONS.values())


@ARCHES
def test_words_are_put_in_no_terminals_mouth(arch: str) -> None:
    for command in (0x5412, 0x541C, 0x5423):  # TIOCSTI, TIOCLINUX, TIOCSETD
        assert both(arch, "ioctl", 0, command) == ERRNO | errno.ENOTTY
    assert both(arch, "ioctl", 0, 0x5413) == ALLOW  # TIOCGWINSZ


@ARCHES
def test_a_personality_is_asked_for_and_never_changed(arch: str) -> None:
    assert both(arch, "personality", 0xFFFFFFFF) == ALLOW
    assert both(arch, "personality", 0x0040000) == ERRNO | errno.EPERM  # ADDR_NO_RANDOMIZE


@ARCHES
def test_what_tells_of_others_files_is_not_there(arch: str) -> None:
    assert both(arch, "inotify_init1") == ERRNO | errno.ENOSYS
    for command in (1024, 1026):  # F_SETLEASE, F_NOTIFY
        assert both(arch, "fcntl", 0, command) == ERRNO | errno.EINVAL
    assert both(arch, "fcntl", 0, 3) == ALLOW  # F_GETFL


@ARCHES
@given(command=st.integers(0, 2**32 - 1))
def test_files_are_asked_and_changed_by_listed_commands_only(arch: str, command: int) -> None:
    assert (both(arch, "fcntl", 3, command) == ALLOW) == (command in call_arguments.FCNTLS.values())
    assert (both(arch, "ioctl", 3, command) == ALLOW) == (command in call_arguments.IOCTLS.values())


@ARCHES
def test_files_of_others_are_not_changed_by_hints_or_flags(arch: str) -> None:
    for command in (36, 37, 38, 1036, 1038):  # F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_SET_RW_HINT, F_SET_FILE_…
        assert both(arch, "fcntl", 3, command) == ERRNO | errno.EINVAL
    for command in (0x40086602, 0x401C5820, 0x40049409, 0xC0185879):  # SETFLAGS, FSSETXATTR, FICLONE, FITRIM
        assert both(arch, "ioctl", 3, command) == ERRNO | errno.ENOTTY


@ARCHES
def test_the_other_end_of_a_socket_gives_no_handle_on_itself(arch: str) -> None:
    for option in call_arguments.PEER_OPTIONS.values():
        assert both(arch, "getsockopt", 3, 1, option) == ERRNO | errno.EPERM
    assert both(arch, "getsockopt", 3, 1, 3) == ALLOW  # SO_TYPE
    assert both(arch, "setsockopt", 3, 6, 31) == ERRNO | errno.EPERM  # TCP_ULP
    assert both(arch, "setsockopt", 3, 6, 1) == ALLOW  # TCP_NODELAY


@ARCHES
def test_what_the_host_has_little_of_is_not_taken_by_options_of_sockets(arch: str) -> None:
    filters = [(1, option) for option in call_arguments.FILTER_OPTIONS.values()]
    groups = [(0, option) for option in call_arguments.IP_OPTIONS.values()]
    for level, option in (*filters, *groups, *((41, option) for option in call_arguments.IPV6_OPTIONS.values())):
        assert both(arch, "setsockopt", 3, level, option) == ERRNO | errno.EPERM
    assert both(arch, "setsockopt", 3, 41, 26) == ALLOW  # IPV6_V6ONLY
    assert both(arch, "setsockopt", 3, 1, 35) == ALLOW  # SO_TIMESTAMPNS


@ARCHES
@given(flags=st.integers(0, 2**32 - 1))
def test_memory_that_nobody_counts_is_not_to_be_had(arch: str, flags: int) -> None:
    nr = numbers(arch)["mmap"]
    program = seccomp.closing_filter(arch, memory_counted=False)
    refused = bool(flags & SHARED and flags & ANONYMOUS)
    assert (verdict(program, nr, AUDIT[arch], 0, 0, 0, flags) != ALLOW) == refused
    assert verdict(program, numbers(arch)["memfd_create"], AUDIT[arch]) == ERRNO | errno.ENOSYS


@ARCHES
def test_the_filters_fit_the_kernel(arch: str) -> None:
    for program in (seccomp.large_filter(arch), seccomp.closing_filter(arch)):
        assert len(program) <= 4096
        assert len(seccomp.assemble(program)) == 8 * len(program)


def test_this_processor_is_known_or_refused() -> None:
    assert (kernel.ARCH in AUDIT) == kernel.SUPPORTED
