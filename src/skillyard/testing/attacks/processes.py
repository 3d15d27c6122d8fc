"""Attacks on other processes, and attempts to stay when the run has ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from pathlib import Path

from skillyard.testing.attacks.attack import CONTAINED, Family, Judgement, Need, Place, broken, escaped

PROCESSES = Family("processes", walls=("pid_namespace",), invariants=(3,))

PROCESSES.program(
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
    for pid in range(2, 4000):
        if pid not in own:
            must_fail(f"ask for the priority of {pid}", os.getpriority, os.PRIO_PROCESS, pid,
                      refused=("ESRCH", "EPERM"))  # EPERM is not an answer of the kernel's, but of a filter
    works("signal itself", os.kill, os.getpid(), 0)
    """,
)

PROCESSES.program(
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
    try:
        os.setpriority(os.PRIO_USER, os.getuid(), 19)
    except PermissionError:
        pass
    works("signal itself", os.kill, os.getpid(), 0)
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    works("slow down itself", lambda: os.getpriority(os.PRIO_PROCESS, 0) == 19)
    """,
    walls=("pid_namespace", "own_uid", "landlock", "seccomp"),
)

PROCESSES.program(
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

PROCESSES.program(
    "end-init",
    "End, stop or hang the sandbox's init by signals and by floods of them.",
    """
    for number in set(range(1, 65)) - {32, 33}:
        tried.append(str(number))
        try:
            os.kill(1, number)
        except OSError:
            pass
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

PROCESSES.program(
    "starve-init",
    "Take its limits away from the sandbox's init, and leave a child for it.",
    """
    import resource
    armed()
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_DATA, resource.RLIMIT_STACK, resource.RLIMIT_NPROC):
        tried.append(str(kind))
        try:
            resource.prlimit(1, kind, (0, 0))
        except OSError:
            pass
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
    """,
    ends=("lost", "signal", "exit"),
    invariants=(7,),
)

PROCESSES.program(
    "peer-number",
    "Learn the number of the process at the other end of its channel.",
    """
    try:
        channel = socket.socket(fileno=os.dup(3))
        pid, uid, gid = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError:
        elsewhere("the channel is not a socket")
        return evidence()
    if OWN_KERNEL:
        elsewhere("the numbers of processes are those of the sandbox's own kernel")
    else:
        must_be("pid of the peer", 0, pid)
    """,
)

HOPS = r"""
import ctypes, mmap, os, platform, signal, struct, sys, time
def hop(path):
    '''Goes on as a sibling of this process, and ends; again and again, some microseconds each. Each of them counts.'''
    beats = mmap.mmap(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), 8, mmap.MAP_SHARED)
    at = ctypes.addressof(ctypes.c_char.from_buffer(beats))
    flags = 0x8111  # CLONE_VM | CLONE_PARENT | SIGCHLD
    if platform.machine() == "x86_64":
        code = struct.pack("<2sQ3ssIsI", b"\x48\xb8", at, b"\x48\xff\x00", b"\xb8", 56, b"\xbf", flags)
        code += bytes.fromhex("31f6 31d2 4531d2 4531c0 0f05 85c0")  # no stack of its own; clone; is it the child?
        code += bytes([0x74, 256 - len(code) - 2])
        code += bytes([0x78, 256 - len(code) - 2]) + bytes.fromhex("b83c000000 31ff 0f05")
    else:
        words = [0x58000009, 0xF940012A, 0x9100054A, 0xF900012A, 0xD2801B88, 0xD2800000 | flags << 5]
        words += [0xD2800001, 0xD2800002, 0xD2800003, 0xD2800004, 0xD4000001]
        words += [0xB4000000 | (-len(words) & 0x7FFFF) << 5]
        words += [0xB7F80000 | (-len(words) & 0x3FFF) << 5, 0xD2800BA8, 0xD2800000, 0xD4000001]
        words[0] |= len(words) << 5
        code = struct.pack(f"<{len(words)}IQ", *words, at)
    rights = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    held = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=rights)
    held.write(code)
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(held)))()
def fork_on(path):
    '''Goes on as a child of its own, and ends; again and again.'''
    beats = mmap.mmap(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), 8, mmap.MAP_SHARED)
    while True:
        beats[:] = struct.pack("Q", struct.unpack("Q", beats)[0] + 1)
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            pass
def begin(way, path):
    '''Makes hoppers. Of its ways "below" has them below this process, and "beyond" where the kernel puts orphans.'''
    open(path, "wb").write(bytes(8))
    if way == "below":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what ends is gone at once
    for n in range(3):
        if os.fork() == 0:
            try:
                os.setsid()
            except OSError:  # some walls keep groups together
                pass
            for fd in range(3):
                os.close(fd)
            if way == "beyond" and os.fork():
                os._exit(0)
            fork_on(path) if way == "beyond" and n == 2 else hop(path)
    until = time.monotonic() + 20
    while struct.unpack("Q", open(path, "rb").read())[0] < 99 and time.monotonic() < until:
        time.sleep(0.01)
"""
"""Defines ``begin(way, path)``, after which processes go on as others faster than they are found.

They count in the file. The lowest byte of it changes with each, so that two looks at it tell.
"""

_STAY = {
    "child": "subprocess.Popen(sleep)",
    "session": "subprocess.Popen(sleep, start_new_session=True)",
    "deaf": "subprocess.Popen([sys.executable, '-c', 'import signal, time; [signal.signal(n, signal.SIG_IGN) for n in "
    "range(1, 32) if n not in (9, 19)]; time.sleep(60)', args['mark']])",
    "orphan": "os.fork() or (os.fork() and os._exit(0)) or os.execvp(sleep[0], sleep)",
    "sibling": 'raw(NR["clone"], 0x8000 | 17, 0, 0, 0, 0) or os.execvp(sleep[0], sleep)',
    "stopped": "os.kill(subprocess.Popen(sleep).pid, signal.SIGSTOP)",
    "holder": "[os.set_inheritable(fd, True) for fd in (3, 4) if os.path.exists(f'/proc/self/fd/{fd}')] and "
    "subprocess.Popen(sleep, close_fds=False)",
    "forking": "os.fork() or [os.fork() and os._exit(0) for _ in iter(int, 1)]",
}


def _marked(mark: str) -> list[str]:
    """Returns the processes of this host with ``mark`` among their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
    return found


async def _stay(place: Place) -> Judgement:
    """Leaves a process behind in each way; a look from the host must not find it."""
    endings = ("return {}", "os._exit(3)", "os.kill(os.getpid(), 9)")
    for (name, leave), last in itertools.product(_STAY.items(), endings):
        mark = f"verify-{uuid.uuid4().hex}"
        run = await place.attack(
            f"""
            import subprocess
            sleep = [sys.executable, "-c", "import time; time.sleep(60)", args["mark"]]
            {leave}
            time.sleep(0.05)
            armed()
            {last}
            """,
            {"mark": mark},
            pids=64,
        )
        if not run.armed:
            return broken(f"{name}: {run.why}")
        for _ in range(300):
            if not await asyncio.to_thread(_marked, mark):
                break
            await asyncio.sleep(0.01)
        else:
            return escaped(f"{name}: a process stayed after its run")
    return CONTAINED


PROCESSES.steps(
    "stay", "Leave processes behind that outlive the run: orphans, sessions, deaf, stopped and forking ones.", _stay,
    needs=[Need.IN_PROCESS], invariants=(8,),
)  # fmt: skip
