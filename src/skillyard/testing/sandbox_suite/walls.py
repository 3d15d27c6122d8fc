"""What foreign code is, sees and may change. Each check fails when its wall is taken away."""

from __future__ import annotations

import ctypes
import os
import socket
import uuid
from pathlib import Path

from skillyard.ports.sandbox import Sandbox
from skillyard.testing.sandbox_suite.check import Section, expect
from skillyard.testing.sandbox_suite.frames import last
from skillyard.testing.sandbox_suite.ground import Ground, code, fresh, look, python, start, until
from skillyard.testing.sandbox_suite.observe import directory, processes, user_ids

walls = Section("walls")

LOOK_AT_STATUS = """
def status():
    import ctypes
    told = dict(line.split(':\\t', 1) for line in open('/proc/self/status') if ':\\t' in line)
    told.setdefault('NoNewPrivs', str(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0)))
    return told
"""
"""Kernels tell of no_new_privs in prctl(2) before they do in /proc."""
STATUS = LOOK_AT_STATUS + "import json; print(json.dumps(status()))"
GUEST_STATUS = LOOK_AT_STATUS + "def main(args): return status()"
WRITABLE = """
import json, os, sys
skip = ('/workspace', '/tmp', '/dev/shm', '/proc')
found = []
def attempt(path):
    name = os.path.join(path, '.suite')
    try: os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    except OSError: return
    found.append(path)
for top, directories, files in os.walk('/'):
    directories[:] = [d for d in directories if os.path.join(top, d) not in skip][:60]
    if top.count('/') < 4: attempt(top)
print(json.dumps(found))
"""
PROC = """
import json, os
found = []
def attempt(path):
    try: os.close(os.open(path, os.O_WRONLY))
    except OSError: return
    found.append(path)
for top in ('/proc/sys', '/proc/irq', '/proc/bus', '/proc/fs', '/proc/scsi', '/sys'):
    for where, _, names in os.walk(top):
        for name in names: attempt(os.path.join(where, name))
for name in ('sysrq-trigger', 'kcore', 'kmsg', 'timer_list', 'latency_stats', 'mtrr'): attempt('/proc/' + name)
print(json.dumps(found))
"""
INIT = """
import json, os
opened = []
for name, mode in (('mem', os.O_RDWR), ('mem', os.O_RDONLY), ('environ', os.O_RDONLY), ('auxv', os.O_RDONLY)):
    try: os.close(os.open('/proc/1/' + name, mode))
    except OSError: continue
    opened.append(name)
for name in ('fd', 'map_files', 'cwd', 'root'):
    try: os.listdir('/proc/1/' + name)
    except OSError: continue
    opened.append(name)
print(json.dumps(opened))
"""
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
"""The last one is younger than the rest."""


async def _statuses(ground: Ground) -> list[dict[str, str]]:
    """/proc/self/status of a command and of a guest."""
    async with ground.sandbox() as sandbox:
        command = await look(sandbox, STATUS)
    return [command, last((await ground.run(code(GUEST_STATUS))).channel, "R")]


@walls.check("non_root")
async def user_is_not_root_inside(ground: Ground) -> None:
    for status in await _statuses(ground):
        for name in ("Uid", "Gid"):
            expect("0" not in status[name].split(), f"{name} is not root inside", status[name])
        expect("0" not in status.get("Groups", "").split(), "no group is root's", status.get("Groups"))


@walls.check("non_root")
async def user_is_not_root_outside(ground: Ground) -> None:
    marker = fresh("who")
    async with ground.sandbox() as sandbox:
        process = await start(sandbox, python("print('here', flush=True); input()", marker, stdin=True))
        await until(process, b"here")
        users = set().union(*(user_ids(pid) for pid in await _outside(ground, sandbox, marker)))
    expect(users and 0 not in users, "foreign code is not root on the host", users)


@walls.check("own_uid")
async def two_sandboxes_are_two_users(ground: Ground) -> None:
    marker = [fresh("one"), fresh("two")]
    waiting = "print('here', flush=True); input()"
    async with ground.sandbox() as one, ground.sandbox() as two:
        for sandbox, name in zip((one, two), marker, strict=True):
            await until(await start(sandbox, python(waiting, name, stdin=True)), b"here")
        pids = [await _outside(ground, box, name) for box, name in zip((one, two), marker, strict=True)]
        users = [set().union(*(user_ids(pid) for pid in each)) for each in pids]
    expect(users[0].isdisjoint(users[1]), "each sandbox has a user of its own on the host", users)


