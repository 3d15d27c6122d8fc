"""Every isolation under programs for E2B: what each has works, and what it lacks is refused by name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from e2b import PtySize
from e2b.exceptions import SandboxException

from tests.conformance.sandbox import e2b_ground, microvm_ground, oci_ground, opensandbox_ground, srt_ground
from tests.crash.server import Server, end_kept
from tests.crash.test_e2b_killed import S3, keep_key
from tests.faces.e2b.conftest import ENV, Yard

Interpreter = pytest.importorskip("e2b_code_interpreter", reason="e2b-code-interpreter is not installed").Sandbox
Until = Callable[[Callable[[], object]], None]


@dataclass(frozen=True)
class Has:
    """Abilities of an isolation. Without /home/user programs have /workspace as home."""

    home: str = "/workspace"
    code: bool = True
    ports: bool = True
    terminals: bool = False
    pauses: bool = False


@contextmanager
def serving(place: Path, isolation: str, **env: str) -> Iterator[Yard]:
    (place / "yard").mkdir(exist_ok=True)
    try:
        more = {**ENV, "SKILLYARD_POLICY__ISOLATION": isolation, **env}
        with Server(place / "yard" / "data", **cast("Any", more)) as server:
            yield Yard(server)
    finally:
        end_kept()


def tour(yard: Yard, isolation: str, has: Has, until: Until) -> None:
    """Does with one sandbox what programs do, and holds each refusal to the name of the isolation."""
    made = Interpreter.create(timeout=900, request_timeout=120, **yard.opts)
    files, commands = made.files, made.commands
    assert files.write("words", "b\na\n").path == f"{has.home}/words"
    assert commands.run("sort words; pwd").stdout == f"a\nb\n{has.home}\n"
    assert commands.run("id -u").stdout != "0\n"
    assert files.read("/home/user/words") == "b\na\n"
    assert files.rename("words", "moved").path == f"{has.home}/moved"
    assert "moved" in [each.name for each in files.list(".")]
    watch = files.watch_dir(".")
    files.write("new", "x")
    until(lambda: [each.name for each in watch.get_new_events() if each.name == "new"])
    watch.stop()
    handle = commands.run("read line; echo got $line; exit 3", background=True, stdin=True)
    commands.send_stdin(handle.pid, "a line\n")
    with pytest.raises(Exception, match="3"):
        handle.wait()
    if has.code:
        made.run_code("x = 20")
        assert made.run_code("x + 1").text == "21"
    else:
        error = made.run_code("1").error
        assert error is not None
        assert "this isolation gives no unix sockets" in error.value
    port = {"Host": made.get_host(8123), "E2b-Traffic-Access-Token": str(made.traffic_access_token)}
    serves = commands.run("exec python3 -m http.server 8123 --bind 127.0.0.1", background=True)
    if has.ports:
        until(lambda: yard.ask("GET", "/new", port).text == "x")
    else:
        answer = yard.ask("GET", "/new", port)
        assert answer.status_code == 404
        assert f"'{isolation}' has no way to ports" in answer.json()["error"]["message"]
    serves.kill()
    if has.terminals:
        terminal = made.pty.create(PtySize(rows=20, cols=80))
        made.pty.send_stdin(terminal.pid, b"exit 4\n")
        with pytest.raises(Exception, match="4"):
            terminal.wait()
    else:
        with pytest.raises(SandboxException, match=f"'{isolation}' has no pseudo-terminals"):
            made.pty.create(PtySize(rows=20, cols=80))
    if has.pauses:
        assert made.pause()
        assert made.connect(timeout=600).commands.run("cat new").stdout == "x"
    else:
        with pytest.raises(SandboxException, match=f"'{isolation}' cannot be paused"):
            made.pause()
        with pytest.raises(SandboxException, match=f"'{isolation}' cannot be paused"):
            yard.create(lifecycle={"on_timeout": "pause"}, request_timeout=120)
    assert made.kill()
    until(lambda: made.sandbox_id not in yard.api("GET", "/v2/sandboxes").text)


def test_landlock_is_refused_by_name(tmp_path: Path) -> None:
    with serving(tmp_path, "landlock") as yard:
        with pytest.raises(SandboxException, match="file system of its own"):
            yard.create()
        assert yard.api("GET", "/v2/sandboxes").json() == []


def test_native(yard: Yard, until: Until) -> None:
    tour(yard, "native", Has("/home/user", terminals=True, pauses=True), until)


def test_srt(tmp_path: Path, until: Until) -> None:
    if why := srt_ground.absent():
        pytest.skip(why)
    command = os.environ.get("SKILLYARD_SRT__COMMAND", "")
    with serving(tmp_path, "srt", SKILLYARD_SRT__COMMAND=command) as yard:
        tour(yard, "srt", Has(code=False, pauses=True), until)


@pytest.mark.long
def test_gvisor(tmp_path: Path, until: Until) -> None:
    if "SKILLYARD_GVISOR__RUNSC" not in os.environ:
        pytest.skip("SKILLYARD_GVISOR__RUNSC names no runsc")
    with serving(tmp_path, "gvisor") as yard:
        tour(yard, "gvisor", Has("/home/user", ports=False), until)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_microvm(tmp_path: Path, until: Until) -> None:
    env = {
        "SKILLYARD_MICROVM__ACCEL": "tcg",
        "SKILLYARD_MICROVM__READY": "0",
        "SKILLYARD_MICROVM__IMAGE": str(microvm_ground.image(tmp_path)),
    }
    with serving(tmp_path, "microvm", **env) as yard:
        tour(yard, "microvm", Has(), until)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_e2b(tmp_path: Path, until: Until) -> None:
    """One of this product's servers before a provider's machines."""
    with e2b_ground.stand_in(tmp_path) as provider:
        asyncio.run(keep_key(tmp_path / "yard" / "data"))
        (tmp_path / "e2b.toml").write_text(S3.format(reuse="none", url=f"http://127.0.0.1:{provider.port}"))
        with serving(tmp_path, "e2b", SKILLYARD_CONFIG=str(tmp_path / "e2b.toml")) as yard:
            tour(yard, "e2b", Has(), until)
        until(lambda: not provider.machines())


@pytest.mark.long
@pytest.mark.timeout(600)
def test_oci(tmp_path: Path, until: Until) -> None:
    with oci_ground.engine(tmp_path) as (docker, settings):
        env = {"SKILLYARD_OCI__SOCKET": settings.socket, "SKILLYARD_OCI__IMAGE": settings.image}
        with serving(tmp_path, "oci", SKILLYARD_OCI__READY="0", **env) as yard:
            tour(yard, "oci", Has(pauses=True), until)
        assert docker("ps", "-aq").stdout == ""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_opensandbox(tmp_path: Path, until: Until) -> None:
    with opensandbox_ground.open_sandbox(tmp_path) as remote:
        given = remote.settings()
        env = {
            "SKILLYARD_OPENSANDBOX__DOMAIN": given.domain,
            "SKILLYARD_OPENSANDBOX__API_KEY": opensandbox_ground.API_KEY,
            "SKILLYARD_OPENSANDBOX__IMAGE": oci_ground.BASE,
            "SKILLYARD_POLICY__ALLOW_DEGRADED": '["disk"]',
        }
        with serving(tmp_path, "opensandbox", **env) as yard:
            tour(yard, "opensandbox", Has(), until)
        until(lambda: not remote.containers())
