"""Other processes: seeing, signalling and slowing them, and staying when the run has ended."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from pathlib import Path

from skillyard.verify.attack import CONTAINED, Judgement, Need, broken, escaped
from skillyard.verify.judge import told
from skillyard.verify.make import Family
from skillyard.verify.yard import Yard

FAMILY = Family("processes", walls=("pid_namespace",), invariants=(3,))

FAMILY.program(
    "signal",
    "Find and signal processes of the host, of the server and of other runs by guessing their numbers.",
    """
    own = {os.getpid(), 1}
    found = []
    for pid in range(2, 33000):
        if pid in own:
            continue
        tried.append("pid")
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        except PermissionError:
            pass
        found.append(pid)
    must_be("other processes", [], found[:8])
    works("signal itself", os.kill, os.getpid(), 0)
    """,
)

FAMILY.program(
    "touch",
    "Signal, slow down and limit processes that are not its own, whether or not it can find that they exist.",
    """
    import resource
    for pid in range(2, 33000):
        if pid != os.getpid():
            must_fail(f"signal {pid}", os.kill, pid, 0)
    for pid in (*range(2, 4000), os.getppid()):
        if pid not in (1, os.getpid()):  # where 1 is its parent, it is the sandbox's own
            must_fail(f"slow down {pid}", os.setpriority, os.PRIO_PROCESS, pid, 19)
            must_fail(f"limit {pid}", resource.prlimit, pid, resource.RLIMIT_NOFILE, (10, 10))
    works("signal itself", os.kill, os.getpid(), 0)
    """,
    walls=("pid_namespace", "own_uid", "landlock", "seccomp"),
)

FAMILY.program(
    "signal-everybody",
    "Send the last signal to everybody and to every group: it must reach its own children only.",
    """
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(-1, signal.SIGKILL)
    must_be("its own child ended by it", 9, os.waitpid(child, 0)[1])
    must_fail("a group of others", os.killpg, 31999, signal.SIGKILL)
    works("is still there", lambda: os.getpid() > 1)
    """,
)

FAMILY.program(
    "slow-down",
    "See and lower the priority of other processes, by their numbers and by their user.",
    """
    own = {1, os.getpid()}
    for pid in range(2, 4000):
        if pid not in own:
            must_fail(f"ask for the priority of {pid}", os.getpriority, os.PRIO_PROCESS, pid,
                      refused=("ESRCH", "EPERM"))  # EPERM is no answer of the kernel's, but of a filter
            must_fail(f"slow down {pid}", os.setpriority, os.PRIO_PROCESS, pid, 19,
                      refused=("ESRCH", "EPERM", "EACCES"))
    try:
        os.setpriority(os.PRIO_USER, os.getuid(), 19)
    except PermissionError:
        pass
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    works("slow down itself", lambda: os.getpriority(os.PRIO_PROCESS, 0) == 19)
    """,
)

FAMILY.program(
    "end-init",
    "End, stop or hang the sandbox's init by signals, by limits and by floods of both.",
    """
    import resource
    for number in set(range(1, 65)) - {32, 33}:
        with_error = None
        try:
            os.kill(1, number)
        except OSError as error:
            with_error = name_of(error.errno)
        tried.append(str(number))
    for _ in range(2000):
        try:
            os.kill(1, signal.SIGCHLD)
        except PermissionError:
            break
    time.sleep(0.2)
    must_hold("init is there", os.path.exists("/proc/1"))
    for state in [line.split()[1] for line in text_of("/proc/1/status").splitlines() if line.startswith("State")]:
        must_hold(f"init is not stopped: {state}", state not in ("T", "t", "Z"))
    works("a child", lambda: in_child(lambda: "yes") == "yes")
    """,
    invariants=(7,),
)

FAMILY.program(
    "peer",
    "Learn who is at the other end of its channel and reach that process.",
    """
    import fcntl
    channel = works("its channel", lambda: socket.socket(fileno=os.dup(3)))
    try:
        peer = struct.unpack("i", channel.getsockopt(socket.SOL_SOCKET, 77, 4))[0]
    except OSError:
        peer = -1
    tried.append("pidfd of the peer")
    if peer >= 0:
        got.append("a handle on the peer")
    works("its type", channel.getsockopt, socket.SOL_SOCKET, socket.SO_TYPE, 4)
    """,
    walls=("seccomp",),
)

FAMILY.program(
    "peer-number",
    "Learn the number of the process at the other end of its channel.",
    """
    channel = works("its channel", lambda: socket.socket(fileno=os.dup(3)))
    pid, uid, gid = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if OWN_KERNEL:
        elsewhere("the numbers of processes are those of the sandbox's own kernel")
    else:
        must_be("pid of the peer", 0, pid)
    """,
)

_STAY = {
    "child": "subprocess.Popen(sleep)",
    "session": "subprocess.Popen(sleep, start_new_session=True)",
    "deaf": "subprocess.Popen([sys.executable, '-c', 'import signal, time; [signal.signal(n, signal.SIG_IGN) for n in "
    "range(1, 32) if n not in (9, 19)]; time.sleep(60)', args['mark']])",
    "orphan": "os.fork() or (os.fork() and os._exit(0)) or os.execvp(sleep[0], sleep)",
    "sibling": 'raw(NR["clone"], 0x8000 | 17, 0, 0, 0, 0) or os.execvp(sleep[0], sleep)',
    "stopped": "os.kill(subprocess.Popen(sleep).pid, signal.SIGSTOP)",
    "holder": "os.set_inheritable(3, True) or subprocess.Popen(sleep, close_fds=False)",
    "forking": "os.fork() or [os.fork() and os._exit(0) for _ in iter(int, 1)]",
}


def _marked(mark: str) -> list[str]:
    """Processes of this host with ``mark`` among their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
    return found


