"""Walls that the host must look at; the library of attacks tries the others."""

from __future__ import annotations

import os
from pathlib import Path

from skillyard.ports.sandbox import Sandbox
from skillyard.testing.sandbox_suite.check import Section, expect
from skillyard.testing.sandbox_suite.ground import Ground, code, fresh, look, python, run, start, until
from skillyard.testing.sandbox_suite.guest import last
from skillyard.testing.sandbox_suite.observe import processes, user_ids

walls = Section("walls")

STATUS = """
import ctypes, os
def main(args):
    told = dict(line.split(':\\t', 1) for line in open('/proc/self/status') if ':\\t' in line)
    told['NoNewPrivs'] = ctypes.CDLL(None).prctl(39, 0, 0, 0, 0)
    names = ('Uid', 'Gid', 'Groups', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')
    shared = [name for name, link in args['host'].items()
              if os.path.exists('/proc/self/ns/' + name) and os.readlink('/proc/self/ns/' + name) == link]
    return {**{name: told.get(name) for name in names}, 'shared': shared}
"""
WAIT = "print('here', flush=True); input()"


@walls.check()
async def a_command_stands_behind_the_walls_of_a_guest(ground: Ground) -> None:
    """Attacks are guests: a command of the same sandbox must be no more than they are."""
    spaces = ("user", "mnt", "pid", "net", "ipc", "uts")
    args = {"host": {name: str(Path(f"/proc/self/ns/{name}").readlink()) for name in spaces}}
    async with ground.sandbox() as sandbox:
        guest = last((await run(sandbox, code(STATUS, args))).channel, "R")
        command = await look(sandbox, STATUS + f"import json; print(json.dumps(main({args!r})))")
    expect(command == guest, "identity, capabilities, filter, and namespaces of the host", (command, guest))


@walls.check("non_root")
async def user_is_not_root_outside(ground: Ground) -> None:
    marker = fresh("who")
    async with ground.sandbox() as sandbox:
        await until(await start(sandbox, python(WAIT, marker, stdin=True)), b"here")
        users = set().union(*(user_ids(pid) for pid in await _outside(ground, sandbox, marker)))
    expect(users and 0 not in users, "foreign code is not root on the host", users)


@walls.check("own_uid")
async def two_sandboxes_are_two_users(ground: Ground) -> None:
    marker = [fresh("one"), fresh("two")]
    async with ground.sandbox() as one, ground.sandbox() as two:
        for sandbox, name in zip((one, two), marker, strict=True):
            await until(await start(sandbox, python(WAIT, name, stdin=True)), b"here")
        pids = [await _outside(ground, box, name) for box, name in zip((one, two), marker, strict=True)]
        users = [set().union(*(user_ids(pid) for pid in each)) for each in pids]
    expect(users[0].isdisjoint(users[1]), "each sandbox has a user of its own on the host", users)


@walls.check("user_namespace")
async def user_namespace_is_its_own(ground: Ground) -> None:
    space = await ground.look("import json, os; print(json.dumps(os.readlink('/proc/self/ns/user')))")
    expect(space != str(Path("/proc/self/ns/user").readlink()), "the user namespace is another one", space)


@walls.check()
async def descriptors_of_the_host_are_not_inherited(ground: Ground) -> None:
    source = """
import os
def main(args):
    paths = [f'/proc/self/fd/{number}' for number in os.listdir('/proc/self/fd') if int(number) > 2]
    return {'links': [os.readlink(path) for path in paths if os.path.lexists(path)]}
"""
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    try:
        handed = str(Path(f"/proc/self/fd/{reading}").readlink())
        async with ground.sandbox() as sandbox:
            command = (await look(sandbox, source + "import json; print(json.dumps(main({})))"))["links"]
            guest = last((await run(sandbox, code(source))).channel, "R")["links"]
    finally:
        os.close(reading)
        os.close(writing)
    expect(command == [], "a command has its three descriptors and no more", command)
    expect(handed not in guest and len(guest) <= 2, "a guest has its channel, and a pipe for its last words", guest)


async def _outside(ground: Ground, sandbox: Sandbox, marker: str) -> list[int]:
    """Returns the processes of the host that run foreign code.

    They are those with the marker that began last, unless the backend's programs are not processes of the host.
    """
    if ground.witness is not None:
        return await ground.witness(sandbox.handle)
    return sorted(processes(marker))[-1:]
