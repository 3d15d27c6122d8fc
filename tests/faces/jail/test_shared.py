"""Jails on a server that runs: what they are given, how they end, and which processes get none."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from skillyard.domain.work.limits import Limits
from skillyard.faces.jails.wire import PROTOCOL, SOCKET, Ask
from skillyard.ipc.channel import FrameReader, encode
from skillyard.ipc.packets import descriptors, send_some
from tests.crash.server import Server
from tests.faces.jail.conftest import BOUND_S, Jails, marked, until
from tests.faces.jail.test_reach import _ASK, serving
from tests.faces.jail.test_streams import STUBBORN

_OURS = 125
_ALONE = b"the jail runs alone: "


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Jails, Server]]:
    """One server, and commands on its data directory. Where a jail runs alone it says so on standard error."""
    home = tmp_path_factory.mktemp("shared")
    with Server(home / "data", SKILLYARD_SERVER__GRACE_S="1") as server:
        found = Jails(home / "data")
        yield found, server
        for process in found.started:
            if process.poll() is None:
                process.kill()
            process.wait(BOUND_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def _records(server: Server) -> list[dict[str, Any]]:
    with server.client() as client:
        runs: list[dict[str, Any]] = client.call("runs.list", {"limit": 50})["runs"]
        return [run for run in runs if run["kind"] == "jail"]


def test_the_server_runs_and_records_it(shared: tuple[Jails, Server]) -> None:
    jails, server = shared
    sent = bytes(range(256)) * 4096
    done = jails.run("--", "sh", "-c", "cat; echo wrong >&2; exit 41", stdin=sent)
    assert (done.stdout, done.stderr, done.returncode) == (sent, b"wrong\n", 41)
    record = _records(server)[0]
    with server.client() as client:
        whole = client.call("runs.show", {"run_id": record["run_id"]})["run"]
    assert whole["output"] == {"exit_code": 41, "bytes": {"stdin": len(sent), "stdout": len(sent), "stderr": 6}}
    assert not (jails.home / "jails").exists(), "it has no keeper of its own"
    alone = jails.run("--alone", "--", "true")
    assert (alone.returncode, alone.stderr) == (0, b"")
    assert [each.name for each in (jails.home / "jails").iterdir()] == ["0"]
    shutil.rmtree(jails.home / "jails")


def test_it_gets_what_its_own_command_line_names(shared: tuple[Jails, Server], place: Path) -> None:
    jails, _ = shared
    (place / "mine").write_text("kept")
    (place / "mine").chmod(0o600)
    heard: list[str] = []
    set_secret = [sys.executable, "-m", "skillyard", "secret", "set", "API_KEY"]
    subprocess.run(set_secret, input=b"of-the-store", env=jails.env, check=True, timeout=BOUND_S)
    code = f"""
