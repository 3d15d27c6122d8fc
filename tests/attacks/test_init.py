"""pid 1 of a sandbox cannot be read, written, signalled away or made to leak what it was cloned from."""

from __future__ import annotations

import pytest

from tests.attacks.conftest import Attack

SECRET_PARTS = (
    "environ", "mem", "maps", "smaps", "auxv", "stack", "syscall", "io", "pagemap", "personality",
)  # fmt: skip


def test_its_insides_cannot_be_read(attack: Attack) -> None:
    run = attack(
        """
        read = lambda path: open(path, "rb").read(1)
        return {
            "one": {name: refusal(read, "/proc/1/" + name) for name in args["parts"]},
            "links": {name: refusal(os.readlink, "/proc/1/" + name) for name in args["links"]},
            "descriptors": refusal(os.listdir, "/proc/1/fd"),
            "own": refusal(read, "/proc/self/environ") + refusal(os.readlink, "/proc/self/exe"),
        }
        """,
        {"parts": SECRET_PARTS, "links": ("root", "cwd", "exe", "ns/mnt", "ns/user")},
    )
    assert set(run.output["one"].values()) == {"EACCES"}
    assert set(run.output["links"].values()) == {"EACCES"}
    assert run.output["descriptors"] == "EACCES"
    assert run.output["own"] == ""


@pytest.mark.parametrize("name", ["mem", "oom_score_adj", "clear_refs", "uid_map", "gid_map", "setgroups", "comm"])
def test_nothing_of_it_can_be_written(name: str, attack: Attack) -> None:
    run = attack(f"""
        return {{
            "one": refusal(os.open, "/proc/1/{name}", os.O_WRONLY),
            "own": refusal(os.open, "/proc/self/{name}", os.O_WRONLY),
        }}
    """)
    assert run.output["one"] in ("EACCES", "EPERM")
    assert run.output["own"] in ("EACCES", "EPERM")


def test_signals_do_not_end_it(attack: Attack) -> None:
    run = attack("""
        for number in set(range(1, 65)) - {signal.SIGINT, 32, 33}:
            os.kill(1, number)
        time.sleep(0.1)
        return {"alive": os.path.exists("/proc/1"), "twin": os.kill(os.getpid(), 0) is None}
    """)
    assert run.output == {"alive": True, "twin": True}


def test_taking_its_limits_away_ends_the_sandbox_and_nothing_else(attack: Attack) -> None:
    run = attack("""
        for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_DATA, resource.RLIMIT_STACK, resource.RLIMIT_NPROC):
            resource.prlimit(1, kind, (0, 0))
        if os.fork() == 0:
            os.setsid()
            time.sleep(60)
        return {}
    """)
    assert run["usage"]["wall_ms"] < 10_000


def test_limits_cannot_be_raised(attack: Attack) -> None:
    run = attack("""
        def more(kind):
            soft, hard = resource.getrlimit(kind)
            try:
                resource.setrlimit(kind, (soft, hard * 2 + 1))
            except (ValueError, OSError):
                return False
            return resource.getrlimit(kind) != (soft, hard)

        kinds = (resource.RLIMIT_NPROC, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE,
                 resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_SIGPENDING)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        return {"raised": [kind for kind in kinds if more(kind)], "twin": resource.getrlimit(resource.RLIMIT_NOFILE)[1]}
    """)
    assert run.output == {"raised": [], "twin": 64}
