"""What hostile code tries where no namespace stands: each attempt is made from inside and looked at from outside."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import Outcome
from skillyard.testing.sandbox_suite import Ground
from skillyard.testing.sandbox_suite.ground import look, python

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the attacks name system calls by x86_64's numbers"),
]

TRY = """
import ctypes, errno, json, mmap, os, resource, signal, socket, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
told = {}
def attempt(name, function, *args):
    try: got = function(*args)
    except OSError as error: told[name] = errno.errorcode.get(error.errno, str(error.errno))
    else: told[name] = 'DONE'
def call(number, *args):
    ctypes.set_errno(0)
    if libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args)) < 0:
        raise OSError(ctypes.get_errno(), 'call')
"""
TELL = "\nprint(json.dumps(told))\n"


async def tried(ground: Ground, body: str, *args: str, **options: Any) -> dict[str, str]:
    """What became of each attempt: an errno's name, or DONE."""
    told: dict[str, str] = await ground.look(TRY + body + TELL, *args, **options)
    assert told
    return told


def through(told: dict[str, str]) -> dict[str, str]:
    return {name: answer for name, answer in told.items() if answer == "DONE"}


async def test_files_of_the_host_cannot_be_read(ground: Ground, canary: Path) -> None:
    body = """
file, data = sys.argv[1:]
for path in (file, data + '/keeper.log', '/etc/passwd', '/etc/shadow', '/etc/hosts', '/proc/self/root' + file,
             '/proc/self/cwd/../../../../../../../../..' + file, '/proc/self/mountinfo', '/proc/self/net/tcp',
             '/proc/self/cgroup', '/proc/net/unix', '/proc/1/cmdline', '/proc/1/environ', '/proc/kcore', '/dev/mem'):
    if os.path.lexists(path): attempt('read ' + path, lambda: open(path, 'rb').read(1))
for path in ('/', '/proc', '/tmp', '/var/tmp', '/dev', '/dev/shm', '/home', '/root', HERE, os.path.dirname(HERE),
             os.path.dirname(os.path.dirname(HERE)), '/proc/self/task', '/proc/sys'):
    attempt('list ' + path, os.listdir, path)
"""
    run_dir = str(ground.backend._run_dir)  # type: ignore[attr-defined]
    assert through(await tried(ground, body, str(canary), run_dir)) == {}


async def test_nothing_of_the_host_can_be_written(ground: Ground, canary: Path) -> None:
    body = """
file, = sys.argv[1:]
new = os.O_CREAT | os.O_WRONLY
code = os.path.dirname(os.path.dirname(HERE)) + '/code'
for place in ('/tmp', '/var/tmp', '/dev/shm', os.path.dirname(file), HERE, HERE + '/skills', HERE + '/blobs',
              os.path.dirname(HERE), code, os.path.dirname(sys.executable), '/proc/self'):
    attempt('make in ' + place, os.open, place + '/made', new)
    attempt('mkdir in ' + place, os.mkdir, place + '/made-directory')
    attempt('link to ' + place, os.symlink, 'x', place + '/made-link')
for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDONLY | os.O_TRUNC):
    attempt(f'open {flags}', os.open, file, flags)
attempt('truncate', os.truncate, file, 0)
attempt('unlink', os.unlink, file)
attempt('rename away', os.rename, file, 'mine')
attempt('rename over', lambda: (open('mine', 'w').close(), os.rename('mine', file)))
attempt('hard link', os.link, file, 'mine2')
attempt('a device', os.mknod, 'device', 0o600 | stat.S_IFCHR, os.makedev(1, 1))
attempt('owner', os.chown, file, os.getuid(), os.getgid())
attempt('attribute', os.setxattr, file, 'user.x', b'x')
attempt('through /proc', lambda: open('/proc/self/oom_score_adj', 'w').write('-1000'))
"""
    assert through(await tried(ground, body, str(canary))) == {}
    assert canary.read_text() == "canary"


async def test_modes_and_times_of_the_servers_files_stay(ground: Ground, canary: Path) -> None:
    """Landlock does not know chmod and utime: a user of its own, or a filter, must."""
    body = """
file, directory = sys.argv[1:]
attempt('chmod', os.chmod, file, 0o777)
attempt('chmod of the directory', os.chmod, directory, 0o777)
attempt('utime', os.utime, file)
fd = os.open(file, os.O_PATH)
attempt('chmod by descriptor', os.chmod, f'/proc/self/fd/{fd}', 0o777)
attempt('fchmodat2', call, 452, fd, b'', 0o777, 0x1000)
"""
    run_dir = ground.backend._run_dir  # type: ignore[attr-defined]
    await tried(ground, body, str(canary), str(run_dir))
    about = canary.stat()
    assert (about.st_mode & 0o7777, about.st_mtime) == (0o644, 1000)
    assert run_dir.stat().st_mode & 0o7777 == 0o700


async def test_another_sandbox_is_out_of_reach(ground: Ground) -> None:
    async with ground.sandbox() as one, ground.sandbox() as two:
        where = await look(one, "import json; open('secret', 'w').write('x'); print(json.dumps(HERE))")
        body = f"""
for path in ({where!r} + '/workspace/secret', {where!r} + '/workspace', {where!r} + '/tmp'):
    attempt('open ' + path, os.open, path, os.O_RDONLY)
attempt('make', os.open, {where!r} + '/workspace/made', os.O_CREAT | os.O_WRONLY)
attempt('remove', os.unlink, {where!r} + '/workspace/secret')
"""
        told = await look(two, TRY + body + TELL)
        assert through(told) == {}
        assert await look(one, "import json, os; print(json.dumps(os.listdir('.')))") == ["secret"]