import json, os, sys
os.chdir({str(place)!r})
open("new", "w").write(open("mine").read())
print(os.environ["WANTED"], os.environ["API_KEY"], os.environ.get("OTHER"), os.stat("mine").st_uid == os.getuid())
{_ASK}
"""
    with serving(heard) as port:
        words = ["--write", str(place), "--env", "WANTED", "--secret", "API_KEY", "--allow", f"127.0.0.1:{port}"]
        urls = [f"http://127.0.0.1:{port}/page", "http://169.254.169.254/", "http://192.0.2.1/post"]
        done = jails.run(*words, "--", "python3", "-c", code, *urls, env={"WANTED": "one", "OTHER": "two"})
    assert done.stderr == b""
    said, asked = done.stdout.decode().splitlines()
    assert said == "one of-the-store None True"
    assert json.loads(asked)[0] == "answer"
    assert all(text.startswith("refused") for text in json.loads(asked)[1:])
    found = (place / "new").stat()
    assert (found.st_uid, found.st_gid, (place / "new").read_text()) == (os.getuid(), os.getgid(), "kept")
    read_only = jails.python(f"open({str(place / 'no')!r}, 'w')", "--read", str(place))
    assert (read_only.returncode, b"Read-only" in read_only.stderr) == (1, True)
    assert _ALONE not in read_only.stderr


def test_a_program_waits_for_its_reader_and_its_ends_are_seen(shared: tuple[Jails, Server]) -> None:
    jails, _ = shared
    write = f"for n in range(32):\n os.write(2, b'.')\n os.write(1, b'x' * {1 << 20})"
    code = f"import os\n{write}\nos.close(1)\nos.read(0, 1)"
    process = jails.start("--", "python3", "-uc", code)
    assert process.stderr is not None
    assert process.stdout is not None
    assert process.stderr.read(1) == b"."
    time_out = time.monotonic() + BOUND_S
    assert len(process.stdout.read(32 << 20)) == 32 << 20
    assert process.stdout.read() == b"", "its end is seen while the program goes on"
    assert process.poll() is None
    _, err = process.communicate(b"x", timeout=max(1.0, time_out - time.monotonic()))
    assert (len(err), process.returncode) == (31, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_tree(shared: tuple[Jails, Server], number: signal.Signals) -> None:
    jails, server = shared
    process, word = _stubborn(jails)
    process.send_signal(number)
    assert process.wait(BOUND_S) == 128 + number
    assert marked(word) == []
    assert _records(server)[0]["outcome"] == "cancelled"


def _stubborn(jails: Jails, *words: str, **named: Any) -> tuple[subprocess.Popen[bytes], str]:
    word = f"shared-{os.getpid()}-{time.monotonic_ns()}"
    process = jails.start(*words, "--", "python3", "-c", STUBBORN, word, **named)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert marked(word)
    return process, word


def test_a_killed_command_leaves_nothing(shared: tuple[Jails, Server]) -> None:
    jails, server = shared
    process, word = _stubborn(jails)
    process.kill()
    process.wait(BOUND_S)
    until(lambda: not marked(word), "the end of its program")
    until(lambda: _records(server)[0]["outcome"] == "cancelled", "its record")


def test_a_package_that_was_added_is_found_by_its_name(shared: tuple[Jails, Server], tmp_path: Path) -> None:
    from tests.faces.jail.test_package_sources import _TINY
    from tests.unit.engine.packages.wheels import make_wheel, wheel_name

    jails, _ = shared
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    tmp_path.chmod(0o755)
    (wheels / wheel_name("tiny")).write_bytes(make_wheel("tiny", files=_TINY))
    env = {"SKILLYARD_PACKAGES__OFFLINE": "true", "SKILLYARD_PACKAGES__WHEELS": str(wheels)}
    added = jails.run("add", "--no-try", "tiny", "--", "uvx", "tiny", "one", env=env)
    assert added.returncode == 0, added.stderr
    done = jails.run("run", "tiny", "--", "two")
    assert (json.loads(done.stdout), done.stderr) == (["one", "two"], b"")


@pytest.mark.parametrize("end", ["killed", "stopped", pytest.param("keeper", marks=pytest.mark.long)])
def test_its_server_ends_and_so_does_it(jails: Jails, end: str) -> None:
    """The command tells it and does not start another one: half of a conversation is lost."""
    with Server(jails.home, SKILLYARD_SERVER__GRACE_S="0.2") as server:
        process, word = _stubborn(jails)
        if end == "killed":
            server.kill()
        elif end == "stopped":
            assert server.stop() == 0
        else:
            home = str(jails.home)
            [keeper] = [pid for pid in _pids() if _says(pid, "ground import main") and _says(pid, home)]
            os.kill(keeper, signal.SIGKILL)
        assert process.wait(BOUND_S) == _OURS
        assert process.stderr is not None
        said = process.stderr.read()
        assert _ALONE not in said
        told = {"killed": b"start it again", "stopped": b"the server is stopping", "keeper": b"start it again"}
        assert told[end] in said
        until(lambda: not marked(word), "the end of its program")
        assert not (jails.home / "jails").exists()


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _says(pid: int, word: str) -> bool:
    with suppress(OSError):
        return word in Path(f"/proc/{pid}/cmdline").read_text()
    return False


def test_without_a_place_it_runs_alone_and_says_so(jails: Jails) -> None:
    with Server(jails.home, SKILLYARD_JAIL__PLACES="1"):
        process, _ = _stubborn(jails)
        done = jails.run("--", "echo", "there")
        assert done.stdout == b"there\n"
        assert _ALONE + b"the server refuses: it runs 1 jails already" in done.stderr
        process.terminate()
        process.wait(BOUND_S)


def test_a_server_of_an_earlier_release_is_told(jails: Jails) -> None:
    (jails.home / "run").mkdir(mode=0o700, parents=True)
    record = {"url": "http://127.0.0.1:1", "pid": os.getpid()}
    (jails.home / "server.json").write_text(json.dumps(record))  # as one without the socket leaves it
    done = jails.run("--", "echo", "there")
    assert done.stdout == b"there\n"
    assert b"takes no jails: it is of an earlier release, or jail.places is 0 there" in done.stderr
    with _said(jails.home / "run", {"hello": PROTOCOL + 1, "release": "99.0"}):
        done = jails.run("--", "echo", "there")
        assert done.stdout == b"there\n"
        assert _ALONE + b"the server is of another release (99.0)" in done.stderr


@contextmanager
def _said(place: Path, words: dict[str, Any]) -> Iterator[None]:
    """Answers the first command at the door with these words."""
    here = Path.cwd()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(place)
        listener.bind(SOCKET)
        os.chdir(here)
        listener.listen()
        import threading

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(encode(words))
                sock.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join()
    (place / SOCKET).unlink()


CONFINED: dict[str, tuple[list[str], bytes]] = {
    "a user namespace": (["unshare", "--user", "--map-current-user"], b"other namespaces than the server: user"),
    "a mount namespace": (["unshare", "--user", "--map-current-user", "--mount"], b"other namespaces"),
    "a network namespace": (["unshare", "--user", "--map-current-user", "--net"], b"other namespaces"),
    "no new privileges": (["setpriv", "--no-new-privs"], b"it may gain no privileges, and the server may"),
}


@pytest.mark.parametrize(("words", "why"), CONFINED.values(), ids=CONFINED.keys())
def test_a_confined_process_of_the_same_user_is_refused(
    shared: tuple[Jails, Server], place: Path, words: list[str], why: bytes
) -> None:
    """An agent in a sandbox of another make sees the socket, and would leave it by a jail with directories."""
    jails, server = shared
    before = len(_records(server))
    said = subprocess.run(
        [*words, sys.executable, "-c", _ORDER, str(jails.home / "run" / SOCKET), json.dumps(_ask(["true"]).told())],
        capture_output=True,
        timeout=BOUND_S,
        check=False,
    )
    if b"unshare" in said.stderr:
        pytest.skip(f"no namespaces here: {said.stderr.decode()}")
    assert why in said.stdout, said.stderr
    assert len(_records(server)) == before


_ORDER = """
import json, socket, struct, sys
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(60)
sock.connect(sys.argv[1])
raw = json.dumps({"order": json.loads(sys.argv[2])}).encode()
print(sock.recv(65536)[8:].decode())
try:
    sock.sendall(struct.pack(">II", len(raw), 0) + raw)
    print(sock.recv(65536)[8:].decode())
