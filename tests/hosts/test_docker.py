"""In a container: doctor names the options that are missing, and with just these everything stands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from skillyard.sandbox.registry import nature
from tests.hosts.docker_engine import ROOT, Docker, docker_daemon, import_here

pytestmark = pytest.mark.timeout(300)

CODE = "def main(args): return {'more': args['n'] + 1}\n"
ASKS = """
import socket
from urllib.request import urlopen

def main(args):
    found = {"by proxy": urlopen(args["url"], timeout=30).status}
    with socket.create_connection(("shop.test", 8081), 30) as peer:
        peer.sendall(b"GET / HTTP/1.0\\r\\nHost: shop.test:8081\\r\\n\\r\\n")
        found["directly"] = peer.makefile().readline().strip()
    try:
        socket.create_connection(("shop.test", 8082), 30)
    except ConnectionRefusedError:
        found["other port"] = "refused"
    return found
"""
PROFILE = "deploy/docker-seccomp.json"
USERS = pytest.mark.parametrize("user", [0, 1000], ids=["root", "user"])


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    with docker_daemon(tmp_path_factory.mktemp("docker")) as docker:
        import_here(docker)
        yield docker


def doctor(docker: Docker, user: int, options: list[str], isolation: str = "native") -> dict[str, Any]:
    done = docker.skillyard("doctor", "--json", "--isolation", isolation, options=options, user=user)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def named(mend: str) -> list[str]:
    """The options of the command line in a mend, with our own profile's path made whole."""
    command = mend.partition("docker run ")[2].partition(";")[0].partition(" (or")[0]
    return [word.replace(PROFILE, str(ROOT / PROFILE)) for word in shlex.split(command)]


@USERS
def test_the_options_that_doctor_names_are_those_that_are_missing(user: int, docker: Docker) -> None:
    plain = doctor(docker, user, [])
    assert not plain["ready"]
    options = named(plain["facts"]["mend"])
    assert [option.partition("=")[0] for option in options if option[0] != "-"] == ["seccomp", "systempaths"]
    opened = doctor(docker, user, options)
    assert (opened["ready"], opened["mandatory_missing"]) == (True, [])
    lost = {name for name, p in opened["protections"].items() if p["level"] == "missing"}
    assert lost == (set() if user == 0 else {"own_uid"})


@USERS
def test_without_one_of_them_doctor_names_that_one(user: int, docker: Docker) -> None:
    seccomp = ["--security-opt", f"seccomp={ROOT / PROFILE}"]
    masked = doctor(docker, user, seccomp)
    assert named(masked["facts"]["mend"]) == ["--security-opt", "systempaths=unconfined"]
    filtered = doctor(docker, user, ["--security-opt", "systempaths=unconfined"])
    assert named(filtered["facts"]["mend"]) == seccomp


@USERS
def test_a_run_in_the_plain_container_is_refused_with_that_line(user: int, docker: Docker) -> None:
    done = docker.skillyard("exec", "-", "--args", '{"n": 1}', user=user, stdin=CODE)
    assert done.returncode == 4
    assert f"docker run --security-opt seccomp={PROFILE} --security-opt systempaths=unconfined" in done.stderr
    assert "weaker isolation 'landlock', which has no network: SKILLYARD_POLICY__ISOLATION=landlock" in done.stderr


@USERS
def test_a_run_with_the_options_has_every_wall_without_any_capability(user: int, docker: Docker) -> None:
    """But those that give sandboxes ids of their own."""
    ids = ["--cap-add", "SETUID", "--cap-add", "SETGID", "--cap-add", "SETFCAP"] if user == 0 else []
    few = ["--read-only", "--cap-drop", "ALL", *ids, "--security-opt", "no-new-privileges", "--tmpfs", "/run"]
    options = [*few, "--security-opt", f"seccomp={ROOT / PROFILE}", "--security-opt", "systempaths=unconfined"]
    done = docker.skillyard("exec", "-", "--args", '{"n": 1}', "--json", options=options, user=user, stdin=CODE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"] == {"more": 2}


@USERS
def test_a_run_with_the_options_has_a_way_out(user: int, docker: Docker) -> None:
    """To a server in the container, which has no other network here."""
    options = ["--security-opt", f"seccomp={ROOT / PROFILE}", "--security-opt", "systempaths=unconfined"]
    told = doctor(docker, user, options)["abilities"]["egress"]
    assert told["level"] == "kernel", told
    words = ["exec", "-", "--args", '{"url": "http://shop.test:8081/"}', "--json"]
    program = f"""
import subprocess, sys
from http.server import HTTPServer, SimpleHTTPRequestHandler
from threading import Thread
Thread(target=HTTPServer(("127.0.0.1", 8081), SimpleHTTPRequestHandler).serve_forever, daemon=True).start()
sys.exit(subprocess.run([sys.executable, "-m", "skillyard", *{words!r}]).returncode)
"""
    env = {
        "SKILLYARD_NETWORK__RUN_CODE": '["shop.test:8081"]',
        "SKILLYARD_NETWORK__HOSTS": '{"shop.test": "127.0.0.1"}',
    }
    done = docker.program("-c", program, options=options, user=user, stdin=ASKS, env=env)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert run["output"] == {"by proxy": 200, "directly": "HTTP/1.1 200 OK", "other port": "refused"}


def test_the_battery_raises_no_alarm_in_a_container_that_was_just_made(docker: Docker) -> None:
    options = ["--security-opt", f"seccomp={ROOT / PROFILE}", "--security-opt", "systempaths=unconfined"]
    names = ["leftovers-shared-times", "special-files-host-devices"]
    done = docker.skillyard("verify", *(word for name in names for word in ("--only", name)), options=options)
    assert done.returncode == 0, done.stdout + done.stderr


@USERS
def test_the_plain_container_gets_the_landlock_level_by_auto_and_is_told(user: int, docker: Docker) -> None:
    level = doctor(docker, user, [], isolation="landlock")
    if not level["ready"]:
        pytest.skip(f"the level does not stand in a container with this interpreter: {level['facts'].get('why')}")
    found = doctor(docker, user, [], isolation="auto")
    assert found["isolation"] == "landlock"
    assert found["mandatory_missing"] == []
    assert nature("landlock").without <= {name for name, p in found["protections"].items() if p["level"] == "missing"}
    assert "docker run --security-opt" in found["passed_over"]["native"]
    auto = {"SKILLYARD_POLICY__ISOLATION": "auto"}
    done = docker.skillyard("exec", "-", "--args", '{"n": 1}', "--json", user=user, stdin=CODE, env=auto)
    run = json.loads(done.stdout)
    assert (run["output"], run["isolation"]) == ({"more": 2}, "landlock")
