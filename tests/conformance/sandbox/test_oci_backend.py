"""Containers of a real Docker daemon pass the conformance suite: a part of it in every check, all in the soak."""

from __future__ import annotations

import json
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.backends import OciSettings
from skillyard.domain.errors import InvalidInput, SkillyardError
from skillyard.domain.sandbox.guarantees import Level
from skillyard.domain.sandbox.spec import Argv, SandboxSpec, Stream
from skillyard.sandbox.oci.backend import OciBackend
from skillyard.sandbox.oci.engine import Engine
from skillyard.sandbox.oci.image_build import build
from skillyard.sandbox.oci.probe import WITHOUT
from skillyard.testing.sandbox_suite import CHECKS, Check, Ground
from skillyard.testing.twin_gate import TwinGate
from tests.conformance.sandbox import oci_ground
from tests.conformance.sandbox.conftest import Hold
from tests.hosts.docker_engine import Docker

pytestmark = [
    # anyio leaves a socket when its connect is cancelled while the queue of the engine is full.
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket.*docker.sock:ResourceWarning"),
    pytest.mark.anyio,
    pytest.mark.timeout(600),
]

_SHORT = """
lifecycle-create_at_once_with_one_key_makes_one
lifecycle-enforced_is_what_the_probe_offers
lifecycle-names_that_it_does_not_have_are_refused
endings-signal_is_told endings-kill_ends_the_whole_tree
limits-full_disk_is_no_memory_kill benign-threads benign-text benign-who-am-i benign-sockets
content-packages_can_be_imported
egress-proxy_clients_find_the_gate_and_nobody_elses egress-the_trusted_certificates_are_its_own
guest-skills_and_blobs_are_read
survival-start_and_create_of_an_earlier_server_are_found
"""
SHORT = frozenset(_SHORT.split())
BEYOND = {
    "special-files-sysfs": "its own control groups are shown, and masked directories are empty instead of closed",
    "files-places": "the directories are the image's own",
    "files-climbing": "the directories are the image's own",
    "network-interfaces": "the agent's own abstract socket is listed",
    "objects-locks": "the kernel counts record locks for nobody, and nobody watches them",
    "objects-watches": "the kernel counts watches by user, and containers share one",
    "objects-in-flight": "as objects-watches",
    **dict.fromkeys(
        ("objects-tcp", "objects-tcp-unaccepted", "objects-tcp-ended", "objects-udp"),
        "control groups of version 1 count no memory of sockets",
    ),
    "proc-places": "the table of mounts names the places of what is bound on the host",
    "writing-metadata": "the device files are the container's own",
}
"""Attacks of native walls that tell nothing of containers, or that they do not stop; each with the reason."""


def _promises() -> Iterator[Any]:
    for check in CHECKS:
        yield pytest.param(check, id=check.id, marks=() if check.id in SHORT else pytest.mark.long)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Docker, OciSettings]]:
    with oci_ground.engine(tmp_path_factory.mktemp("engine")) as found:
        yield found