async def test_processes_of_others_cannot_be_touched(ground: Ground, bystander: int) -> None:
    body = """
others = [int(word) for word in sys.argv[1:]] + [os.getppid(), 1]
for pid in others:
    for number in (0, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
        attempt(f'kill {pid} {number}', os.kill, pid, number)
    attempt(f'rt_sigqueueinfo {pid}', call, 129, pid, signal.SIGTERM, ctypes.create_string_buffer(128))
    attempt(f'prlimit {pid}', resource.prlimit, pid, resource.RLIMIT_NOFILE, (16, 16))
    attempt(f'prlimit, read {pid}', resource.prlimit, pid, resource.RLIMIT_NOFILE)
    attempt(f'setpriority {pid}', os.setpriority, os.PRIO_PROCESS, pid, 19)
    attempt(f'sched_setaffinity {pid}', os.sched_setaffinity, pid, {0})
    attempt(f'sched_setscheduler {pid}', os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))
    attempt(f'ioprio_set {pid}', call, 251, 1, pid, 3 << 13)
    attempt(f'ptrace {pid}', call, 101, 16, pid, 0, 0)
    attempt(f'process_vm_readv {pid}', call, 310, pid, ctypes.create_string_buffer(16), 1, 0, 0, 0)
    attempt(f'kcmp {pid}', call, 312, pid, os.getpid(), 0, 0, 0)
    attempt(f'move_pages {pid}', call, 279, pid, 0, 0, 0, 0, 0)
    for name in ('mem', 'environ', 'maps', 'cmdline', 'status', 'fd'):
        attempt(f'/proc/{pid}/{name}', os.open, f'/proc/{pid}/{name}', os.O_RDONLY)
    try: fd = os.pidfd_open(pid)
    except OSError: continue
    attempt(f'pidfd_send_signal {pid}', signal.pidfd_send_signal, fd, signal.SIGKILL)
    attempt(f'pidfd_getfd {pid}', call, 438, fd, 0, 0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
attempt('-', os.kill, 2 ** 22 - 1, 0)
try: os.kill(-1, signal.SIGTERM)
except OSError: pass
"""
    told = await tried(ground, body, str(bystander), str(os.getpid()))
    assert through(told) == {}


async def test_no_socket_leads_out(ground: Ground) -> None:
    body = """
import itertools
for family, kind in itertools.product(range(46), (1, 2, 3, 5, 10)):
    attempt(f'socket {family} {kind}', socket.socket, family, kind)
pair = socket.socketpair()
attempt('datagrams', socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)
attempt('datagrams with flags', call, 53, 1, 2 | 0o4000, 0, ctypes.create_string_buffer(8))
attempt('raw pair', call, 53, 1, 3, 0, ctypes.create_string_buffer(8))
attempt('connect', pair[0].connect, sys.argv[1])
attempt('connect to nobody', call, 42, pair[0].fileno(), ctypes.create_string_buffer(16), 2)
attempt('bind', pair[0].bind, 'here')
attempt('listen', pair[0].listen)
attempt('sendto', pair[0].sendto, b'x', sys.argv[1])
attempt('descriptors', socket.send_fds, pair[0], [b'x'], [0])
"""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    name = f"/var/tmp/landlock-{os.getpid()}.sock"
    server.bind(name)
    os.chmod(name, 0o777)
    server.setblocking(False)
    try:
        assert through(await tried(ground, body, name)) == {}
        with pytest.raises(BlockingIOError):
            server.recv(1)
    finally:
        server.close()
        os.unlink(name)


async def test_nothing_is_shared_by_name(ground: Ground) -> None:
    body = """
attempt('shmget', call, 29, 0x5EED, 4096, 0o1666)
attempt('semget', call, 64, 0x5EED, 1, 0o1666)
attempt('msgget', call, 68, 0x5EED, 0o1666)
attempt('mq_open', call, 240, b'seed', os.O_CREAT | os.O_RDWR, 0o666, 0)
attempt('add_key', call, 248, b'user', b'suite', b'x', 1, -4)
attempt('keyctl', call, 250, 0, -3, 1)
attempt('shm_open', os.open, '/dev/shm/shared', os.O_CREAT | os.O_RDWR)
attempt('memfd', os.memfd_create, 'x')
attempt('shared memory', mmap.mmap, -1, 4096)
"""
    assert through(await tried(ground, body)) == {}


@pytest.mark.parametrize("how", ["held open", "only mapped"])
async def test_removed_files_count(how: str, ground: Ground) -> None:
    keep = {"held open": "held.append(fd)", "only mapped": "held.append(keep(fd)); os.close(fd)"}[how]
    source = f"""
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
def keep(fd): return libc.mmap(None, 4096, 1, 1, fd, 0)
held = []
for number in range(100):
    fd = os.open('file', os.O_CREAT | os.O_RDWR)
    os.write(fd, b'x' * (1 << 20))
    os.unlink('file')
    {keep}
    time.sleep(0.05)
time.sleep(30)
"""
    done = await ground.run(python(source), Limits(timeout_ms=20_000, disk_mb=16))
    assert done.ending.outcome is Outcome.DISK, done


async def test_the_program_sees_of_itself_what_it_needs(ground: Ground) -> None:
    source = """
import json
names = ('status', 'stat', 'maps', 'cmdline', 'environ')
print(json.dumps([bool(open('/proc/self/' + name).read()) for name in names] + [len(os.listdir('/proc/self/fd')) > 2,
    bool(open('/proc/cpuinfo').read()), 'HERE' != '' and os.environ['HOME'] == HERE + '/workspace']))
"""
    assert await ground.look(source) == [True] * 8
