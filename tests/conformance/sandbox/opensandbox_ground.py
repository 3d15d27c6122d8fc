"""An OpenSandbox server of the tests' own: the real server over a Docker daemon in a network namespace of its own.

The daemon inside sandboxes and the egress sidecar are the tests' (tests/hosts/opensandbox): no package has the real
ones.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from skillyard.config.backends import OpenSandboxSettings
from tests.conformance.sandbox.oci_ground import BASE, import_python
from tests.hosts.docker_engine import Docker, unmount_below

ROOT = Path(__file__).parents[3]
SERVER = Path("/usr/local/lib/skillyard-ci/opensandbox-server/bin/opensandbox-server")
EXECD, EGRESS, ASLEEP = "skillyard-tests/execd:1", "skillyard-tests/egress:1", "skillyard-tests/egress:asleep"
API_KEY = "key-of-the-tests"
PORT = 8090
BOUND_S = 90.0
_BOOTSTRAP = '#!/bin/sh\n/opt/opensandbox/execd >/dev/null 2>&1 &\nexec "$@"\n'
_NFT = ("/usr/sbin/nft",)
_CONFIG = """
[server]
host = "0.0.0.0"
port = {port}
api_key = "{key}"
eip = "{address}"
max_sandbox_timeout_seconds = 86400
[log]
level = "INFO"
[runtime]
type = "docker"
execd_image = "{execd}"
[storage]
allowed_host_paths = []
[store]
type = "sqlite"
path = "{scratch}/opensandbox.db"
[docker]
network_mode = "bridge"
drop_capabilities = [
  "AUDIT_WRITE", "MKNOD", "NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE", "SYS_TIME", "SYS_TTY_CONFIG",
]
no_new_privileges = true
pids_limit = 4096
[ingress]
mode = "direct"
[egress]
image = "{egress}"
mode = "dns+nft"
"""


@dataclass
class OpenSandbox:
    """The server behind ``address``."""

    scratch: Path
    docker: Docker
    space: str
    address: str
    server: subprocess.Popen[bytes] | None = None

    def settings(self, **changes: object) -> OpenSandboxSettings:
        given = {"domain": f"{self.address}:{PORT}", "api_key": API_KEY, "image": BASE, "request_timeout_seconds": 60}
        return OpenSandboxSettings.model_validate(given | changes)

    def start(self, egress: str = EGRESS, *, behind: bool = False) -> None:
        """``behind`` has it tell the address by which it was asked, as one does whose sandboxes are behind it."""
        config = self.scratch / "sandbox.toml"
        given = {"port": PORT, "key": API_KEY, "address": "" if behind else self.address, "scratch": self.scratch}
        config.write_text(_CONFIG.format(**given, execd=EXECD, egress=egress))
        with (self.scratch / "server.log").open("ab") as log:
            self.server = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.space}", str(SERVER), "--config", str(config)],
                env={**os.environ, "DOCKER_HOST": f"unix://{self.scratch}/docker.sock", "HOME": str(self.scratch)},
                stdout=log,
                stderr=log,
                cwd=self.scratch,
            )
        deadline = time.monotonic() + BOUND_S
        while True:
            with suppress(OSError), urllib.request.urlopen(f"http://{self.address}:{PORT}/health", timeout=2):
                return
            assert self.server.poll() is None, (self.scratch / "server.log").read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def stop(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait(BOUND_S)

    def left_s(self, handle: str) -> float:
        """The time after which the server ends a sandbox."""
        url = f"http://{self.address}:{PORT}/v1/sandboxes/{handle}"
        asked = urllib.request.Request(url, headers={"OPEN-SANDBOX-API-KEY": API_KEY})
        with urllib.request.urlopen(asked, timeout=BOUND_S) as answer:
            return datetime.fromisoformat(json.loads(answer.read())["expiresAt"]).timestamp() - time.time()

    def containers(self) -> list[str]:
        """The names of all containers of sandboxes and sidecars, also of those that have ended."""
        names = self.docker("ps", "-a", "--format", "{{.Names}}").stdout.split()
        return sorted(name for name in names if "execd-cache" not in name)


@contextmanager
def open_sandbox(scratch: Path) -> Iterator[OpenSandbox]:
    """Skips, with the reason, where the server or its engine is not to be had. At its end nothing is left of any."""
    pytest.importorskip(
        "opensandbox", reason="OpenSandbox's SDK is not installed: pip install 'skillyard[opensandbox]'"
    )
    if os.geteuid() != 0:
        pytest.skip("a Docker daemon needs root")
    for tool in ("dockerd", "docker", "nsenter", "ip", "nft", str(SERVER)):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not here (.ci/setup installs it)")
    if not Path("/var/lib/dpkg/status").exists():
        pytest.skip("the image is made of Debian's packages, and this is no Debian")
    with _network() as (space, address):
        command = ["nsenter", f"--net=/run/netns/{space}", "dockerd", "--data-root", f"{scratch}/data"]
        command += ["--exec-root", f"{scratch}/exec", "-H", f"unix://{scratch}/docker.sock", "--pidfile"]
        command += [f"{scratch}/pid", "-s", "overlay2"]
        docker = Docker(scratch / "docker.sock", command)
        found = OpenSandbox(scratch, docker, space, address)
        try:
            docker.start()
            import_python(docker)
            _images(docker, scratch)
            found.start()
            yield found
            assert found.containers() == []
        finally:
            found.stop()
            for name in docker("ps", "-aq", check=False).stdout.split():
                docker("rm", "-f", name, check=False)
            docker.stop()
            unmount_below(scratch)


@contextmanager
def _network() -> Iterator[tuple[str, str]]:
    """A network namespace, and its address as this host reaches it."""
    name, third = f"osb{secrets.token_hex(3)}", secrets.randbelow(250)
    ours, theirs = f"198.19.{third}.1", f"198.19.{third}.2"
    for words in (
        f"ip netns add {name}",
        f"ip link add {name} type veth peer name eth0 netns {name}",
        f"ip addr add {ours}/30 dev {name}",
        f"ip link set {name} up",
        f"ip -n {name} addr add {theirs}/30 dev eth0",
        f"ip -n {name} link set eth0 up",
        f"ip -n {name} link set lo up",
        f"ip -n {name} route add default via {ours}",
    ):
        subprocess.run(words.split(), check=True, capture_output=True)
    try:
        yield name, theirs
    finally:
        subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _images(docker: Docker, scratch: Path) -> None:
    context = scratch / "images"
    context.mkdir()
    (context / "bootstrap.sh").write_text(_BOOTSTRAP)
    for name in ("execd", "egress"):
        shutil.copy(ROOT / f"tests/hosts/opensandbox/{name}.py", context / name)
    for name in ("execd", "egress", "bootstrap.sh"):
        (context / name).chmod(0o755)
    needed = subprocess.run(["ldd", *_NFT], check=True, capture_output=True, text=True).stdout
    libraries = {word for word in needed.split() if word.startswith("/")}
    for path in (*_NFT, *libraries):
        target = context / "nft" / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    files = {
        EXECD: f"FROM {BASE}\nCOPY execd bootstrap.sh /\n",
        EGRESS: f'FROM {BASE}\nCOPY egress /\nCOPY nft/lib /usr/lib\nCOPY nft/usr /usr\nENTRYPOINT ["/egress"]\n',
        ASLEEP: f"FROM {EGRESS}\nCOPY bootstrap.sh /asleep\n",
    }
    (context / "nft/lib").mkdir(exist_ok=True)
    for name, text in files.items():
        (context / "Dockerfile").write_text(text)
        docker("build", "-t", name, str(context))
