"""What a sandbox sees: nothing of the host's processes, of the server, of another run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skillyard import SyncRuntime
from tests.attacks.conftest import Attack


def test_environment_and_descriptors_are_a_fresh_ones(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_SECRET", "in-the-environment")
    run = attack("""
        kinds = {fd: os.readlink(f"/proc/self/fd/{fd}").partition(":")[0] for fd in range(5)}
        return {"names": sorted(os.environ), "fds": [fd for fd in range(3, 64) if not refusal(os.fstat, fd)],
                "kinds": list(kinds.values()), "argv": sys.argv}
    """)
    assert set(run.output["names"]) <= {"PATH", "HOME", "LANG"}
    assert run.output["fds"] == [3, 4]
    assert run.output["kinds"] == ["/dev/null", "pipe", "pipe", "socket", "pipe"]  # the last: its stack at the deadline


def test_no_name_of_the_servers_is_seen(runtime: SyncRuntime, attack: Attack) -> None:
    place = str(Path(runtime.settings.data_dir).resolve())
    run = attack(
        """
        texts = []
        for name in ("mountinfo", "mounts", "maps", "cgroup", "environ", "cmdline", "status", "limits"):
            texts.append(open("/proc/self/" + name, errors="replace").read())
        for name in ("mountinfo", "cmdline", "cgroup", "status"):
            texts.append(open("/proc/1/" + name, errors="replace").read())
        told = {name: any(word in text for text in texts) for name, word in args.items()}
        return {**told, "twin": any("/workspace" in text for text in texts), "node": os.uname().nodename}
        """,
        {"place": place, "host": os.uname().nodename + "\n"},
    )
    assert run.output == {"place": False, "host": False, "twin": True, "node": "sandbox"}


def test_control_groups_begin_at_the_sandbox(attack: Attack) -> None:
    run = attack(
        "return {'paths': sorted({line.split(':', 2)[2] for line in open('/proc/self/cgroup').read().split()})}"
    )
    assert run.output["paths"] in (["/"], [])


MASKED = ("kcore", "kmsg", "kallsyms", "keys", "key-users", "timer_list", "interrupts", "config.gz", "cmdline", "locks")


@pytest.mark.parametrize("name", MASKED)
def test_a_part_of_proc_that_tells_of_the_host_is_empty(name: str, attack: Attack) -> None:
    run = attack(
        """
        path = "/proc/" + args["name"]
        try:
            text = open(path, "rb").read(64)
        except OSError:
            text = b""
        return {"bytes": len(text), "twin": len(open("/proc/self/status").read()) > 0}
        """,
        {"name": name},
    )
    assert run.output == {"bytes": 0, "twin": True}


@pytest.mark.parametrize(
    "path", ["/home", "/etc/shadow", "/etc/ssl/private", "/var/lib", "/var/log", "/boot", "/srv", "/mnt"]
)
def test_a_place_of_the_host_is_not_there(path: str, attack: Attack) -> None:
    run = attack("return {'there': os.path.exists(args['path']), 'twin': os.path.exists('/usr/lib')}", {"path": path})
    assert run.output == {"there": False, "twin": True}


def test_a_run_finds_nothing_of_the_one_before(attack: Attack) -> None:
    leave = """
        before = sorted(n for place in ("/tmp", "/workspace", "/dev/shm") for n in os.listdir(place))
        before += [n for n in ("left", "LEFT") if hasattr(sys, n) or n in os.environ]
        sys.left = os.environ["LEFT"] = "1"
        for place in ("/tmp", "/workspace", "/dev/shm"):
            open(place + "/left", "w").close()
        return {"before": before, "twin": sys.left, "random": [os.urandom(8).hex(), __import__("random").random()]}
    """
    first, second = attack(leave), attack(leave)
    assert first.output["before"] == second.output["before"] == ["out"]
    assert first.output["twin"] == "1"
    assert first.output["random"][0] != second.output["random"][0]
    assert first.output["random"][1] != second.output["random"][1]