except OSError as error:
    print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="another user is needed")
def test_another_user_is_refused(shared: tuple[Jails, Server]) -> None:
    """By the directory, by the socket's mode, and where both were open, by the kernel's word about the other end."""
    jails, server = shared
    door = jails.home / "run" / SOCKET
    assert (door.stat().st_mode & 0o777, jails.home.stat().st_mode & 0o777) == (0o600, 0o700)
    words = ["setpriv", "--reuid", "64321", "--regid", "64321", "--clear-groups"]
    ask = [*words, "/usr/bin/python3", "-c", _ORDER, str(door), json.dumps(_ask(["true"]).told())]
    opened = [path for path in (door, *door.parents) if not path.stat().st_mode & 0o001]
    before, modes = len(_records(server)), {path: path.stat().st_mode & 0o777 for path in opened}
    closed = subprocess.run(ask, capture_output=True, timeout=BOUND_S, check=False)
    assert b"PermissionError" in closed.stderr
    try:
        for path in opened:
            path.chmod(0o777)
        told = subprocess.run(ask, capture_output=True, timeout=BOUND_S, check=False)
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert b"a process of the user 64321 asks" in told.stdout, told.stderr
    assert len(_records(server)) == before


def _ask(args: Sequence[str], **named: Any) -> Ask:
    return Ask(tuple(args), Limits(), "/workspace", **named)


