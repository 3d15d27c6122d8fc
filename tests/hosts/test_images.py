"""The shipped image: built without a registry, started as its compose file says, and the suites run inside it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hosts.docker_engine import ROOT, Docker, docker_daemon

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]  # each bound holds on a host that does much else

BASE, IMAGE, TESTS = "skillyard-tests/base:1", "skillyard", "skillyard-tests/tests:1"
TOKEN = "a-token-that-is-long-enough-0123456789"
MIRROR = Path("/etc/apt/sources.list.d/debian.sources")
DEV_PACKAGES = ("anyio", "hypothesis", "pytest", "pytest-timeout", "opentelemetry-sdk")
OPENED = [
    "--security-opt",
    f"seccomp={ROOT / 'deploy/docker-seccomp.json'}",
    "--security-opt",
    "systempaths=unconfined",
]


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    with docker_daemon(tmp_path_factory.mktemp("docker")) as docker:
        yield docker


@pytest.fixture(scope="module")
def image(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of ``deploy/Dockerfile`` on a Debian made here; pip in it knows nothing but a directory of wheels."""
    scratch = tmp_path_factory.mktemp("image")
    _import_debian(docker, scratch)
    _add_wheels(docker, scratch)
    context = scratch / "context"
    _export_tree(context)
    docker(
        *("build", "-q", "--network", "none", "-f", f"{context}/deploy/Dockerfile", "--build-arg", f"BASE={BASE}"),
        *("-t", IMAGE, str(context)),
        seconds=600,
    )
    return IMAGE


def _import_debian(docker: Docker, scratch: Path) -> None:
    if shutil.which("debootstrap") is None or not MIRROR.exists():
        pytest.skip("no debootstrap, or no Debian mirror is configured here")
    mirror = re.search(r"^URIs: *(\S+)", MIRROR.read_text(), re.MULTILINE)
    assert mirror is not None
    root = scratch / "root"
    packages = "python3,python3-venv,ca-certificates,gcc,libc6-dev"
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm"]
    made = subprocess.run([*command, str(root), mirror[1]], capture_output=True, text=True, timeout=900)
    if made.returncode:
        pytest.skip(f"debootstrap: {made.stdout.strip()[-300:]}")
    archive = subprocess.run(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE, check=True)
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    docker("import", "--change", f"ENV {path}", "-", "skillyard-tests/debian:1", stdin=archive.stdout, seconds=300)
    shutil.rmtree(root)