@pytest.fixture(scope="module")
async def ground(engine: tuple[Docker, OciSettings], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    docker, settings = engine
    base, other = tmp_path_factory.mktemp("oci"), tmp_path_factory.mktemp("other")
    gate = TwinGate()
    backend = OciBackend(base, settings, gate)

    async def reopen() -> OciBackend:
        return OciBackend(other, settings, gate)

    probe = await backend.probe()
    assert probe.ready, probe.facts
    yield Ground(backend, tmp_path_factory.mktemp("scratch"), (base,), reopen, patience=3.0, gate=gate)
    await backend.close()
    await gate.close()
    assert docker("ps", "-aq").stdout == ""


@pytest.mark.parametrize("promise", [*_promises()])
async def test_conformance(promise: Check, ground: Ground, hold: Hold) -> None:
    if promise.id in BEYOND:
        pytest.skip(BEYOND[promise.id])
    await hold(promise, ground)


def test_the_short_form_names_checks_that_there_are() -> None:
    assert {check.id for check in CHECKS} >= SHORT | BEYOND.keys()


async def test_the_probe_names_what_is_in_force(ground: Ground) -> None:
    probe = await ground.backend.probe()
    missing = {name for name, held in probe.protections.items() if held.level is Level.MISSING}
    assert missing == {*WITHOUT, "own_uid"}
    assert {probe.protections[name].level for name in ("timeout", "output")} == {Level.SUPERVISED}
    if "memory" not in missing:
        counted = Path("/sys/fs/cgroup/cgroup.controllers").exists()
        assert ("counts no queues of sockets" in probe.protections["memory"].by) != counted
    assert probe.facts["engine"] == "docker"
    assert probe.facts["runtime"]


async def test_an_image_must_be_named_by_the_operator_or_by_digest(ground: Ground) -> None:
    for name in (f"{oci_ground.IMAGE}x", "../containers/json?all=1", "x/../../images"):
        with pytest.raises(InvalidInput, match="must name the image by digest"):
            await ground.backend.create(await ground.spec(image=name), "other")
    with pytest.raises(InvalidInput, match="the engine has none of that name"):
        await ground.backend.create(await ground.spec(image=f"sha256:{'0' * 64}"), "other")
    assert await ground.backend.survey() == []


async def test_an_image_that_the_engine_lacks_is_named(ground: Ground, tmp_path: Path) -> None:
    settings = vars(ground.backend)["_settings"].model_copy(update={"image": "nobody/none:1"})
    backend = OciBackend(tmp_path, settings)
    probe = await backend.probe()
    await backend.close()
    assert not probe.ready
    assert "nobody/none:1" in probe.facts["why"]


async def test_an_image_of_one_language_that_is_not_there_is_named_and_stops_no_other(
    ground: Ground, tmp_path: Path
) -> None:
    settings = vars(ground.backend)["_settings"].model_copy(update={"images": {"javascript": "nobody/none:1"}})
    backend = OciBackend(tmp_path, settings)
    probe = await backend.probe()
    assert probe.ready, probe.facts
    assert "nobody/none:1 cannot be used: image: the engine has none of that name" in probe.facts["image_javascript"]
    with pytest.raises(InvalidInput, match="none of that name"):
        await backend.create(SandboxSpec(language="javascript", allow_degraded=WITHOUT), "one")
    await backend.close()


HOSTILE = """
FROM {base}
ENV LD_PRELOAD=/nowhere.so PYTHONSTARTUP=/x BASH_ENV=/x SKILLYARD_AGENT={{}} A=b
LABEL skillyard.server=other skillyard.owner=task skillyard.key=k skillyard.ready=1
USER 0
WORKDIR /etc
ENTRYPOINT ["sh", "-c", "exit 3"]
HEALTHCHECK CMD touch /workspace/checked
STOPSIGNAL SIGUSR1
EXPOSE 80
"""
SEES = "import json, os; print(json.dumps([dict(os.environ), os.getuid(), os.listdir('/workspace')]))"


def made(docker: Docker, text: str, name: str) -> str:
    """The id of an image of a Dockerfile's text."""
    docker("build", "-q", "--network", "none", "-t", name, "-", stdin=text.format(base=oci_ground.IMAGE).encode())
    return docker("inspect", "--format", "{{.Id}}", name).stdout.strip()


async def test_an_image_gives_its_files_and_nothing_that_steers(
    engine: tuple[Docker, OciSettings], tmp_path: Path
) -> None:
    id = made(engine[0], HOSTILE, "skillyard-tests/hostile:1")
    backend = OciBackend(tmp_path, engine[1])
    sandbox = await backend.create(SandboxSpec(image=id, allow_degraded=WITHOUT), "one")
    try:
        assert sandbox.image == id
        assert [(held.handle, held.key, held.owner) for held in await backend.survey()] == [
            (sandbox.handle, "one", "run")
        ]
        process = await sandbox.start(Argv(("python3", "-I", "-c", SEES)), id="sees")
        variables, uid, files = json.loads(b"".join([data async for data in process.output(Stream.STDOUT)]))
        assert set(variables) <= {"PATH", "HOME", "LANG", "PWD", "LC_CTYPE"}
        assert (uid, files) == (65532, [])
    finally:
        await backend.destroy(sandbox.handle)
        await backend.close()


async def test_an_image_that_could_be_filled_is_refused(engine: tuple[Docker, OciSettings], tmp_path: Path) -> None:
    id = made(engine[0], "FROM {base}\nVOLUME /data\n", "skillyard-tests/volumes:1")
    backend = OciBackend(tmp_path, engine[1])
    with pytest.raises(InvalidInput, match="must declare no volumes"):
        await backend.create(SandboxSpec(image=id, allow_degraded=WITHOUT), "one")
    await backend.close()


async def test_what_cannot_be_built_is_named(engine: tuple[Docker, OciSettings]) -> None:
    docker, settings = engine
    made(docker, "FROM {base}\nONBUILD RUN touch /built\n", "skillyard-tests/onbuild:1")
    made(docker, "FROM {base}\nVOLUME /data\n", "skillyard-tests/volumes:1")
    client, base, tag = Engine(settings.socket), oci_ground.BASE, "skillyard-tests/never:1"
    for wanted, why in {
        ("nobody/none:1", tag, "python"): "the engine has none of that name",
        ("../x", tag, "python"): "must be the name of an image",
        (base, f"sha256:{'0' * 64}", "python"): "must be a name, not a digest",
        ("skillyard-tests/onbuild:1", tag, "python"): "must have no ONBUILD steps",
        ("skillyard-tests/volumes:1", tag, "python"): "must declare no volumes",
        (base, tag, "javascript"): "the base has no node, and it could not be installed; name a base that has it",
    }.items():
        with pytest.raises(SkillyardError, match=why):
            await build(client, *wanted[:2], wanted[2:], settings.uid, offline=True)
    await client.close()
    assert docker("images", "-q", tag).stdout == ""


def test_a_built_image_is_named_by_the_settings_that_are_printed(engine: tuple[Docker, OciSettings]) -> None:
    built = oci_ground.build(engine[0], "--from", oci_ground.BASE, "--language", "bash", "--json")
    told = json.loads(built.stdout)
    assert told["id"] == engine[0]("inspect", "--format", "{{.Id}}", told["tag"]).stdout.strip()
    assert tomllib.loads(told["settings"]) == {"oci": {"images": {"bash": told["tag"]}}}
    assert told["notes"] == []