def _ordered(home: Path, ask: Ask, fds: Sequence[int]) -> dict[str, Any]:
    """Sends an order as a command of the same user might, whatever it says; returns the answer."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(BOUND_S)
        place = os.open(home / "run", os.O_PATH)
        sock.connect(f"/proc/self/fd/{place}/{SOCKET}")
        os.close(place)
        raw = encode({"order": json.loads(json.dumps(ask.told()))}, sockets=len(fds))
        raw = raw[send_some(sock, raw, fds) :]
        if raw:
            sock.sendall(raw)
        reader = FrameReader()
        answers: list[dict[str, Any]] = []
        while len(answers) < 2:
            data, beside, _, _ = sock.recvmsg(65536, 4096)
            assert data, "the server closed the conversation"
            reader.feed(data, descriptors(beside))
            while (frame := reader.next()) is not None:
                answers.append(frame[0])
                for fd in frame[2]:
                    os.close(fd)
        return answers[1]


def _home(jails: Jails, _: Path) -> tuple[str, str]:
    return str(Path.home().resolve()), str(Path.home().resolve())


WRONG: dict[str, Callable[[Jails, Path], tuple[str, str]]] = {
    "the whole host": lambda jails, place: ("/", "/"),
    "the home directory": _home,
    "the data directory": lambda jails, place: (str(jails.home), str(jails.home)),
    "a part of it": lambda jails, place: (str(jails.home / "run"), str(jails.home / "run")),
    "what it lies in": lambda jails, place: (str(jails.home.parent), str(jails.home.parent)),
    "a place of the system": lambda jails, place: ("/etc", "/etc"),
    "a file": lambda jails, place: (str(place / "file"), str(place / "file")),
    "another path than the descriptor's": lambda jails, place: (str(place / "in"), str(place)),
    "a closed place under another path": lambda jails, place: (str(jails.home), str(place / "in")),
    "the kernel's processes": lambda jails, place: (f"/proc/{os.getpid()}", f"/proc/{os.getpid()}"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_descriptor_outside_the_rules_is_refused(
    shared: tuple[Jails, Server], place: Path, wrong: Callable[[Jails, Path], tuple[str, str]]
) -> None:
    jails, server = shared
    (place / "file").write_text("x")
    (place / "in").mkdir()
    before = len(_records(server))
    behind, named = wrong(jails, place)
    fd = os.open(behind, os.O_PATH)
    try:
        for writable in (False, True):
            said = _ordered(jails.home, _ask(["true"], directories=((named, writable),)), [fd])
            assert "refused" in said, said
    finally:
        os.close(fd)
    assert len(_records(server)) == before


def test_descriptors_and_directories_are_as_many(shared: tuple[Jails, Server], place: Path) -> None:
    jails, _ = shared
    fd = os.open(place, os.O_PATH)
    try:
        for fds in ([], [fd, fd]):
            said = _ordered(jails.home, _ask(["true"], directories=((str(place), False),)), fds)
            assert "one descriptor for each" in said["refused"]
        assert "refused" in _ordered(jails.home, _ask(["true"]), [fd])
        right = _ordered(jails.home, _ask(["true"], directories=((str(place), False),)), [fd])
        assert right == {"begun": True}
    finally:
        os.close(fd)


def test_a_directory_that_was_removed_or_mounted_elsewhere_is_refused(
    shared: tuple[Jails, Server], place: Path
) -> None:
    jails, _ = shared
    (place / "in").mkdir()
    fd = os.open(place / "in", os.O_PATH)
    (place / "in").rmdir()
    (place / "in").mkdir()  # another directory, at its path
    said = _ordered(jails.home, _ask(["true"], directories=((str(place / "in"), True),)), [fd])
    os.close(fd)
    assert "refused" in said
    if os.getuid() == 0:
        from skillyard.sandbox.native.linux import kernel

        mount = kernel.open_tree(str(place / "in"))  # a mount of nobody's namespace
        named = os.readlink(f"/proc/self/fd/{mount}")
        for path in (named, str(place / "in")):
            said = _ordered(jails.home, _ask(["true"], directories=((path, True),)), [mount])
            assert "refused" in said
        os.close(mount)


HUNT = """
import os, socket, sys
told = []
for top in ("/proc/self/root", "/proc/1/root", "/proc/1/cwd", ""):
    for path in sys.argv[1:]:
        try:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(5)
            sock.connect(top + path)
            told.append("REACHED " + sock.recv(100).decode("latin-1"))
        except OSError as error:
            told.append(type(error).__name__)
        try:
            os.open(top + path, os.O_PATH)
            told.append("SEEN")
        except OSError:
            pass
