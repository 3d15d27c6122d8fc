"""What the kernel counts by user, and an ordinary user's sandboxes share with the server, stops nobody else.

Where watches of epoll are used up (epoll(7), max_user_watches), a filter of system calls answers in the kernel's
place, in a process of the test's own and all that it starts.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from skillyard.server_process import ServerProcess

FULL = """
import errno, os, select, sys, time
from skillyard.sandbox.native.linux import bpf, kernel, seccomp
from skillyard.sandbox.native.linux.syscall_numbers import numbers
ADD = 1
full = bpf.one_of(bpf.ARG1, [2, 3], bpf.refuse(errno.ENOSPC))
program = seccomp.head(kernel.ARCH) + bpf.when(numbers(kernel.ARCH)["epoll_ctl"], full) + [bpf.ALLOW]
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
kernel.install_filter(bpf.assemble(program))
try:
    select.epoll().register(0)
except OSError as error:
    assert error.errno == errno.ENOSPC
else:
    raise AssertionError("there is room")
"""
WAITS = """
from skillyard.watches import Watches
told = []
watches = Watches(lambda: told.append(True))
(one, into), (two, _) = os.pipe(), os.pipe()
watches.register(one, select.EPOLLIN)
watches.register(two, select.EPOLLIN)
assert told and watches.poll(0) == []
os.write(into, b"x")
assert watches.poll(5) == [(one, select.EPOLLIN)], watches.poll(0)
watches.modify(one, 0)
assert watches.poll(0) == []
watches.modify(one, select.EPOLLIN)
assert watches.poll(5) == [(one, select.EPOLLIN)]
watches.unregister(one)
os.close(two)
assert watches.poll(0.2) == []
began = time.monotonic()
assert watches.poll(0.2) == [] and time.monotonic() - began >= 0.19
print("done")
"""
RUNS = """
from pathlib import Path
from skillyard import SyncRuntime
with SyncRuntime(Path(sys.argv[1])) as runtime:
    for number in range(3):
        print(runtime.run_code("def main(args): print('log'); return args", {"n": number})["output"])
"""
FEW_DESCRIPTORS = """
import resource, sys
from pathlib import Path
from skillyard import SyncRuntime
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
with SyncRuntime(Path(sys.argv[1])) as runtime:
    source = "import resource\\ndef main(): return resource.getrlimit(resource.RLIMIT_NOFILE)"
    print(runtime.run_code(source.replace("main()", "main(args)"))["output"])
"""
IMPORTS = """
import resource
from skillyard.sandbox.native.grounds.namespaces.zygote import lessen_descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}))
lessen_descriptors()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def _told(source: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", source, *args], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_descriptors_are_waited_for() -> None:
    assert _told(FULL + WAITS) == "done\n"


def test_runs_go_on(tmp_path: Path) -> None:
    assert _told(FULL + RUNS, str(tmp_path / "data")).splitlines() == [str({"n": number}) for number in range(3)]


def test_a_sandbox_sends_fewer_descriptors_than_others_of_its_user_may(tmp_path: Path) -> None:
    """Those in flight count by user, and whoever sends one more is held to its own limit (unix(7))."""
    assert _told(FEW_DESCRIPTORS, str(tmp_path / "data")) == "{'result': [512, 512]}\n"


@pytest.mark.parametrize(("keeper", "zygote"), [(1024, 640), (300, 150)])
def test_a_package_sends_fewer_descriptors_than_the_keeper_may(keeper: int, zygote: int) -> None:
    """By one message or more, where there are so many."""
    assert _told(IMPORTS.format(keeper)) == f"{zygote} {zygote}\n"


def test_a_server_may_have_as_many_descriptors_as_it_can(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    try:
        server = ServerProcess(tmp_path / "data")
        server.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    told = (Path("/proc") / str(server.pid) / "limits").read_text().splitlines()
    server.stop()
    (line,) = [line for line in told if line.startswith("Max open files")]
    assert line.split()[3:5] == [str(hard), str(hard)]
