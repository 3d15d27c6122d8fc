"""Only /workspace, /tmp and /dev/shm can be written, and nothing in sight gives more rights."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.attacks.conftest import Attack
from tests.attacks.programs import Row

NO = ("EACCES", "EPERM", "EROFS", "EXDEV")

ROWS = [
    Row("make a file in /", "refusal(os.open, '/x', os.O_CREAT | os.O_WRONLY)", NO,
        "refusal(os.open, '/workspace/x', os.O_CREAT | os.O_WRONLY)", ""),
    Row("make a directory in /skills", "refusal(os.mkdir, '/skills/x')", NO, "refusal(os.mkdir, '/dev/shm/x')", ""),
    Row("make a directory in /blobs", "refusal(os.mkdir, '/blobs/x')", NO, "refusal(os.mkdir, '/tmp/x')", ""),
    Row("make a node in /dev", "refusal(os.mknod, '/dev/x', 0o20600, os.makedev(1, 1))", NO,
        "refusal(os.mkfifo, '/tmp/x')", ""),
    Row("make a device in /tmp", "refusal(os.mknod, '/tmp/x', 0o60600, os.makedev(8, 0))", NO,
        "refusal(os.mknod, '/tmp/y', 0o100600)", ""),
    Row("change a mode of the host's", "refusal(os.chmod, '/dev/null', 0o600)", NO,
        "(open('/tmp/m', 'w').close(), refusal(os.chmod, '/tmp/m', 0o600))[1]", ""),
    Row("give a file away", "(open('/tmp/c', 'w').close(), refusal(os.chown, '/tmp/c', 0, 0))[1]", ("EPERM", "EINVAL"),
        "(open('/tmp/c', 'w').close(), refusal(os.chown, '/tmp/c', os.getuid(), os.getgid()))[1]", ""),
    Row("link a file of the host in", "refusal(os.link, '/usr/bin/env', '/tmp/env')", NO,
        "(open('/tmp/a', 'w').close(), refusal(os.link, '/tmp/a', '/tmp/b'))[1]", ""),
    Row("rename out of /tmp", "(open('/tmp/r', 'w').close(), refusal(os.rename, '/tmp/r', '/run/r'))[1]", NO,
        "(open('/tmp/r', 'w').close(), refusal(os.rename, '/tmp/r', '/tmp/s'))[1]", ""),
    Row("truncate a file of the host", "refusal(os.truncate, '/etc/hosts', 0)", NO,
        "(open('/tmp/t', 'w').close(), refusal(os.truncate, '/tmp/t', 1))[1]", ""),
    Row("write through a link", "(os.symlink('/etc/hosts', '/tmp/l'), refusal(os.open, '/tmp/l', os.O_WRONLY))[1]", NO,
        "(os.symlink('/tmp/to', '/tmp/k'), refusal(os.open, '/tmp/k', os.O_CREAT | os.O_WRONLY))[1]", ""),
    Row("write core_pattern", "refusal(os.open, '/proc/sys/kernel/core_pattern', os.O_WRONLY)", NO,
        "refusal(os.open, '/proc/sys/kernel/core_pattern', os.O_RDONLY)", ""),
    Row("write one's own memory file", "refusal(os.open, '/proc/self/mem', os.O_RDWR)", NO,
        "refusal(os.open, '/proc/self/maps', os.O_RDONLY)", ""),
    Row("leave by ..", "refusal(os.stat, '/proc/self/cwd/../../../../../home')", ("ENOENT",),
        "refusal(os.stat, '/proc/self/cwd/../usr')", ""),
    Row("block devices", "refusal(os.open, '/dev/vda', os.O_RDONLY)", ("ENOENT",),
        "refusal(os.open, '/dev/urandom', os.O_RDONLY)", ""),
    Row("kernel memory", "refusal(os.open, '/dev/mem', os.O_RDONLY)", ("ENOENT",), "os.path.exists('/dev/null')", True),
    Row("sysfs", "refusal(os.listdir, '/sys')", ("ENOENT",), "refusal(os.listdir, '/usr')", ""),
    Row("terminals", "refusal(os.open, '/dev/ptmx', os.O_RDWR)", ("ENOENT",), "os.isatty(0)", False),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_refused(row: Row, hold: Callable[[Row], None]) -> None:
    hold(row)


def test_what_can_be_written_is_the_devices_and_ones_own(attack: Attack) -> None:
    run = attack("""
        found = []
        for top in ("/dev", "/etc", "/opt", "/proc", "/run", "/skills", "/blobs", "/var"):
            for directory, names, files in os.walk(top):
                names[:] = [n for n in names if not n.isdigit() and os.path.join(directory, n) != "/dev/shm"]
                if os.access(directory, os.W_OK) and not refusal(os.mkdir, directory + "/probe"):
                    found.append(directory)
                for name in files:
                    path = os.path.join(directory, name)
                    if not os.path.islink(path) and not refusal(os.open, path, os.O_WRONLY | os.O_NONBLOCK):
                        found.append(path)
        return {"found": sorted(found)}
    """)
    devices = {f"/dev/{name}" for name in ("full", "null", "random", "urandom", "zero")}
    assert {"/dev/null", "/dev/urandom"} <= set(run.output["found"]) <= devices


def test_a_set_user_id_bit_gives_nothing(attack: Attack) -> None:
    run = attack("""
        import shutil, subprocess
        ids = lambda path: subprocess.run([path, "-c", "import os; print(os.getresuid(), os.getresgid())"],
                                          capture_output=True, text=True).stdout.strip()
        shutil.copy(os.path.realpath(sys.executable), "/tmp/python")
        os.chmod("/tmp/python", 0o6755)
        status = open("/proc/self/status").read()
        return {"same": ids("/tmp/python") in ("", ids(sys.executable)), "twin": ids(sys.executable),
                "no_new_privs": "NoNewPrivs:\\t1" in status,
                "capabilities": sorted({line.split()[1] for line in status.splitlines() if line.startswith("Cap")})}
    """)
    assert run.output["same"]
    assert run.output["twin"].startswith("(65532, 65532, 65532)")
    assert run.output["no_new_privs"]
    assert run.output["capabilities"] == ["0" * 16]