def _add_wheels(docker: Docker, scratch: Path) -> None:
    wheels = scratch / "base" / "wheels"
    wheels.mkdir(parents=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"], *DEV_PACKAGES]
    for_debian = ["--python-version", "3.11", "--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", "-q", *for_debian, "-d", str(wheels), *wanted]
    got = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if got.returncode:
        pytest.skip(f"pip cannot fetch the wheels: {got.stderr.strip()[-300:]}")
    text = "FROM skillyard-tests/debian:1\nCOPY wheels /wheels\nENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels\n"
    (scratch / "base" / "Dockerfile").write_text(text)
    docker("build", "-q", "-t", BASE, str(scratch / "base"), seconds=300)


def _export_tree(target: Path) -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def service() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
    assert set(found) == {"name", "services", "volumes", "secrets"}
    only: dict[str, Any] = found["services"]["skillyard"]
    return only


def options_of(said: dict[str, Any], secret: Path) -> list[str]:
    """What ``docker run`` is told, of everything that the compose file says but its network."""
    said = dict(said)
    for name in ("image", "build", "restart", "ports"):
        said.pop(name)
    flags = {"init": "--init", "read_only": "--read-only"}
    words = [flag for name, flag in flags.items() if said.pop(name)]
    single = {"user": "--user", "mem_limit": "--memory", "pids_limit": "--pids-limit"}
    words += [word for name, flag in single.items() for word in (flag, str(said.pop(name)))]
    many = {"tmpfs": "--tmpfs", "cap_drop": "--cap-drop", "volumes": "--volume"}
    words += [word for name, flag in many.items() for value in said.pop(name) for word in (flag, str(value))]
    for value in said.pop("security_opt"):
        words += ["--security-opt", value.replace("seccomp=", f"seccomp={ROOT}/deploy/")]
    for name in said.pop("secrets"):
        words += ["--volume", f"{secret}:/run/secrets/{name}:ro"]
    assert not said, f"the reader does not know {sorted(said)}"
    return words


@pytest.fixture
def served(docker: Docker, image: str, tmp_path: Path) -> Iterator[str]:
    """A container as the compose file describes it, ready."""
    secret = tmp_path / "token.secret"
    secret.write_text(TOKEN + "\n")
    tmp_path.chmod(0o755)
    name = f"skillyard-{os.getpid()}"
    docker("run", "-d", "--name", name, "--network", "none", *options_of(service(), secret), image)
    try:
        _await_ready(docker, name)
        yield name
        docker("stop", "-t", "60", name, seconds=90)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", name).stdout.strip() == "0"
    finally:
        docker("rm", "-f", "-v", name, check=False)


def _await_ready(docker: Docker, name: str) -> None:
    check = service_check(docker, name)
    deadline = time.monotonic() + 90
    while docker("exec", name, *check, check=False).returncode:
        assert time.monotonic() < deadline, docker("logs", name).stderr[-3000:]
        time.sleep(0.2)


def service_check(docker: Docker, name: str) -> list[str]:
    """The image's own."""
    test: list[str] = json.loads(docker("inspect", "--format", "{{json .Config.Healthcheck.Test}}", name).stdout)
    assert test[0] == "CMD"
    return test[1:]


def test_the_server_stands_as_composed(docker: Docker, served: str) -> None:
    code = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8765/readyz').read().decode())"
    ready = json.loads(docker("exec", served, "/opt/skillyard/bin/python", "-c", code).stdout)
    assert ready == {"status": "ready", "isolation": "native", "allow_degraded": [], "missing": ["own_uid"]}
    told = json.loads(docker("exec", served, "skillyard", "doctor", "--json").stdout)
    assert told["mandatory_missing"] == []
    assert told["abilities"]["egress"]["level"] == "kernel", told["abilities"]
    assert told["facts"]["walls"] == "made in C"
    exposed = docker("inspect", "--format", "{{json .Config.ExposedPorts}}", served).stdout
    assert json.loads(exposed) == {"8765/tcp": {}}


def test_the_secret_is_the_owners_token(docker: Docker, served: str) -> None:
    program = "def main(args): return {'user': __import__('os').getuid()}"
    call = (
        "import json, sys, urllib.request as r\n"
        "body = {'jsonrpc': '2.0', 'id': 1, 'method': 'run_code',"
        " 'params': {'language': 'python', 'code': sys.argv[2], 'args': {}}}\n"
        "head = {'Authorization': 'Bearer ' + sys.argv[1], 'Content-Type': 'application/json'}\n"
        "ask = r.Request('http://127.0.0.1:8765/rpc', json.dumps(body).encode(), head)\n"
        "print(r.urlopen(ask).read().decode())\n"
    )
    answer = docker("exec", served, "/opt/skillyard/bin/python", "-c", call, TOKEN, program).stdout
    assert json.loads(answer)["result"]["output"] == {"user": 65532}


def test_it_is_nobody_and_keeps_its_data(docker: Docker, served: str) -> None:
    assert docker("exec", served, "id", "-u").stdout.strip() == "10001"
    assert docker("exec", served, "touch", "/here", check=False).returncode
    docker("restart", "-t", "60", served, seconds=90)
    _await_ready(docker, served)
    assert docker("exec", served, "cat", "/data/token").stdout.strip() == TOKEN


def test_a_secret_that_cannot_be_read_is_named(docker: Docker, image: str, tmp_path: Path) -> None:
    secret = tmp_path / "closed"
    secret.write_text(TOKEN)
    secret.chmod(0o600)
    done = docker(
        *("run", "--rm", "--network", "none", "-v", f"{secret}:/run/secrets/skillyard_token:ro", image), check=False
    )
    assert done.returncode == 2
    assert "user 10001 cannot read the secret" in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--user", "0", "--cap-drop", "ALL", "--cap-add", "SETUID", "--cap-add", "SETGID", "--cap-add", "SETFCAP"],
        ["--user", "10001", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"],
    ],
    ids=["root", "user"],
)
def test_the_conformance_suite_and_the_attacks_pass_inside(docker: Docker, image: str, options: list[str]) -> None:
    _add_tests(docker)
    # parsers and agents meet no wall of a container's; a wall that is taken away is often the container's own as well;
    # and a root with so few capabilities is refused the level of Landlock
    left_out = [f"--ignore=tests/attacks/{name}" for name in ("front_door", "test_readers.py", "test_agent.py")]
    left_out += ["--ignore=tests/attacks/verify/test_mutants.py", "-k", "not landlock"]
    suites = ["tests/conformance/sandbox/test_native_backend.py", "tests/attacks", *left_out]
    command = ["/opt/tests/bin/python", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-m", "not long"]
    done = docker(
        *("run", "--rm", "--init", "--network", "none", "--tmpfs", "/tmp:mode=1777,exec", "--tmpfs", "/run"),
        *("-v", f"{ROOT}:/tree:ro", "-w", "/tree", "-e", "PYTHONPATH=/tree/src", *OPENED, *options),
        # commands of the tests have data directories of their own, not the server's
        *("--entrypoint", "env", TESTS, "-u", "SKILLYARD_DATA_DIR", *command, *suites),
        check=False,
        seconds=2400,
    )
    last = done.stdout.strip().rpartition("\n")[2]
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"(\d+) passed", last)
    assert passed is not None
    assert int(passed[1]) > 350, last


def _add_tests(docker: Docker) -> None:
    if docker("image", "inspect", TESTS, check=False).returncode == 0:
        return
    lines = (
        f"FROM {IMAGE}\nUSER 0\nRUN python3 -m venv --system-site-packages /opt/tests && "
        f"/opt/tests/bin/pip install -q {' '.join(DEV_PACKAGES)} && "
        "echo /opt/skillyard/lib/python3.11/site-packages >$(echo /opt/tests/lib/python3*/site-packages)/server.pth\n"
    )
    docker("build", "-q", "--network", "none", "-t", TESTS, "-", stdin=lines.encode(), seconds=300)
