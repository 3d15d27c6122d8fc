"""Jails in containers: images by the language of the command, which ``skillyard image build --mcp`` makes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance.sandbox.oci_ground import BASE, build, import_python
from tests.conformance.sandbox.opensandbox_ground import API_KEY, open_sandbox
from tests.faces.jail.conftest import BOUND_S, Jails, until
from tests.faces.jail.test_reach import serving
from tests.hosts.docker_engine import Docker, docker_daemon

pytestmark = [pytest.mark.long, pytest.mark.root]

WITH_NODE = "skillyard-tests/node:1"
_NODE = shutil.which("node", path="/usr/bin")


@dataclass
class Made:
    docker: Docker
    told: dict[str, dict[str, dict[str, str]]]
    settings: str

    @property
    def env(self) -> dict[str, str]:
        table = tomllib.loads(self.settings)["oci"]
        return {
            "SKILLYARD_OCI__SOCKET": str(self.docker.socket),
            "SKILLYARD_OCI__IMAGE": table["image"],
            "SKILLYARD_OCI__IMAGES": json.dumps(table["images"]),
            "SKILLYARD_OCI__READY": "0",
        }


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    """An engine with the two images, built from a base that has Python and Node."""
    if _NODE is None:
        pytest.skip("there is no node in /usr/bin (.ci/setup installs it)")
    with tempfile.TemporaryDirectory(prefix="sk-", dir="/tmp") as scratch, docker_daemon(Path(scratch)) as docker:
        import_python(docker)
        docker("build", "-t", WITH_NODE, str(_context(_NODE, Path(scratch, "context"))))
        built = build(docker, "--mcp", "--from", WITH_NODE, "--json")
        assert built.returncode == 0, built.stderr
        told = json.loads(built.stdout)
        yield Made(docker, told, told["settings"])


def _context(node: str, place: Path) -> Path:
    """Makes a directory with a Dockerfile that adds node with its libraries."""
    said = subprocess.run(["ldd", node], check=True, capture_output=True, text=True, timeout=60).stdout
    for name in (node, *re.findall(r"(/\S+) \(0x", said)):
        target = place / "root" / Path(os.path.realpath(Path(name).parent)).relative_to("/") / Path(name).name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(name), target)
    (place / "Dockerfile").write_text(f"FROM {BASE}\nCOPY root/ /\n")
    return place


def test_two_images_are_built_and_named(made: Made) -> None:
    images = made.told["images"]
    assert images["python"]["tag"].startswith("skillyard/mcp-python:")
    assert images["typescript"]["tag"].startswith("skillyard/mcp-typescript:")
    table = tomllib.loads(made.settings)["oci"]
    assert table["image"] == images["python"]["tag"]
    assert table["images"] == dict.fromkeys(("javascript", "typescript"), images["typescript"]["tag"])


def test_streams_pass_through_and_the_command_chooses_the_image(jails: Jails, made: Made) -> None:
    jails.more = made.env
    sent = bytes(range(256)) * (3 * (1 << 20) // 256)
    done = jails.run("--isolation", "oci", "--", "cat", stdin=sent)
    assert (done.returncode, done.stdout == sent) == (0, True), done.stderr
    code = "process.stdin.on('data', (d) => process.stdout.write(String(d).toUpperCase()))"
    done = jails.run("--isolation", "oci", "--env", "MINE", "--", "node", "-e", code, stdin=b"abc", env={"MINE": "1"})
    assert (done.returncode, done.stdout) == (0, b"ABC"), done.stderr
    _reaches(jails, "oci")
    refused = jails.run("--isolation", "oci", "--read", "/srv", "--", "true")
    assert b"cannot show directories of the host" in refused.stderr
    assert _containers(made) == []


def _reaches(jails: Jails, isolation: str) -> None:
    """The host that is named, and no other."""
    jails.more |= {"SKILLYARD_NETWORK__HOSTS": '{"web.test": ["127.0.0.1"]}'}
    heard: list[str] = []
    with serving(heard) as port:
        ask = f"import urllib.request as u; print(u.urlopen('http://web.test:{port}/x').read())"
        command = ("--isolation", isolation, "--allow", f"web.test:{port}", "--", "python3", "-c", ask)
        done = jails.run(*command)
        assert (done.returncode, done.stdout) == (0, b"b'answer'\n"), done.stderr
        command = (*command[:3], "other.test", *command[4:])
        assert jails.run(*command).returncode == 1
    assert heard == ["GET /x"]


def test_streams_pass_through_at_opensandbox(jails: Jails, tmp_path_factory: pytest.TempPathFactory) -> None:
    with open_sandbox(tmp_path_factory.mktemp("server")) as remote:
        given = remote.settings()
        jails.more = {
            "SKILLYARD_OPENSANDBOX__DOMAIN": given.domain,
            "SKILLYARD_OPENSANDBOX__API_KEY": API_KEY,
            "SKILLYARD_OPENSANDBOX__IMAGE": BASE,
        }
        sent = bytes(range(256)) * ((1 << 20) // 256)
        done = jails.run("--isolation", "opensandbox", "--", "cat", stdin=sent)
        assert (done.returncode, done.stdout == sent) == (0, True), done.stderr
        _reaches(jails, "opensandbox")
        process = jails.start(
            "--isolation", "opensandbox", "--", "python3", "-c", "print('ready', flush=True); input()"
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        process.wait(BOUND_S)
        until(lambda: not remote.containers(), "the end of the sandbox", 120.0)


def test_a_killed_jail_leaves_no_container(jails: Jails, made: Made) -> None:
    jails.more = made.env
    process = jails.start("--isolation", "oci", "--", "python3", "-c", "print('ready', flush=True); input()")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert len(_containers(made)) == 1
    process.send_signal(signal.SIGKILL)
    process.wait(BOUND_S)
    until(lambda: not _containers(made), "the end of the container", 120.0)


def _containers(made: Made) -> list[str]:
    return made.docker("ps", "-q").stdout.split()