@walls.check("no_capabilities")
async def capabilities_are_none(ground: Ground) -> None:
    for status in await _statuses(ground):
        held = {name: status[name].strip() for name in CAPABILITIES if name in status or name != "CapAmb"}
        if ground.keeps_bounding_set and status["NoNewPrivs"].strip() == "1":
            del held["CapBnd"]
        expect(all(int(value, 16) == 0 for value in held.values()), "all capability sets are empty", held)


@walls.check("no_new_privs")
async def privileges_cannot_grow(ground: Ground) -> None:
    for status in await _statuses(ground):
        expect(status["NoNewPrivs"].strip() == "1", "no_new_privs is set", status["NoNewPrivs"])


@walls.check("seccomp")
async def system_calls_are_filtered(ground: Ground) -> None:
    for status in await _statuses(ground):
        expect(status["Seccomp"].strip() == "2", "seccomp is in filter mode", status["Seccomp"])


@walls.check("pid_namespace", "private_proc")
async def processes_of_the_host_are_invisible(ground: Ground) -> None:
    source = """
import json, os, sys
pids = [int(name) for name in os.listdir('/proc') if name.isdigit()]
try: signalled = os.kill(int(sys.argv[1]), 0) is None
except ProcessLookupError: signalled = False
print(json.dumps([len(pids), max(pids), signalled]))
"""
    count, highest, signalled = await ground.look(source, str(_high_pid()))
    expect(count <= 6 and highest < 1000, "/proc lists the sandbox's own processes only", (count, highest))
    expect(not signalled, "a process of the host cannot be signalled")


@walls.check("pid_namespace", "private_proc")
async def processes_of_another_sandbox_are_invisible(ground: Ground) -> None:
    marker = fresh("other")
    source = """
import json, os
lines = []
for name in os.listdir('/proc'):
    if name.isdigit() and int(name) != os.getpid():
        try: lines.append(open(f'/proc/{name}/cmdline').read())
        except OSError: pass
print(json.dumps(lines))
"""
    async with ground.sandbox() as other:
        await until(await start(other, python("print('here', flush=True); input()", marker, stdin=True)), b"here")
        lines = await ground.look(source)
    expect(not any(marker in line for line in lines), "another sandbox's processes are invisible", lines)


@walls.check("private_proc", "pid_namespace")
async def init_is_out_of_reach(ground: Ground) -> None:
    opened = await ground.look(INIT)
    expect(opened == [], "the sandbox's pid 1 cannot be read, written or followed", opened)


@walls.check("mount_namespace")
async def files_of_the_host_are_invisible(ground: Ground) -> None:
    source = "import json, os, sys; print(json.dumps([p for p in sys.argv[1:] if os.path.lexists(p)]))"
    secret = fresh("canary")
    with directory(ground.scratch / secret) as base:
        (base / "secret").write_text("secret", encoding="utf-8")
        base.chmod(0o755)
        (base / "secret").chmod(0o644)
        canary = Path("/tmp") / secret  # noqa: S108 - what every user of the host can see
        canary.write_text("secret", encoding="utf-8")
        try:
            hidden = [*map(str, ground.hidden), str(base / "secret"), str(ground.scratch), str(canary)]
            hidden += ["/etc/shadow", "/root/.ssh", "/etc/ssh", "/var/log", "/run/user", "/boot/grub", "/proc/kcore/x"]
            seen = await ground.look(source, *hidden)
        finally:
            canary.unlink()
    expect(seen == [], "no file of the host is visible", seen)


@walls.check("read_only_root")
async def nothing_else_is_writable(ground: Ground) -> None:
    found = await ground.look(WRITABLE)
    expect(found == [], "only /workspace, /tmp and /dev/shm can be written", found)


@walls.check("private_proc")
async def kernel_settings_are_not_writable(ground: Ground) -> None:
    found = await ground.look(PROC)
    expect(found == [], "nothing below /proc/sys and the like can be opened for writing", found[:10])