print(*told)
"""


@pytest.mark.parametrize("words", [(), ("--write",), ("--isolation", "landlock")], ids=" ".join)
def test_a_sandbox_reaches_no_door(shared: tuple[Jails, Server], place: Path, words: tuple[str, ...]) -> None:
    jails, _ = shared
    door = jails.home / "run" / SOCKET
    with suppress(OSError):
        os.link(door, place / "door")  # on the same file system as the directory that is shown
    grants = (*words, str(place)) if words == ("--write",) else words
    done = jails.run(*grants, "--", "python3", "-c", HUNT, str(door), str(place / "door"))
    assert done.returncode == 0, done.stderr
    assert b"REACHED" not in done.stdout
    if words == ("--isolation", "landlock"):
        assert _ALONE + b"the server refuses: isolation: must be one that policy.isolations offers" in done.stderr
    if not words:
        assert b"SEEN" not in done.stdout


def test_code_of_the_server_reaches_no_door(shared: tuple[Jails, Server]) -> None:
    jails, server = shared
    code = HUNT.replace("sys.argv[1:]", repr([str(jails.home / "run" / SOCKET)])).replace("print(*told)", "")
    indented = "\n".join("    " + line for line in code.splitlines())
    with server.client() as client:
        run = client.run_code(f"def main(args):\n{indented}\n    return told")
    assert run.status == "completed", run.error
    assert not any("REACHED" in word or word == "SEEN" for word in run.output)


def test_it_is_seen_in_metrics_and_by_doctor(shared: tuple[Jails, Server]) -> None:
    import httpx2

    jails, server = shared

    def held() -> str:
        headers = {"authorization": f"Bearer {server.token}"}
        text = httpx2.get(f"{server.url}/metrics", headers=headers, trust_env=False, timeout=BOUND_S).text
        return next(line for line in text.splitlines() if line.startswith("skillyard_jails "))

    until(lambda: held() == "skillyard_jails 0.0", "the end of those before")
    process, _ = _stubborn(jails)
    assert held() == "skillyard_jails 1.0"
    words = [sys.executable, "-m", "skillyard", "doctor", "--json"]
    told = subprocess.run(words, env=jails.env, capture_output=True, timeout=BOUND_S, check=False)
    assert json.loads(told.stdout)["jails"] == "run on the server of this data directory, which runs 1 now"
    process.terminate()
    process.wait(BOUND_S)
