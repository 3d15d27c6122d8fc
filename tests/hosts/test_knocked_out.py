"""Each protection knocked out in turn: the run is refused, and what is missing is named with its mend."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.hosts.conftest import Host

CODE = "def main(args): return {'more': args['n'] + 1}\n"
ROOT = os.geteuid() == 0
FILTER = "filter of system calls"


class Closed(NamedTuple):
    """A knock-out after which no sandbox can be made: words of why, words of the mend."""

    knock: str
    why: str
    mend: str


CLOSED = [
    Closed("refuse:unshare", "unshare", FILTER),
    Closed("refuse:clone3=ENOSYS", "clone3", FILTER),
    Closed("refuse:mount", "mount /", FILTER),
    Closed("refuse:pivot_root", "pivot_root", FILTER),
    Closed("refuse:setns", "setns", FILTER),
    Closed("refuse:open_tree=ENOSYS", "open_tree", FILTER),
    Closed("refuse:move_mount=ENOSYS", "move_mount", FILTER),
    Closed("refuse:mount_setattr=ENOSYS", "mount_setattr", FILTER),
    Closed("refuse:seccomp=ENOSYS", "seccomp", FILTER),
    Closed("refuse:pidfd_open=ENOSYS", "pidfd_open", FILTER),
    Closed("no_user_namespaces", "a limit of namespaces is reached", "sysctl -w user.max_user_namespaces"),
    Closed("masked_proc", "mount /proc", "parts of /proc are covered"),
    Closed("few_descriptors:40", "Too many open files", "ulimit -n"),
]
QUICK = {"refuse:unshare", "refuse:seccomp=ENOSYS", "no_user_namespaces", "masked_proc", "few_descriptors:40"}
ALL = [pytest.param(row, id=row.knock, marks=() if row.knock in QUICK else pytest.mark.long) for row in CLOSED]


@pytest.mark.parametrize("row", ALL)
def test_no_sandbox_is_made_and_the_mend_is_named(
    row: Closed, host: Host, sound: dict[str, Any], may: Callable[[str], None]
) -> None:
    may(row.knock)
    found = host.doctor(row.knock)
    assert (found["ready"], found["exit"]) == (False, 1)
    assert row.why in found["facts"]["why"]
    assert row.mend in found["facts"].get("mend", ""), found["facts"]
    assert {p["level"] for p in found["protections"].values()} == {"missing"}


@pytest.mark.parametrize("knock", ["refuse:unshare", "masked_proc"])
def test_a_run_and_a_server_are_refused_with_the_same_words(
    knock: str, host: Host, sound: dict[str, Any], may: Callable[[str], None]
) -> None:
    may(knock)
    row = next(row for row in CLOSED if row.knock == knock)
    for words in (("exec", "-"), ("serve", "--port", "0")):
        done = host.run(*words, knocks=(knock,), stdin=CODE)
        assert done.returncode == 4, done.stderr
        assert row.why in done.stderr
        assert row.mend in done.stderr
        assert "Traceback" not in done.stderr


class Lacking(NamedTuple):
    """A knock-out of one wall while the rest stands: its name, and words of why or mend."""

    knock: str
    wall: str
    says: str
    mandatory: bool


LACKING = [
    Lacking("refuse:landlock_create_ruleset=EOPNOTSUPP", "landlock", "no Landlock", True),
    Lacking("refuse:landlock_create_ruleset=ENOSYS", "landlock", "no Landlock", True),
    Lacking("refuse:sethostname", "uts_namespace", "sethostname is refused", False),
]


@pytest.mark.parametrize("row", LACKING, ids=lambda row: row.knock)
def test_a_wall_that_is_missing_is_named(row: Lacking, host: Host, sound: dict[str, Any]) -> None:
    found = host.doctor(row.knock)
    assert found["ready"]
    assert found["mandatory_missing"] == ([row.wall] if row.mandatory else [])
    assert found["exit"] == int(row.mandatory)
    missing = found["protections"][row.wall]
    assert missing["level"] == "missing"
    assert row.says in missing["why"]
    assert missing["mend"]
    others = {name: p["level"] for name, p in found["protections"].items() if name != row.wall}
    assert others == {name: p["level"] for name, p in sound["protections"].items() if name != row.wall}


def test_a_mandatory_wall_refuses_the_run_unless_policy_names_it(host: Host, sound: dict[str, Any]) -> None:
    knock = ("refuse:landlock_create_ruleset=EOPNOTSUPP",)
    refused = host.execute(CODE, "--args", '{"n": 1}', knocks=knock)
    assert refused.returncode == 4
    assert "landlock (this kernel has no Landlock" in refused.stderr
    other = {"SKILLYARD_POLICY__ALLOW_DEGRADED": '["uts_namespace"]'}
    assert host.execute(CODE, "--args", '{"n": 1}', knocks=knock, env=other).returncode == 4
    allowed = {"SKILLYARD_POLICY__ALLOW_DEGRADED": '["landlock"]'}
    done = host.execute(CODE, "--args", '{"n": 1}', "--json", knocks=knock, env=allowed)
    run = json.loads(done.stdout)
    assert run["output"] == {"more": 2}
    shown = json.loads(host.run("runs", "show", run["run_id"], "--json", knocks=knock, env=allowed).stdout)
    record = shown.get("run", shown)
    assert record["enforced"]["landlock"] == "missing"
    assert record["enforced"]["seccomp"] == "kernel"
    told = host.doctor(*knock, env=allowed)
    assert (told["exit"], told["mandatory_missing"]) == (0, [])
    assert told["protections"]["landlock"] | {"mandatory": False} == told["protections"]["landlock"]


@pytest.mark.skipif(not ROOT, reason="an ordinary user's sandboxes have no control groups to lose")
@pytest.mark.parametrize("more", [(), ("refuse:unshare",)], ids=["none mounted", "and no namespaces"])
def test_without_control_groups_limits_are_watched_and_say_so(
    more: tuple[str, ...], host: Host, sound: dict[str, Any], may: Callable[[str], None]
) -> None:
    may("no_cgroups")
    found = host.doctor("no_cgroups", *more)
    if more:
        assert not found["ready"]
        return
    assert found["exit"] == 0
    for limit in ("memory", "cpus"):
        assert found["protections"][limit]["level"] == "supervised"
        assert found["protections"][limit]["why"]
    demanding = {"SKILLYARD_POLICY__REQUIRE": "kernel"}
    assert set(host.doctor("no_cgroups", env=demanding)["mandatory_missing"]) == {"memory", "cpus"}
    refused = host.execute(CODE, "--args", '{"n": 1}', knocks=("no_cgroups",), env=demanding)
    assert refused.returncode == 4
    assert "only supervised here" in refused.stderr


@pytest.mark.skipif(not ROOT, reason="what a container's root is")
@pytest.mark.parametrize(
    ("lost", "own_uid"),
    [("21", "kernel"), pytest.param("21,7", "missing", marks=pytest.mark.long)],
    ids=["CAP_SYS_ADMIN", "CAP_SETUID too"],
)
def test_a_root_with_few_capabilities_makes_sandboxes(
    lost: str, own_uid: str, host: Host, sound: dict[str, Any]
) -> None:
    found = host.doctor(f"without_capabilities:{lost}")
    assert found["exit"] == 0
    assert found["protections"]["own_uid"]["level"] == own_uid
    done = host.execute(CODE, "--args", '{"n": 1}', "--json", knocks=(f"without_capabilities:{lost}",))
    assert json.loads(done.stdout)["output"] == {"more": 2}


@pytest.mark.skipif(not ROOT, reason="what a container's root is")
def test_a_root_that_cannot_map_itself_is_told_what_it_lacks(host: Host, sound: dict[str, Any]) -> None:
    found = host.doctor("without_capabilities:21,31")
    assert not found["ready"]
    assert "uid_map" in found["facts"]["why"]
    assert "CAP_SETFCAP" in found["facts"]["mend"]


def test_a_host_without_shared_memory_runs(host: Host, sound: dict[str, Any], may: Callable[[str], None]) -> None:
    may("no_dev_shm")
    assert host.doctor("no_dev_shm")["exit"] == 0
    code = "def main(args):\n    open('/dev/shm/x', 'w').write('x')\n    return {'read': open('/dev/shm/x').read()}\n"
    assert json.loads(host.execute(code, "--json", knocks=("no_dev_shm",)).stdout)["output"] == {"read": "x"}


@pytest.mark.skipif(ROOT, reason="the limit does not bind root")
@pytest.mark.parametrize("more", [1, 4])
def test_no_further_process_is_named(more: int, host: Host, sound: dict[str, Any], may: Callable[[str], None]) -> None:
    may("no_new_processes:9")
    done = host.execute(CODE, "--args", '{"n": 1}', knocks=(f"no_new_processes:{more}",))
    assert done.returncode in (1, 4), done.stderr
    assert "Resource temporarily unavailable" in done.stderr or "can't start new thread" in done.stderr
    assert "more processes" in done.stderr or "ulimit -u" in done.stderr


@pytest.mark.skipif(ROOT, reason="root with its capabilities raises the limit")
def test_a_limit_below_what_a_run_needs_is_named_by_doctor_and_by_the_run(
    host: Host, sound: dict[str, Any], may: Callable[[str], None]
) -> None:
    """Of processes: a run may have 256 unless it says otherwise, and nobody raises a hard limit."""
    may("most_processes:200")
    found = host.doctor("most_processes:200")
    assert (found["exit"], found["ready"]) == (1, False)
    assert "hard limit (processes, ulimit -u) is 200, and the sandbox needs 257" in found["facts"]["why"]
    assert "limits.pids" in found["facts"]["mend"]
    done = host.execute(CODE, "--args", '{"n": 1}', knocks=("most_processes:200",))
    assert done.returncode == 4, done.stderr
    assert "ulimit -u) is 200" in done.stderr
    asked = ("--limit", "pids=300")
    done = host.execute(CODE, "--args", '{"n": 1}', *asked, knocks=("most_processes:270",))
    assert done.returncode == 1, done.stderr
    assert "ulimit -u) is 270, and the sandbox needs 301" in done.stderr
    assert host.execute(CODE, "--args", '{"n": 1}', knocks=("most_processes:270",)).returncode == 0