@walls.check("uts_namespace")
async def hostname_is_not_the_hosts(ground: Ground) -> None:
    source = "import json, os, socket; print(json.dumps([socket.gethostname(), os.uname().nodename]))"
    names = await ground.look(source)
    expect(socket.gethostname() not in names, "the host's name is not told", names)


@walls.check("ipc_namespace")
async def shared_memory_of_the_host_is_invisible(ground: Ground) -> None:
    source = """
import ctypes, json, sys
print(json.dumps(ctypes.CDLL(None, use_errno=True).shmget(int(sys.argv[1]), 4096, 0)))
"""
    libc, key = ctypes.CDLL(None, use_errno=True), uuid.uuid4().int & 0x7FFFFFFF
    segment = libc.shmget(key, 4096, 0o1666)
    try:
        found = await ground.look(source, str(key))
    finally:
        libc.shmctl(segment, 0, None)
    expect(segment >= 0, "the host can make a segment that everybody may use", segment)
    expect(found == -1, "a System V segment of the host is not there", found)


@walls.check("cgroup_namespace")
async def cgroups_tell_no_path_of_the_host(ground: Ground) -> None:
    source = """
import json
try: lines = open('/proc/self/cgroup').read().splitlines()
except FileNotFoundError: lines = []
print(json.dumps([line.split(':', 2)[2] for line in lines]))
"""
    paths = await ground.look(source)
    expect(set(paths) <= {"/"}, "a sandbox's cgroups are the roots of its view", paths)


@walls.check("user_namespace")
async def user_namespace_is_its_own(ground: Ground) -> None:
    space = await ground.look("import json, os; print(json.dumps(os.readlink('/proc/self/ns/user')))")
    expect(space != str(Path("/proc/self/ns/user").readlink()), "the user namespace is another one", space)


@walls.check()
async def variables_of_the_host_are_invisible(ground: Ground) -> None:
    name = f"SUITE_CANARY_{os.getpid()}"
    os.environ[name] = "canary"
    try:
        source = "import json, os; print(json.dumps([dict(os.environ), open('/proc/self/environ').read()]))"
        seen = await ground.look(source)
    finally:
        del os.environ[name]
    expect(name not in str(seen), "no variable of the server is visible", seen)


@walls.check()
async def descriptors_of_the_host_are_not_inherited(ground: Ground) -> None:
    source = """
import json, os
paths = [f'/proc/self/fd/{number}' for number in os.listdir('/proc/self/fd') if int(number) > 2]
print(json.dumps([os.readlink(path) for path in paths if os.path.lexists(path)]))
"""
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    try:
        links = await ground.look(source)
    finally:
        os.close(reading)
        os.close(writing)
    expect(links == [], "a command has its three descriptors and no more", links)


@walls.check("host_files")
async def devices_are_harmless(ground: Ground) -> None:
    source = """
import json, os, stat
found = []
known = ('mem', 'kmsg', 'kvm', 'fuse', 'loop0', 'loop-control', 'sda', 'vda', 'console', 'tty0', 'net/tun', 'vhost-net')
try: names = os.listdir('/dev')
except PermissionError: names = []
for name in {*names, *known}:
    try: about = os.lstat('/dev/' + name)
    except OSError: continue
    if name in names:
        harmless = ('null', 'zero', 'full', 'random', 'urandom', 'tty', 'ptmx')
        block, character = stat.S_ISBLK(about.st_mode), stat.S_ISCHR(about.st_mode)
        if block or (character and name not in harmless): found.append(name)
        continue
    for mode in (os.O_RDONLY, os.O_WRONLY):
        try: os.close(os.open('/dev/' + name, mode | os.O_NONBLOCK))
        except OSError: continue
        found.append(name)
try:
    os.mknod(HERE + '/tmp/device', 0o600 | stat.S_IFBLK, os.makedev(254, 0))
    found.append('made')
except OSError: pass
print(json.dumps(found))
"""
    found = await ground.look(source)
    expect(found == [], "no device but the harmless ones is there or can be made", found)


async def _outside(ground: Ground, sandbox: Sandbox, marker: str) -> list[int]:
    """The processes of the host that run foreign code: those with the marker that began last, unless the backend's
    programs are no processes of the host."""
    if ground.witness is not None:
        return await ground.witness(sandbox.handle)
    return sorted(processes(marker))[-1:]


def _high_pid() -> int:
    """A pid of this host that no small namespace has."""
    return max(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
