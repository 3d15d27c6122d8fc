"""The way out of containers: detached runs go on after server and gate, and the battery finds no way past it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.backends import OciSettings
from skillyard.config.settings import load_settings
from skillyard.testing.attacks.attack import FAILURES, Verdict
from skillyard.testing.attacks.canaries import planted
from skillyard.verify.battery import fight
from skillyard.verify.families import everything
from skillyard.verify.home import own_runtime
from skillyard.verify.site import Site, at_home
from tests import waiting
from tests.conformance.sandbox import oci_ground
from tests.crash.server import Server

pytestmark = pytest.mark.timeout(300)
BOUND_S = 60.0
CODE = """
import os, time, urllib.request

def main(args):
    said = []
    for word in args["words"]:
        while True:
            try:
                said.append(urllib.request.urlopen(f"{args['url']}/{word}", timeout=40).read().decode())
                break
            except OSError as error:
                print(type(error).__name__, flush=True)
                time.sleep(0.1)
    return {"said": said}
"""


class Site_(BaseHTTPRequestHandler):
    """Answers a word when it is let go, and remembers who asked."""

    asked: list[str]
    free: dict[str, threading.Event]

    def do_GET(self) -> None:
        word = self.path.rpartition("/")[2]
        self.asked.append(word)
        self.free[word].wait(BOUND_S)
        body = word.upper().encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            return

    def log_message(self, *_args: Any) -> None:
        return


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OciSettings]:
    with oci_ground.engine(tmp_path_factory.mktemp("engine")) as (docker, found):
        yield found
        assert docker("ps", "-aq").stdout == ""


@pytest.fixture
def site() -> Iterator[ThreadingHTTPServer]:
    Site_.asked, Site_.free = [], {word: threading.Event() for word in ("one", "two", "three")}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site_)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    for event in Site_.free.values():
        event.set()
    server.shutdown()
    server.server_close()


def until(condition: Callable[[], object]) -> None:
    waiting.until(condition, BOUND_S)


def gate_of(data_dir: Path) -> int:
    """The process id of the gate: it names its directory."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes()
        except OSError:
            continue
        if b"skillyard.gate" in line and str(data_dir).encode() in line:
            return int(entry.parent.name)
    raise AssertionError("there is no gate")


def test_a_detached_run_goes_on_after_its_server_and_after_its_gate(
    settings: OciSettings, site: ThreadingHTTPServer, tmp_path: Path
) -> None:
    port = site.server_address[1]
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "config.toml").write_text(
        f'[policy]\nisolation = "oci"\n[oci]\nsocket = "{settings.socket}"\nimage = "{settings.image}"\nready = 0\n'
        f'[network]\nrun_code = ["site.test:{port}"]\nhosts = {{"site.test" = "127.0.0.1"}}\n[native]\nready = 0\n'
    )
    args = {"url": f"http://site.test:{port}", "words": ["one", "two", "three"]}
    with Server(data) as server, server.client() as client:
        run = client.run_code(CODE, args, detach=True, limits={"timeout_ms": 240_000, "memory_mb": 128})
        Site_.free["one"].set()
        until(lambda: "two" in Site_.asked)
        server.kill()
    Site_.free["two"].set()  # its connection is lost, and the next one waits for a server
    with Server(data) as server, server.client() as client:
        until(lambda: "three" in Site_.asked)
        assert client.show_run(run.run_id)["run"]["status"] == "running"
        os.kill(gate_of(data), signal.SIGKILL)
        Site_.free["three"].set()
        ended = client.wait_run(run.run_id)
        assert ended.output == {"said": ["ONE", "TWO", "THREE"]}, dict(ended.raw)
        network = client.show_run(run.run_id)["run"]["network"]
    reached = {(c["via"], c["host"], c["port"]) for c in network["connections"] if c["allowed"]}
    assert reached == {("http", "site.test", port)}, json.dumps(network)
    assert [c["via"] for c in network["connections"] if "the gate was lost" in c["reason"]] == ["gate"]


@pytest.mark.anyio
async def test_the_battery_finds_no_way_past_it(settings: OciSettings, tmp_path: Path) -> None:
    attacks = [attack for attack in everything() if attack.family == "egress"]
    given = load_settings(
        data_dir=tmp_path / "unused", policy={"isolation": "oci"}, oci=settings.model_dump(exclude_unset=True)
    )
    with planted() as canaries:
        async with own_runtime(given, tmp_path) as runtime:
            site = Site(runtime, None, runtime, canaries)
            await at_home(site)
            findings = await fight(site, attacks, at_once=2)
    told = {f.attack.name: (f.judgement.verdict, f.judgement.why) for f in findings}
    assert {name for name, (verdict, _) in told.items() if verdict in FAILURES} == set(), told
    skipped = {name for name, (verdict, _) in told.items() if verdict is Verdict.NOT_APPLICABLE}
    assert skipped == {"egress-questions"}, told
