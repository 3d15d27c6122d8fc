"""Parts of the kernel that all sandboxes and the host share tell nothing and run out for nobody."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
from collections.abc import Callable

import pytest

from skillyard import SyncRuntime
from tests.attacks.conftest import Attack
from tests.attacks.programs import Row

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")

NO = ("EPERM", "ENOSYS")
ROWS = [
    Row("an inotify instance", "sys_call(294, 0)", NO, "sys_call(291, 0) > 0", True),
    Row("an old inotify instance", "sys_call(253)", NO, "sys_call(290, 0, 0) > 0", True),
    Row("an inotify watch", "sys_call(254, 0, b'/usr/bin', 32)", NO, "refusal(os.listdir, '/usr/bin')", ""),
    Row("directory notes", "refusal(fcntl.fcntl, os.open('/usr/bin', 0), fcntl.F_NOTIFY, fcntl.DN_ACCESS)",
        ("EINVAL",),
        "refusal(fcntl.fcntl, os.open('/usr/bin', 0), fcntl.F_GETFL)", ""),
    Row("a write hint", "refusal(fcntl.fcntl, os.open('/usr/bin/env', 0), 1036, struct.pack('Q', 5))", ("EINVAL",),
        "refusal(fcntl.fcntl, os.open('/usr/bin/env', 0), fcntl.F_GETFD)", ""),
    Row("a lock of an open file description",
        "refusal(fcntl.fcntl, os.open('/usr/bin/env', 0), 37, struct.pack('hhqqi4x', 0, 0, 0, 1, 0))", ("EINVAL",),
        "refusal(fcntl.lockf, os.open('/tmp/own', os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)", ""),
    Row("flags of a file", "refusal(fcntl.ioctl, os.open('/usr/bin/env', 0), 0x40086602, struct.pack('Q', 0x40))",
        ("ENOTTY",), "refusal(fcntl.ioctl, os.pipe()[0], 0x541B, bytes(4))", ""),
    Row("a lease", "refusal(fcntl.fcntl, os.open('/usr/bin/env', 0), fcntl.F_SETLEASE, fcntl.F_RDLCK)", ("EINVAL",),
        "refusal(fcntl.fcntl, os.open('/usr/bin/env', 0), fcntl.F_GETFD)", ""),
    Row("urgent data on a unix socket", "(lambda pair: refusal(pair[0].send, b'x', 1))(socket.socketpair())",
        ("EOPNOTSUPP", "ENOTSUP"), "(lambda pair: refusal(pair[0].send, b'x'))(socket.socketpair())", ""),
    Row("another protocol above TCP", "refusal(socket.socket().setsockopt, 6, 31, b'tls')", ("EPERM",),
        "refusal(socket.socket().setsockopt, 6, socket.TCP_NODELAY, 1)", ""),
    Row("a program for packets", "refusal(filtered, socket.socket(), b'\\x06\\0\\0\\0\\xff\\xff\\0\\0')", ("EPERM",),
        "refusal(socket.socket().setsockopt, 1, socket.SO_KEEPALIVE, 1)", ""),
    Row("a multicast group",
        "refusal(socket.socket(10, 2).setsockopt, 41, 20, socket.inet_pton(10, 'ff02::99') + struct.pack('I', 1))",
        ("EPERM",), "refusal(socket.socket(10, 2).setsockopt, 41, socket.IPV6_V6ONLY, 1)", ""),
    Row("a multicast group of version 4",
        "refusal(socket.socket(2, 2).setsockopt, 0, 35, struct.pack('4s4si', bytes([224, 0, 0, 9]), bytes(4), 1))",
        ("EPERM",), "refusal(socket.socket(2, 2).setsockopt, 0, socket.IP_TTL, 9)", ""),
    Row("a flow label", "refusal(socket.socket(10, 2).setsockopt, 41, 32, bytes(15) + b'\\x01' + struct.pack("
        "'!IBBHHHI', 0, 1, 1, 1, 6, 1, 0))", ("EPERM",), "refusal(socket.socket(10, 2).setsockopt, 41, 67, 0)", ""),
    Row("a handle on the keeper", "refusal(socket.socket(fileno=os.dup(3)).getsockopt, 1, 77, 4)", ("EPERM",),
        "refusal(socket.socket(fileno=os.dup(3)).getsockopt, 1, socket.SO_TYPE, 4)", ""),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_refused(row: Row, hold: Callable[[Row], None]) -> None:
    hold(row)


def test_the_host_keeps_its_own_instances(runtime: SyncRuntime, attack: Attack) -> None:
    run = attack("""
        taken = 0
        while isinstance(sys_call(294, 0), int):
            taken += 1
        return {"taken": taken}
    """)
    assert run.output == {"taken": 0}
    own = ctypes.CDLL(None).inotify_init1(0)
    assert own >= 0
    os.close(own)


def test_an_interrupt_for_init_does_not_end_the_sandbox(attack: Attack) -> None:
    run = attack("""
        os.kill(1, signal.SIGINT)
        time.sleep(0.2)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except KeyboardInterrupt:
            return {"twin": "interrupted"}
    """)
    assert run.output == {"twin": "interrupted"}


HIDDEN = {
    "memfd": "os.write(os.memfd_create('m'), block)",
    "shared mappings that are let go": "let_go(mmap.mmap(-1, 1 << 20))",
    "shared mappings of /dev/zero": "let_go(mmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20))",
}


@pytest.mark.parametrize("name", HIDDEN)
def test_memory_that_no_process_shows_is_bounded_too(name: str, attack: Attack) -> None:
    run = attack(
        f"""
        block, kept = b"x" * (1 << 20), []

        def let_go(mapped):
            for at in range(0, len(mapped), 4096):
                mapped[at] = 1
            mapped.madvise(mmap.MADV_DONTNEED)
            kept.append(mapped)

        print("twin", flush=True)
        for _ in range(500):
            {HIDDEN[name]}
        return {{}}
        """,
        memory_mb=128,
        disk_mb=16,
    )
    assert run.logs_preview.startswith("twin")
    assert run["status"] == "failed", dict(run)


def test_devices_keep_their_times(attack: Attack) -> None:
    run = attack("""
        open("/tmp/own", "w").close()
        paths = [f"/dev/{name}" for name in ("null", "full", "random", "urandom")]
        return {"refused": sorted({refusal(os.utime, path) for path in paths}), "twin": refusal(os.utime, "/tmp/own"),
                "written": os.write(os.open("/dev/null", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), b"x")}
    """)
    assert run.output == {"refused": ["EROFS"], "twin": "", "written": 1}


HUGE = {
    "a private mapping": "mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000 | 0x4000)",
    "a shared mapping": "mmap.mmap(-1, 2 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x40000 | 0x4000)",
    "a nameless file": "os.memfd_create('m', os.MFD_HUGETLB)",
}


@pytest.mark.parametrize("name", HUGE)
def test_huge_pages_of_the_host_are_not_taken(name: str, attack: Attack) -> None:
    run = attack(f"""
        twin = mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
        return {{"attack": refusal(lambda: {HUGE[name]}), "twin": len(twin)}}
    """)
    assert run.output["attack"] in ("ENOMEM", "EINVAL", "ENOSYS")
    assert run.output["twin"] == 2 << 20


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_CORE)[1] == 0, reason="nobody here may have the limit that is looked for"
)
def test_a_crash_is_not_handed_to_the_hosts_handler(attack: Attack) -> None:
    run = attack("""
        twin = status_of(lambda: os.kill(os.getpid(), signal.SIGABRT))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        return {"limit": resource.getrlimit(resource.RLIMIT_CORE), "twin": os.WTERMSIG(twin),
                "dumped": os.WCOREDUMP(twin),
                "other": refusal(resource.prlimit, os.getpid(), resource.RLIMIT_CORE, (0, 0))}
    """)
    assert run.output == {"limit": [1, 1], "dumped": False, "twin": 6, "other": "EPERM"}
