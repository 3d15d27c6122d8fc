"""Two skillyards, one the cloud of the other: the backend for machines of a provider, over sandboxes of this server.

`docs/e2b-suite.md` lists each check of the suite that does not hold there as elsewhere, and why. It is compared here.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2b import Sandbox

from skillyard.config.backends import E2bSettings
from skillyard.domain.errors import InvalidInput, ProtectionMissing, SandboxFault
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.sandbox.spec import SandboxSpec
from skillyard.domain.secret import Delivery, Secret, SecretScope
from skillyard.domain.work.record import Outcome
from skillyard.sandbox.e2b.backend import E2bBackend
from skillyard.testing.sandbox_suite import CHECKS, Check, Ground, NotApplicable
from skillyard.testing.sandbox_suite.ground import code, fresh, look, python, run, start
from skillyard.testing.sandbox_suite.guest import frames
from skillyard.testing.twin_gate import TwinGate
from tests.faces.e2b.conftest import Yard

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]
PAGE = Path(__file__).parents[3] / "docs" / "e2b-suite.md"
REFUSED, DIFFERS, NOT_OFFERED = "refused", "differs", "not offered"
_ROW = re.compile(r"^\| (refused|differs|not offered) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_RULE = r"have one user, so nothing can be shown read-only|choose a larger template"
_SHORT = """
lifecycle-enforced_is_what_the_probe_offers
programs-environment_is_small_and_documented
endings-signal_is_told endings-kill_ends_the_whole_tree
trees-tree_comes_out_and_goes_in
mounts-mounts_cannot_be_changed
guest-logs_keep_the_order_written
walls-two_sandboxes_are_two_users
terminals-it_controls_the_program
egress-proxy_clients_find_the_gate_and_nobody_elses
survival-start_and_create_of_an_earlier_server_are_found
"""
SHORT = frozenset(_SHORT.split())


def listed() -> dict[str, tuple[str, str]]:
    """Returns kind and reason of each check on the page, by its id."""
    found: dict[str, tuple[str, str]] = {}
    for kind, why, ids in _ROW.findall(PAGE.read_text("utf-8")):
        for id in re.findall(r"`([^`]+)`", ids):
            assert id not in found, f"{id} is there twice"
            found[id] = kind, why
    return found


LISTED = listed()


def _promises() -> Iterator[Any]:
    for check in CHECKS:
        yield pytest.param(check, id=check.id, marks=() if check.id in SHORT else pytest.mark.long)


def backend_over(yard: Yard, state: Path, gate: TwinGate | None = None) -> E2bBackend:
    async def key(name: str, project: str, skill: str) -> Secret:
        return Secret(name, yard.server.token, "store:1", Delivery.ENV, (), SecretScope(project, skill))

    url = yard.server.url
    settings = E2bSettings(template="base", api_url=url, sandbox_url=url, http_version="1.1")
    return E2bBackend(state, settings, key, gate)


@pytest.fixture(scope="module")
async def ground(yard: Yard, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    base, other = tmp_path_factory.mktemp("e2b"), tmp_path_factory.mktemp("other")
    gate = TwinGate()
    backend = backend_over(yard, base, gate)

    async def reopen() -> E2bBackend:
        return backend_over(yard, other, gate)

    probe = await backend.probe()
    if "memfd_create" in probe.facts.get("why", ""):
        pytest.skip(probe.facts["why"])
    assert probe.ready, probe.facts
    before = {each["sandboxID"] for each in yard.api("GET", "/v2/sandboxes").json()}
    yield Ground(backend, tmp_path_factory.mktemp("scratch"), (base,), reopen, gate=gate, patience=3.0)
    await backend.close()
    await gate.close()
    after = {each["sandboxID"] for each in yard.api("GET", "/v2/sandboxes").json()}
    assert after <= before, "nothing of it is left at the provider"


@pytest.mark.parametrize("promise", [*_promises()])
async def test_conformance(promise: Check, ground: Ground) -> None:
    kind, why = LISTED.get(promise.id, ("", ""))
    if kind == DIFFERS:
        pytest.skip(why)
    if kind == REFUSED:
        with pytest.raises(InvalidInput, match=_RULE):
            await promise.run(ground)
    elif kind == NOT_OFFERED:
        with pytest.raises(NotApplicable) as reason:
            await promise.run(ground)
        pytest.skip(str(reason.value))
    else:
        await promise.run(ground)


def test_the_page_and_the_short_form_name_checks_that_there_are() -> None:
    assert {check.id for check in CHECKS} >= SHORT | LISTED.keys()
    told = re.search(r"Of (\d+) checks (\d+) pass", PAGE.read_text("utf-8"))
    assert told is not None
    assert [int(number) for number in told.groups()] == [len(CHECKS), len(CHECKS) - len(LISTED)]


async def test_what_one_user_cannot_keep_is_refused_unless_policy_lets_it_be_missing(ground: Ground) -> None:
    probe = await ground.backend.probe()
    missing = {name for name, held in probe.protections.items() if held.level is Level.MISSING}
    assert missing == {"landlock", "private_proc", "memory", "cpus", "disk"}
    assert probe.facts["users"].startswith("one")
    before = await ground.backend.survey()
    with pytest.raises(ProtectionMissing, match=r"private_proc.*memory.*disk"):
        await ground.backend.create(SandboxSpec(allow_degraded=frozenset({"landlock"})), fresh("key"))
    assert await ground.backend.survey() == before
    async with ground.sandbox() as sandbox:
        assert {name: sandbox.enforced[name] for name in missing} == dict.fromkeys(missing, "missing")


FIND = """
import os
def found(word):
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{name}/cmdline", "rb").read().split(b"\\0")
        except OSError:
            continue
        if word in words and int(name) != os.getpid():
            yield int(name)