async def _stay(yard: Yard) -> Judgement:
    """Each run leaves a process behind in its own way; the next look from the host must not find it."""
    for name, leave in _STAY.items():
        mark = f"verify-{uuid.uuid4().hex}"
        run = await yard.attack(
            f"""
            import subprocess
            sleep = [sys.executable, "-c", "import time; time.sleep(60)", args["mark"]]
            {leave}
            time.sleep(0.05)
            return {{"left": True}}
            """,
            {"mark": mark},
            pids=64,
        )
        if not run.ok:
            return broken(f"{name}: {told(run)}")
        for _ in range(300):
            if not await asyncio.to_thread(_marked, mark):
                break
            await asyncio.sleep(0.01)
        else:
            return escaped(f"{name}: a process stayed after its run")
    return CONTAINED


FAMILY.steps(
    "stay", "Leave processes behind that outlive the run: orphans, sessions, deaf, stopped and forking ones.", _stay,
    needs=[Need.IN_PROCESS], invariants=(8,),
)  # fmt: skip


async def _detached(yard: Yard) -> Judgement:
    """From inside: what a run leaves cannot be met by the next."""
    first = await yard.attack(
        """
        child = os.fork()
        if child == 0:
            os.setsid()
            server = socket.socket(socket.AF_UNIX)
            server.bind("\\0verify-left-behind")
            server.listen()
            time.sleep(20)
            os._exit(0)
        time.sleep(0.2)
        works("it listens", socket.socket(socket.AF_UNIX).connect, "\\0verify-left-behind")
        tried.append("leave")
        """
    )
    if not first.ok or first.output["wrong"]:
        return broken(str(first.output) if first.ok else told(first))
    second = await yard.attack(
        """
        must_fail("connect to the left one", socket.socket(socket.AF_UNIX).connect, "\\0verify-left-behind")
        """
    )
    if not second.ok:
        return broken(told(second))
    return escaped("; ".join(second.output["got"])) if second.output["got"] else CONTAINED


FAMILY.steps(
    "listen-on", "Leave a listener behind for the next run.", _detached,
    walls=("pid_namespace", "net_namespace", "landlock"), invariants=(8,), rests_on=("net_namespace",),
)  # fmt: skip
