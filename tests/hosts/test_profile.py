"""The container's filter of system calls is what the tables say, and opens no more than walls need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.seccomp_profile import TARGET, text
from skillyard.sandbox.native.linux.seccomp import BUILDING
from skillyard.sandbox.native.linux.syscall_numbers import numbers

DANGEROUS = [
    "bpf", "perf_event_open", "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd",
    "userfaultfd", "io_uring_setup", "keyctl", "add_key", "request_key", "init_module", "finit_module",
    "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "quotactl",
    "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "iopl", "ioperm", "open_by_handle_at",
    "name_to_handle_at", "fanotify_init", "fspick", "modify_ldt", "syslog", "mbind",
    "move_pages", "lookup_dcookie", "vhangup", "nfsservctl",
]  # fmt: skip


@pytest.fixture
def profile() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TARGET.read_text())
    return found


def allowed(profile: dict[str, Any]) -> set[str]:
    return {name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}


def test_the_file_is_what_the_tables_say() -> None:
    assert TARGET.read_text() == text(), "run: python deploy/seccomp_profile.py"


def test_it_denies_by_default_and_knows_no_other_architecture(profile: dict[str, Any]) -> None:
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert all(entry["subArchitectures"] == [] for entry in profile["archMap"])


def test_it_opens_what_walls_need_and_nothing_dangerous(profile: dict[str, Any]) -> None:
    assert set(BUILDING) <= allowed(profile)
    assert all(name.isidentifier() for name in allowed(profile))
    assert allowed(profile).isdisjoint(DANGEROUS)
    assert set(DANGEROUS) - set(numbers("x86_64")) <= {"nfsservctl"}, "a name that no kernel has protects nobody"


def test_sockets_are_of_four_families(profile: dict[str, Any]) -> None:
    rules = [rule for rule in profile["syscalls"] if "socket" in rule["names"]]
    assert sorted(rule["args"][0]["value"] for rule in rules) == [1, 2, 10, 16]
    assert all(len(rule["args"]) == 1 and rule["args"][0]["op"] == "SCMP_CMP_EQ" for rule in rules)


def test_the_compose_file_names_it() -> None:
    assert "seccomp=docker-seccomp.json" in (Path(__file__).parents[2] / "deploy/compose.yaml").read_text()
