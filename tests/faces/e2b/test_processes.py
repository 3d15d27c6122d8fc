"""Programs of a sandbox, by the unmodified SDK of E2B."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2b import CommandExitException, PtySize
from e2b.exceptions import AuthenticationException, InvalidArgumentException, NotFoundException, TimeoutException

from tests.faces.e2b.conftest import Yard

Until = Callable[[Callable[[], object]], None]


def test_a_command_has_output_code_variables_and_place(sandbox: Any) -> None:
    ran = sandbox.commands.run('echo "$GREETING $OWN"; echo bad >&2; pwd; echo $HOME', envs={"OWN": "there"})
    assert ran.stdout == "hello there\n/home/user\n/home/user\n"
    assert ran.stderr == "bad\n"
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo before; exit 7")
    assert (failed.value.exit_code, failed.value.stdout) == (7, "before\n")
    with pytest.raises(CommandExitException) as killed:
        sandbox.commands.run("kill -9 $$")
    assert killed.value.exit_code == -1


def test_output_is_streamed_and_whole(sandbox: Any) -> None:
    said: list[str] = []
    ran = sandbox.commands.run(
        "for i in $(seq 20000); do echo line $i; done; printf '\\xc3\\xa9'", on_stdout=said.append
    )
    assert ran.stdout == "".join(said) == "".join(f"line {n}\n" for n in range(1, 20001)) + "é"


def test_input_reaches_a_program_up_to_its_end(sandbox: Any) -> None:
    handle = sandbox.commands.run("cat; echo over", background=True, stdin=True)
    for word in ("one ", "two\n", "ü" * 100_000 + "\n"):
        sandbox.commands.send_stdin(handle.pid, word)
    handle.close_stdin()
    assert handle.wait().stdout == "one two\n" + "ü" * 100_000 + "\nover\n"
    without = sandbox.commands.run("cat; sleep 100", background=True)
    with pytest.raises(Exception, match="started without it"):
        sandbox.commands.send_stdin(without.pid, "x")
    assert without.kill()


def test_input_is_streamed_as_it_comes(sandbox: Any) -> None:
    handle = sandbox.commands.run("while read line; do echo got $line; done", background=True, stdin=True)
    events = iter(handle)

    def typed() -> Iterator[str]:
        for word in ("one", "two", "three"):
            yield f"{word}\n"
            assert next(events)[0] == f"got {word}\n"  # before the next one is sent

    sandbox.commands.stream_input(handle.pid, typed())
    handle.kill()


def test_a_background_program_is_listed_left_and_found_again(sandbox: Any, until: Until) -> None:
    handle = sandbox.commands.run("echo begun; sleep 1; echo more; sleep 1; echo end", background=True)
    listed = {each.pid: each for each in sandbox.commands.list()}
    assert listed[handle.pid].args == ["-l", "-c", "echo begun; sleep 1; echo more; sleep 1; echo end"]
    handle.disconnect()
    ran = sandbox.commands.connect(handle.pid).wait()
    assert ran.stdout.endswith("more\nend\n")
    assert handle.pid not in {each.pid for each in sandbox.commands.list()}
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(handle.pid)
    assert not sandbox.commands.kill(handle.pid)


def test_a_program_that_is_killed_takes_its_children_along(sandbox: Any) -> None:
    handle = sandbox.commands.run("sleep 4711 & sleep 4711; wait", background=True)
    assert "sleep 4711" in sandbox.commands.run("ps -e -o args | grep '[s]leep 4711' || true").stdout
    assert handle.kill()
    with pytest.raises(CommandExitException) as killed:
        handle.wait()
    assert killed.value.error == "signal: killed"
    assert not sandbox.commands.run("ps -e -o args | grep '[s]leep 4711' || true").stdout


def test_a_program_left_behind_goes_on(sandbox: Any) -> None:
    sandbox.commands.run("nohup sleep 4712 >/dev/null 2>&1 &")
    assert "sleep 4712" in sandbox.commands.run("ps -e -o args | grep '[s]leep 4712'").stdout
    sandbox.commands.run("pkill -f '^sleep 4712'")


def test_its_time_ends_a_program(sandbox: Any, until: Until) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 4713", timeout=2)
    assert time.monotonic() - began < 60
    until(lambda: "sleep 4713" not in sandbox.commands.run("ps -e -o args").stdout)


def test_a_program_can_be_told_to_end(yard: Yard, sandbox: Any) -> None:
    handle = sandbox.commands.run(
        "trap 'echo told; exit 5' TERM; echo ready; while :; do sleep 0.1; done", background=True
    )
    events = iter(handle)
    assert next(events)[0] == "ready\n"
    about = {"process": {"pid": handle.pid}, "signal": "SIGNAL_SIGTERM"}
    assert yard.envd(sandbox, "/process.Process/SendSignal", about).status_code == 200
    with pytest.raises(CommandExitException) as ended:
        handle.wait()
    assert ended.value.exit_code == 5
    assert "told" in ended.value.stdout


@pytest.mark.parametrize("user", ["root", "postgres", "../root"])
def test_there_is_one_user(sandbox: Any, user: str) -> None:
    assert sandbox.commands.run("id -u", user="user").stdout == "65532\n"
    with pytest.raises(AuthenticationException, match="error looking up user"):
        sandbox.commands.run("id", user=user)


def test_a_place_that_is_missing_is_told(sandbox: Any) -> None:
    with pytest.raises(InvalidArgumentException, match="cwd '/nowhere' does not exist"):
        sandbox.commands.run("true", cwd="/nowhere")


def frames(data: bytes) -> list[tuple[int, Any]]:
    found = []
    while data:
        size = int.from_bytes(data[1:5])
        found.append((data[0], json.loads(data[5 : 5 + size])))
        data = data[5 + size :]
    return found


def started(yard: Yard, sandbox: Any, body: bytes, **headers: str) -> Any:
    told = {
        "E2b-Sandbox-Id": sandbox.sandbox_id,
        "X-Access-Token": sandbox._envd_access_token,
        "Content-Type": "application/connect+json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return yard.ask("POST", "/process.Process/Start", told, content=body)


def framed(message: Any, flags: int = 0) -> bytes:
    data = json.dumps(message).encode()
    return bytes([flags]) + len(data).to_bytes(4) + data


def test_a_stream_is_framed_as_connect_has_it(yard: Yard, sandbox: Any) -> None:
    said = started(yard, sandbox, framed({"process": {"cmd": "echo", "args": ["x"]}, "stdin": False, "tag": "mine"}))
    assert said.headers["content-type"] == "application/connect+json"
    (_, first), *rest, (_, end), (flag, last) = frames(said.content)
    assert first["event"]["start"]["pid"] >= 1000
    assert b"".join(base64.b64decode(each["event"]["data"]["stdout"]) for _, each in rest) == b"x\n"
    assert end["event"]["end"] == {"exitCode": 0, "exited": True, "status": "exit status 0"}
    assert (flag, last) == (2, {})


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\0", b"\0\0\0\0\x09{}", b"\0\xff\xff\xff\xff{}", framed({}, 1), framed({}, 2), framed([]),
        framed({"process": {}}), framed({"process": {"cmd": "x\0y"}}), framed({"process": {"cmd": ["a"]}}),
        framed({"process": {"cmd": "a", "args": ["x" * 200_000]}}), framed({"process": 5}),
        framed({"process": {"cmd": "a", "envs": {"=": "b"}}}), framed({"process": {"cmd": "a", "cwd": "x" * 5000}}),
        framed({}) + framed({}), b"\0\0\0\0\x03\xff\xfe\xfd",
    ],
)  # fmt: skip
def test_bad_streams_are_refused(yard: Yard, sandbox: Any, body: bytes) -> None:
    said = started(yard, sandbox, body)
    told = said.json() if said.headers["content-type"] == "application/json" else frames(said.content)[-1][1]["error"]
    assert told["code"] in ("invalid_argument", "unimplemented"), told
    assert sandbox.commands.run("echo lives").stdout == "lives\n"


def test_a_terminal_takes_keys_and_sizes_and_is_found_again(sandbox: Any, until: Until) -> None:
    shown = bytearray()
    terminal = sandbox.pty.create(PtySize(rows=30, cols=100), envs={"PS1": "prompt>"}, timeout=60)
    sandbox.pty.send_stdin(terminal.pid, b"stty size; echo to''ld $TERM\n")

    def follow(handle: Any, word: bytes) -> None:
        for _, _, data in handle:
            shown.extend(data or b"")
            if word in shown:
                return

    follow(terminal, b"told xterm-256color")
    assert b"30 100" in shown
    terminal.disconnect()
    sandbox.pty.resize(terminal.pid, PtySize(rows=7, cols=65535))
    # What a terminal shows while nobody is connected is lost.
    again = sandbox.pty.connect(terminal.pid, timeout=60)
    sandbox.pty.send_stdin(terminal.pid, b"stty size; echo aga''in\n")
    follow(again, b"again")
    assert b"7 65535" in shown
    sandbox.pty.send_stdin(terminal.pid, b"sleep 1000\n\x03\x04exit 3\n")
    until(lambda: terminal.pid not in {each.pid for each in sandbox.commands.list()})
    assert not sandbox.pty.kill(terminal.pid)


def test_a_terminal_that_is_none_is_refused(sandbox: Any) -> None:
    handle = sandbox.commands.run("sleep 100", background=True)
    with pytest.raises(Exception, match="no pseudo-terminal"):
        sandbox.pty.resize(handle.pid, PtySize(rows=7, cols=7))
    with pytest.raises(Exception, match="no pseudo-terminal"):
        sandbox.pty.send_stdin(handle.pid, b"x")
    with pytest.raises(Exception, match="must be a number from 1 to 65535"):
        sandbox.pty.create(PtySize(rows=70000, cols=7))
    assert handle.kill()
