"""Whatever a run does with processes, it ends with all of them, in time, and with an honest reason."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import pytest

from tests.attacks.conftest import Attack

PATIENCE_S = 5


def alive(mark: str) -> list[str]:
    """Processes of this host with ``mark`` among their arguments."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                arguments = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in arguments:
                found.append(entry)
    return found


def gone(mark: str) -> bool:
    """The host's view of a sandbox's end may lag behind its own a little."""
    deadline = time.monotonic() + PATIENCE_S
    while alive(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


LEAVE_BEHIND = {
    "a child": "subprocess.Popen(sleep)",
    "a session of its own": "subprocess.Popen(sleep, start_new_session=True)",
    "one that ignores signals": "subprocess.Popen(['sh', '-c', 'trap \"\" TERM INT HUP; ' + ' '.join(sleep)])",
    "one that holds the pipes": "os.fork() or os.setsid() or os.execvp(sleep[0], sleep)",
    "one whose parent is init": "os.fork() or (os.fork() and os._exit(0)) or os.execvp(sleep[0], sleep)",
    "a sibling": "sys_call(56, 0x8000 | 17, 0, 0, 0, 0) or os.execvp(sleep[0], sleep)",  # CLONE_PARENT
    "a stopped one": "os.kill(subprocess.Popen(sleep).pid, signal.SIGSTOP)",
    "one that holds the channel": "os.set_inheritable(3, True) or subprocess.Popen(sleep, close_fds=False)",
}


@pytest.mark.parametrize("name", LEAVE_BEHIND)
@pytest.mark.parametrize("how", ["returns", "leaves at once", "is killed"])
def test_nothing_stays_behind(name: str, how: str, attack: Attack) -> None:
    mark = uuid.uuid4().hex
    last = {"returns": "return {'done': True}", "leaves at once": "os._exit(3)", "is killed": "os.kill(os.getpid(), 9)"}
    started = time.monotonic()
    run = attack(f"""
        import subprocess
        sleep = ["python3", "-c", "import time; time.sleep(60)", "{mark}"]
        {LEAVE_BEHIND[name]}
        {last[how]}
    """)
    assert run.ok == (how == "returns"), dict(run)
    assert gone(mark)
    assert time.monotonic() - started < 20


STUCK = {
    "a stopped one": "os.kill(os.getpid(), signal.SIGSTOP)",
    "an endless loop": "while True: pass",
    "a loop in C": "sum(iter(int, 1))",
    "one that blocks every signal": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); time.sleep(60)",
    "a forking one": "while True:\n    refusal(os.fork)",
    "a wait for ever": "os.read(os.pipe()[0], 1)",
}


@pytest.mark.parametrize("name", STUCK)
def test_the_time_limit_ends(name: str, attack: Attack) -> None:
    started = time.monotonic()
    run = attack(STUCK[name], timeout_ms=700)
    ends = {"timeout", "processes"} if name == "a forking one" else {"timeout"}  # whichever limit comes first
    assert run["outcome"] in ends, dict(run)
    assert time.monotonic() - started < 15


def test_killing_everything_kills_only_ones_own(attack: Attack) -> None:
    run = attack("""
        import subprocess
        child = subprocess.Popen(["sleep", "60"])
        os.kill(-1, signal.SIGKILL)
        return {"child": child.wait(), "me": os.getpid() > 1}
    """)
    assert run.output == {"child": -9, "me": True}


def test_processes_are_counted(attack: Attack) -> None:
    run = attack(
        """
        def children(most):
            count = 0
            while count < most and not refusal(fork_sleeping):
                count += 1
            return count

        def fork_sleeping():
            if os.fork() == 0:
                time.sleep(30)
                os._exit(0)

        return {"twin": children(5), "attack": children(200)}
        """,
        pids=32,
    )
    assert run.output["twin"] == 5
    assert run.output["attack"] < 32


def test_other_processes_are_not_there(attack: Attack) -> None:
    run = attack("""
        return {"seen": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
                "host": refusal(os.kill, int(args["host"]), 0), "twin": refusal(os.kill, os.getpid(), 0)}
    """, {"host": os.getpid()})  # fmt: skip
    assert run.output["seen"] == [1, 301], "init and the run: the pids between are given to nobody"
    assert run.output["host"] == "ESRCH"
    assert run.output["twin"] == ""
