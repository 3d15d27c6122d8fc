"""A command that listens, inside: when it is ready, how it is started again, and what it tells."""

from __future__ import annotations

from typing import Any

import pytest

from skillyard.domain.sandbox.frames import FrameFault, FrameLimits, FrameReader, State
from skillyard.domain.work.service import Service
from tests.conformance.guest.conftest import GuestBox, Ran
from tests.conformance.guest.test_shell import apart, command

LISTENS = """
import os, socket, time
if not os.path.exists("begun"):
    open("begun", "w").close()
    raise SystemExit(3)
sock = socket.create_server(("127.0.0.1", int(os.environ["PORT"])), reuse_port=True)
state = lambda: [line for line in open("/proc/net/tcp") if f":{sock.getsockname()[1]:04X} 00000000" in line]
while not state():
    pass
time.sleep(3)
"""


def served(box: GuestBox, text: str, wanted: Service, **changes: Any) -> tuple[Ran, list[State]]:
    ran = command(box, text, service=wanted.stored(), **changes)
    told = [frame for frame in ran.frames if isinstance(frame, State)]
    assert told[::2] == told[1::2], "each is followed by one without a payload"
    return ran, told[::2]


def test_a_pattern_that_is_cut_by_the_output_says_that_it_is_ready(box: GuestBox) -> None:
    text = "printf 'Now liste'; sleep 0.2; echo 'ning on 8000'; sleep 0.1"
    ran, states = served(box, text, Service(ready_pattern=r"listening on \d+"))
    assert states == [State(ready=True, restarts=0, exit_code=None)]
    assert ran.value == {"exit_code": 0}


def test_without_pattern_and_ports_it_is_ready_at_once(box: GuestBox) -> None:
    assert served(box, "true", Service())[1] == [State(ready=True, restarts=0, exit_code=None)]


def test_one_that_fails_is_started_again_and_is_ready_when_its_port_listens(box: GuestBox, free_port: int) -> None:
    wanted = Service(ports=(free_port,), restart="on-failure", startup_s=50)
    ran, states = served(box, LISTENS, wanted, language="python", env={"PORT": str(free_port)})
    assert states == [State(ready=False, restarts=1, exit_code=3), State(ready=True, restarts=1, exit_code=3)]
    assert "it ended with exit code 3 and starts again in 1 s" in apart(ran)["stderr"]
    assert ran.value == {"exit_code": 0}


def test_one_that_never_restarts_tells_its_end(box: GuestBox) -> None:
    ran, states = served(box, "exit 3", Service(ready_pattern="up", restart="never"))
    assert (ran.value, states) == ({"exit_code": 3}, [])


@pytest.mark.parametrize(
    "wanted", [Service(ready_pattern="never said", startup_s=0.3), Service(ports=(1,), startup_s=0.3)]
)
def test_one_that_is_not_ready_in_time_is_ended_with_all_that_it_started(box: GuestBox, wanted: Service) -> None:
    ran, states = served(box, "(setsid sleep 100) & echo on; sleep 100", wanted)
    assert (ran.value["not_ready"], ran.value["exit_code"], states) == (True, 137, [])


def test_one_that_fails_until_it_is_late_is_not_ready(box: GuestBox) -> None:
    ran, _ = served(box, "exit 3", Service(ready_pattern="up", restart="on-failure", startup_s=1.5))
    assert ran.value == {"exit_code": 3, "not_ready": True}


def test_states_are_for_services_alone_and_bounded() -> None:
    frame = b"S\0\0\0\x24" + b'{"ready":true,"restarts":1,"exit":12}'.ljust(36)[:36]
    plain = FrameReader()
    plain.feed(frame)
    with pytest.raises(FrameFault, match="unknown type"):
        plain.finish()
    reader = FrameReader(FrameLimits(states=2))
    said = b'{"ready":1,"restarts":2,"exit_code":"x"}'
    whole = b"S" + len(said).to_bytes(4, "big") + said
    assert reader.feed(whole * 2) == [State(ready=False, restarts=2, exit_code=None)] * 2
    reader.feed(whole)
    with pytest.raises(FrameFault, match="more than 2 states"):
        reader.finish()