AGENTS, ENDS = list(found(b"listen")), list(found(b"skillyard-channel"))
"""
"""Finds the agent and the end of its channel, which have the user of the program."""


async def test_programs_read_and_change_nothing_of_the_agent_and_its_channel(ground: Ground) -> None:
    source = FIND + (
        "import json\n"
        "got = []\n"
        "for pid in (*AGENTS, *ENDS):\n"
        "    for part, mode in (('mem', 'rb+'), ('environ', 'rb'), ('maps', 'rb'), ('fd/0', 'wb'), ('auxv', 'rb')):\n"
        "        try:\n"
        "            open(f'/proc/{pid}/{part}', mode).read(1); got.append([pid, part])\n"
        "        except OSError:\n"
        "            pass\n"
        "    try:\n"
        "        got.append([pid, os.listdir(f'/proc/{pid}/fd')])\n"
        "    except OSError:\n"
        "        pass\n"
        "print(json.dumps([len(AGENTS), len(ENDS), got]))\n"
    )
    async with ground.sandbox() as sandbox:
        agents, ends, got = await look(sandbox, source)
    assert (agents, ends, got) == (2, 1, []), "the agent, and the supervisor that it forked"


async def test_programs_cannot_change_the_guest_of_later_ones(ground: Ground) -> None:
    source = (
        "import os\n"
        "bad = []\n"
        "def is_guest(name):\n"
        "    path = f'/proc/self/fd/{name}'\n"
        "    return os.path.exists(path) and 'memfd:guest' in os.readlink(path)\n"
        "def main(args):\n"
        "    names = list(filter(is_guest, os.listdir('/proc/self/fd')))\n"
        "    for name in names:\n"
        "        for work in (lambda: os.pwrite(int(name), b'x', 0), lambda: os.ftruncate(int(name), 0),\n"
        "                     lambda: os.open(f'/proc/self/fd/{name}', os.O_RDWR | os.O_TRUNC)):\n"
        "            try:\n"
        "                work(); bad.append(name)\n"
        "            except OSError:\n"
        "                pass\n"
        "    return [len(names), bad]\n"
    )
    async with ground.sandbox() as sandbox:
        for _ in range(2):
            done = await run(sandbox, code(source))
            assert [frame.value for frame in frames(done.channel) if frame.kind == "R"] == [{"result": [1, []]}]


async def test_files_of_a_login_shell_do_not_speak_for_the_agent(ground: Ground, tmp_path: Path, yard: Yard) -> None:
    """A further channel begins in a shell of the user of programs, who left words for it."""
    backend = backend_over(yard, tmp_path)
    sandbox = await backend.create(await ground.spec(), fresh("key"))
    try:
        words = "for f in .profile .bash_profile .bashrc .bash_login; do echo 'echo forged; exit' > $HOME/$f; done"
        await run(sandbox, python(f"import os; os.system({words!r})"))
        await run(sandbox, python(FIND + "os.kill(ENDS[0], 9)"))
        assert (await run(sandbox, python("print(1)"))).stdout == b"1\n"
    finally:
        await backend.destroy(sandbox.handle)
        await backend.close()


async def test_a_program_that_ends_the_agent_is_lost_with_it_and_nobody_takes_its_place(
    ground: Ground, yard: Yard
) -> None:
    """Its socket is taken by another program then, which does not know the key."""
    source = FIND + (
        "import select, signal, socket, sys\n"
        "name = next(line.split()[-1] for line in open('/proc/net/unix') if '@skillyard-' in line)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    agent, helper = sorted(AGENTS)\n"
        "    for pid, number in ((agent, signal.SIGSTOP), (helper, signal.SIGKILL), (agent, signal.SIGKILL)):\n"
        "        os.kill(pid, number)\n"
        "    own = socket.socket(socket.AF_UNIX)\n"
        "    while True:\n"
        "        try:\n"
        "            own.bind('\\0' + name[1:]); break\n"
        "        except OSError:\n"
        "            select.select([], [], [], 0.01)\n"
        "    own.listen(5)\n"
        "    open('/workspace/taken', 'w').write('taken')\n"
        "    while True:\n"
        "        other, _ = own.accept()\n"
        "        other.recv(65536); other.sendall(b'H' + bytes(4) + (2).to_bytes(4, 'big') + b'{}')\n"
        "select.select([], [], [])\n"
    )
    async with ground.sandbox() as sandbox:
        program = await start(sandbox, python(source))
        ending = await program.wait()
        assert ending.outcome is Outcome.LOST, ending
        machine = Sandbox.connect(sandbox.handle, **yard.opts)
        assert machine.files.read("/workspace/taken") == "taken"
        with pytest.raises(SandboxFault):
            await run(sandbox, python("print(1)"))
