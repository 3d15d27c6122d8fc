"""The same skill with a blob, packages, network rules and a secret at the gate runs on every backend with a way out."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from skillyard import SyncRuntime
from skillyard.client.run import Run
from skillyard.config.settings import load_settings
from skillyard.data_dir import DataDir
from skillyard.domain.network.session import PROXY_PORT
from skillyard.sandbox.e2b.provider import KEY_PROJECT, KEY_SKILL
from skillyard.sandbox.registry import BACKENDS, nature
from skillyard.sandbox.srt import stage
from tests.bundles import action
from tests.conformance.gate.programs.package_index import WHEEL, wheel
from tests.conformance.gate.programs.world import World
from tests.conformance.sandbox import (
    e2b_ground,
    gvisor_ground,
    microvm_ground,
    oci_ground,
    opensandbox_ground,
    srt_ground,
)
from tests.hosts.e2b_server import API_KEY
from tests.hosts.landlock.host import TOO_OLD

pytestmark = pytest.mark.timeout(600)

NAME, SECRET = "tests.carrier", "API_KEY"
LIMITS = {"timeout_ms": 90_000, "memory_mb": 256, "disk_mb": 64}
TABLES = """
[dependencies]
yardgreeting = "==1.0"

[permissions]
network = {rules}
secrets = [{{ name = "API_KEY", delivery = "gate", hosts = {hosts} }}]
"""
MAIN = r'''
import glob, hashlib, http.client, json, os, socket, subprocess, sys, urllib.error, urllib.request

import yardgreeting
from runtime import blobs


def main(args):
    key, text = os.environ["API_KEY"], blobs.read_text(args["blob"])
    return {
        "packages": yardgreeting.TEXT,
        "blob": text,
        "secret": json.loads(asked(args["https"] + "/echo", {"x-api-key": key}, text.encode())),
        "plain": asked(args["http"] + "/hello"),
        "large": len(asked(args["http"] + "/bytes/3000000")),
        "curl": curl(args["https"] + "/hello"),
        "key": key,
        "refused": {url: refused(url) for url in args["closed"]},
        "direct": [direct(place) for place in args["past"]],
        "found": search(args),
        "made": blobs.write_text("made inside", kind="text/plain"),
    }


def asked(url, headers=(), data=None):
    return urllib.request.urlopen(urllib.request.Request(url, data, dict(headers)), timeout=20).read().decode("latin-1")


def curl(url):
    try:
        done = subprocess.run(["curl", "-sS", "--max-time", "20", url], capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        return ""
    return done.stdout or done.stderr


def refused(url):
    try:
        return asked(url)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return str(error)


def direct(place):
    """Past the proxy, as a program does that knows none."""
    try:
        with socket.create_connection(tuple(place), 3) as peer:
            peer.sendall(b"GET /hello HTTP/1.0\r\n\r\n")
            return peer.recv(100).decode("latin-1")
    except OSError:
        return ""


def search(args):
    """Where the value stands. Looking does not find itself: a part of it and a digest are all that is known here."""
    tail, size, digest, found = args["tail"].encode(), args["size"], args["digest"], []
    files = [path for top in ("/workspace", "/tmp", "/dev/shm", "/run", "/skills", "/blobs", "/etc", "/opt")
             for path in glob.glob(top + "/**", recursive=True)]
    files += [f"/proc/{pid}/{name}" for pid in filter(str.isdigit, os.listdir("/proc"))
              for name in ("environ", "cmdline")]
    for path in files:
        try:
            with open(path, "rb") as file:
                text = file.read(64 << 20)
        except OSError:
            continue
        at = text.find(tail)
        while at >= 0:
            if hashlib.sha256(text[max(0, at - size):at]).hexdigest() == digest:
                found.append(path)
            at = text.find(tail, at + 1)
    return found
'''


@contextmanager
def _native(_: Path) -> Iterator[dict[str, Any]]:
    yield {}


@contextmanager
def _oci(scratch: Path) -> Iterator[dict[str, Any]]:
    with oci_ground.engine(scratch) as (_, settings):
        yield {"oci": settings.model_dump(exclude_unset=True)}


@contextmanager
def _opensandbox(scratch: Path) -> Iterator[dict[str, Any]]:
    with opensandbox_ground.open_sandbox(scratch) as server:
        settings = server.settings()
        yield {"opensandbox": settings.model_dump(exclude_unset=True) | {"api_key": opensandbox_ground.API_KEY}}


@contextmanager
def _e2b(scratch: Path) -> Iterator[dict[str, Any]]:
    with e2b_ground.stand_in(scratch) as provider:
        yield {"e2b": provider.settings.model_dump(exclude_unset=True)}


@contextmanager
def _srt(_: Path) -> Iterator[dict[str, Any]]:
    if why := srt_ground.absent():
        pytest.skip(why)
    yield {"srt": srt_ground.settings().model_dump(exclude_unset=True)}


@contextmanager
def _microvm(scratch: Path) -> Iterator[dict[str, Any]]:
    yield {"microvm": microvm_ground.SETTINGS.model_dump() | {"image": str(microvm_ground.image(scratch))}}


GROUNDS: Mapping[str, Callable[[Path], AbstractContextManager[dict[str, Any]]]] = {
    "native": _native, "oci": _oci, "opensandbox": _opensandbox, "e2b": _e2b, "srt": _srt,
    "microvm": _microvm,
}  # fmt: skip
"""The settings of each backend with a way out, around its engine or server."""
CLOSED: Mapping[str, Callable[[], str]] = {
    "gvisor": gvisor_ground.absent,
    "landlock": lambda: "this kernel's Landlock is too old for the level" if TOO_OLD else "",
}
"""The backends without one, each with what says why it cannot be tried here."""


@dataclass(frozen=True, slots=True)
class Place:
    world: World
    runtime: SyncRuntime
    value: str
    isolation: str

    def run(self, **more: Any) -> Run:
        world, head, tail = self.world, self.value[:-12], self.value[-12:]
        blob = self.runtime.put_blob(b"what the skill was given", "text/plain").blob_id
        args = {
            "blob": blob,
            "https": world.url("api.yard.test", "https", ""), "http": world.url("api.yard.test", "http", ""),
            "closed": [
                world.url("other.yard.test", "https", "/hello"), f"http://{world.address}:{world.ports['echo']}/",
                "http://169.254.169.254/latest/meta-data/", "http://10.0.0.1/", "http://[fd00::1]/",
            ],
            "past": [[world.address, world.ports["http"]], ["169.254.169.254", 80], ["1.1.1.1", 443]],
            "tail": tail, "size": len(head), "digest": hashlib.sha256(head.encode()).hexdigest(),
        }  # fmt: skip
        return self.runtime.execute_skill(NAME, args, input_blobs=[blob], limits=LIMITS, **more)

    def record(self, run: Run) -> dict[str, Any]:
        found: dict[str, Any] = self.runtime.call("runs.show", {"run_id": run.run_id})["run"]
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("world")
    world = World(directory, "127.77.3.9", usual=False)
    yield world
    world.close()


LONG = {
    "microvm": "minutes of emulation; the check egress-proxy_clients_find_the_gate_and_nobody_elses is its short form"
}
"""Backends that have this in the soak alone, with the reason."""


def _grounds() -> Iterator[Any]:
    for name in GROUNDS:
        yield pytest.param(name, marks=pytest.mark.long(reason=LONG[name]) if name in LONG else ())


@pytest.fixture(scope="module", params=[*_grounds()])
def place(request: pytest.FixtureRequest, world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp(request.param)
    home.chmod(0o755)
    (wheels := home / "wheels").mkdir(mode=0o755)
    (wheels / WHEEL).write_bytes(wheel())
    world.seen.clear()
    value = f"sk-live-{token_hex(20)}"
    common: dict[str, Any] = {
        "data_dir": home / "data",
        "packages": {"wheels": wheels, "offline": True},
        "network": {"hosts": world.hosts(), "ca_file": world.authority.ca_file},
        "native": {"ready": 0},
    }
    _write_skill(DataDir(home / "data").skills, world)
    with GROUNDS[request.param](tmp_path_factory.mktemp("ground")) as settings:
        with SyncRuntime(settings=load_settings(**common)) as runtime:
            runtime.call("secrets.set", {"name": SECRET, "value": value})
            own = {"project": KEY_PROJECT, "skills": KEY_SKILL}
            runtime.call("secrets.set", {"name": "E2B_API_KEY", "value": API_KEY, **own})
        policy = {"isolation": request.param, "isolations": ["native"]}
        with SyncRuntime(settings=load_settings(**common, **settings, policy=policy)) as runtime:
            yield Place(world, runtime, value, request.param)


def _write_skill(skills: Path, world: World) -> None:
    directory = skills / NAME
    (directory / "code").mkdir(parents=True)
    rules = [world.rule("api.yard.test", "https"), world.rule("api.yard.test", "http")]
    tables = TABLES.format(rules=rules, hosts=rules[:1]).replace("'", '"')
    (directory / "skill.toml").write_text(action(NAME, "Carries a blob to a service", tables))
    (directory / "SKILL.md").write_text("---\nname: carrier\ndescription: Carries\n---\nIt carries.\n")
    (directory / "code" / "main.py").write_text(MAIN)


def test_it_runs_as_on_every_other(place: Place) -> None:
    run = place.run()
    assert run.ok, dict(run.raw)
    output, world = run.output, place.world
    assert (output["packages"], output["blob"]) == ("from the index", "what the skill was given")
    assert output["plain"] == output["curl"] or output["curl"] == ""
    assert output["large"] == 3_000_000
    place.runtime.get_blob(output["made"], made := io.BytesIO())
    assert made.getvalue() == b"made inside"
    # The secret reached its host, and nothing else.
    [arrived] = [asked for asked in world.seen if asked.target == "/echo"]
    assert arrived.headers["x-api-key"] == place.value
    assert arrived.body == b"what the skill was given"
    assert output["key"].startswith("skillyard-secret-")
    assert output["found"] == []
    assert place.value not in str(output)
    world.seen.clear()


def test_every_isolation_is_here_or_has_no_way_out() -> None:
    assert GROUNDS.keys() | CLOSED.keys() == BACKENDS.keys()
    assert CLOSED.keys() == {name for name in BACKENDS if not nature(name).network}


@pytest.mark.parametrize("isolation", CLOSED)
def test_where_there_is_no_way_out_it_is_refused_by_name(isolation: str, world: World, tmp_path: Path) -> None:
    if why := CLOSED[isolation]():
        pytest.skip(why)
    tmp_path.chmod(0o755)
    (wheels := tmp_path / "wheels").mkdir(mode=0o755)
    (wheels / WHEEL).write_bytes(wheel())
    world.seen.clear()
    common: dict[str, Any] = {
        "packages": {"wheels": wheels, "offline": True},
        "network": {"hosts": world.hosts(), "ca_file": world.authority.ca_file},
        "native": {"ready": 0},
        "policy": {"isolation": isolation, "isolations": ["native"]},
    }
    _write_skill(DataDir(tmp_path / "data").skills, world)
    with SyncRuntime(settings=load_settings(data_dir=tmp_path / "data", **common)) as runtime:
        runtime.call("secrets.set", {"name": SECRET, "value": "sk-live"})
        run = Place(world, runtime, "sk-live", isolation).run()
    assert run.error is not None, dict(run.raw)
    assert run.error["type"] == "PolicyRefused"
    assert re.search(rf"api\.yard\.test.*isolation '{isolation}' cannot give it", run.error["message"])
    assert world.seen == []


def test_everything_else_stays_closed(place: Place) -> None:
    run = place.run()
    assert run.ok, dict(run.raw)
    assert all("403" in str(said) for said in run.output["refused"].values()), run.output["refused"]
    assert all(said == "" or said.startswith("HTTP/1.1 403 ") for said in run.output["direct"]), run.output["direct"]
    record = place.record(run)["network"]
    allowed = {(c["via"], c["host"], c["port"]) for c in record["connections"] if c["allowed"]}
    ports = place.world.ports
    assert allowed == {("connect", "api.yard.test", ports["https"]), ("http", "api.yard.test", ports["http"])}
    refused = {c["host"] for c in record["connections"] if not c["allowed"]}
    assert refused >= {"other.yard.test", place.world.address, "169.254.169.254", "10.0.0.1", "fd00::1"}
    assert record["complete"]
    assert place.value not in str(record)
    place.world.seen.clear()


def test_a_run_without_a_network_has_no_way_out(place: Place) -> None:
    port = stage.PROXY_PORT if place.isolation == "srt" else PROXY_PORT
    code = (
        "import os, socket\n"
        "def main(args):\n"
        "    try: socket.create_connection(('127.0.0.1', args['port']), 3)\n"
        "    except OSError as error: return {'met': type(error).__name__, 'env': os.environ.get('HTTPS_PROXY')}\n"
        "    return {'met': 'somebody'}\n"
    )
    run = place.runtime.run_code(code, {"port": port}, limits=LIMITS)
    assert run.output == {"met": "ConnectionRefusedError", "env": None}, dict(run.raw)
