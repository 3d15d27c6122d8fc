"""The channel and the log belong to foreign code: nothing that comes out of them harms or deceives the server."""

from __future__ import annotations

import pytest

from skillyard import SyncRuntime
from tests.attacks.conftest import Attack

FRAMES = """
import json

def frame(kind, payload):
    return kind + len(payload).to_bytes(4, "big") + payload

def begin(n, kind="text/plain"):
    return frame(b"B", json.dumps({"n": n, "kind": kind}).encode())

def piece(n, data):
    return frame(b"D", n.to_bytes(4, "big") + data)

def end(n, size):
    return frame(b"E", json.dumps({"n": n, "size": size}).encode())

def write(data):
    view = memoryview(data)
    while view:
        view = view[os.write(3, view):]

write({ATTACK})
os._exit(0)
"""

MISUSES = {
    "zeros": "b'\\0' * 100",
    "an unknown type": "frame(b'Q', b'{}')",
    "a result of 4 GiB by its length": "b'R' + b'\\xff' * 4",
    "a result over the limit": "frame(b'R', b'[' + b' ' * (17 << 20) + b']')",
    "a failure over the limit": "frame(b'X', b'{\"message\": \"' + b'x' * (1 << 20) + b'\"}')",
    "a pickle": "frame(b'R', __import__('pickle').dumps({'a': 1}))",
    "two results": "frame(b'R', b'{}') * 2",
    "a blob after the result": "frame(b'R', b'{}') + begin(1)",
    "data of a blob that was never begun": "piece(7, b'x')",
    "an end of a blob that was never begun": "end(7, 0)",
    "a wrong size": "begin(1) + piece(1, b'abc') + end(1, 2)",
    "a blob begun twice": "begin(1) + end(1, 0) + begin(1)",
    "numbers that go back": "begin(2) + begin(1)",
    "a negative number": "begin(-1)",
    "a number that is a string": "begin('1')",
    "a kind with a line break": "begin(1, 'text/plain\\r\\nX-Evil: 1')",
    "a kind that is a path": "begin(1, '../../etc/passwd')",
    "blobs without end": "b''.join(begin(n) for n in range(1, 2000))",
    "a header too long": "frame(b'B', b'{' + b' ' * 8192 + b'}')",
    "a header nested deep": "frame(b'B', b'[' * 4000)",
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_ends_the_run(name: str, attack: Attack) -> None:
    run = attack(FRAMES.replace("{ATTACK}", MISUSES[name]))
    assert run["status"] == "failed", dict(run)
    assert run.error is not None
    assert run.error["type"] in ("SandboxError", "OutputNotSerializable")
    assert not run["output_blobs"] or name == "a blob begun twice"


RESULTS = {
    "nested deep": "frame(b'R', b'{\"a\":' + b'[' * 100000 + b']' * 100000 + b'}')",
    "not a number": "frame(b'R', b'{\"a\": NaN}')",
    "out of range": "frame(b'R', b'{\"a\": 1e999}')",
    "digits without end": "frame(b'R', b'{\"a\": ' + b'9' * 100000 + b'}')",
    "no object": "frame(b'R', b'[1]')",
    "not UTF-8": "frame(b'R', b'{\"a\": \"\\xff\"}')",
    "half a result": "frame(b'R', b'{}')[:-1]",
    "nothing": "b''",
    "only the end mark": "b'Z\\0\\0\\0\\0'",
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_bad_result_is_a_failure(name: str, attack: Attack) -> None:
    run = attack(FRAMES.replace("{ATTACK}", RESULTS[name]))
    assert run["status"] == "failed", dict(run)


def test_a_result_that_foreign_code_writes_itself_is_its_own(attack: Attack) -> None:
    run = attack(FRAMES.replace("{ATTACK}", "begin(1) + piece(1, b'abc') + end(1, 3) + frame(b'R', b'{\"a\": 1}')"))
    assert run.output == {"a": 1}
    assert len(run["output_blobs"]) == 1


def test_lone_surrogates_and_equal_keys_are_made_harmless(attack: Attack) -> None:
    run = attack(FRAMES.replace("{ATTACK}", """frame(b'R', b'{"a": "\\\\ud800", "a": "\\\\udfff"}')"""))
    assert run.output == {"a": "\ufffd"}


def test_a_run_cannot_say_which_run_it_is(runtime: SyncRuntime, attack: Attack) -> None:
    victim = runtime.create_blob("kept", "text/plain")["blob_id"]
    frames = f'begin(1) + piece(1, b\'forged\') + frame(b\'E\', b\'{{"n": 1, "size": 6, "blob_id": "{victim}"}}\')'
    run = attack(FRAMES.replace("{ATTACK}", frames + ' + frame(b\'R\', b\'{"run_id": "run_x", "status": "lost"}\')'))
    assert run.run_id != "run_x"
    assert victim not in run["output_blobs"]
    assert runtime.read_blob(victim)["preview"] == "kept"


@pytest.mark.parametrize("fd", [1, 2])
def test_a_flood_of_output_ends_the_run(fd: int, attack: Attack) -> None:
    run = attack(f"""
        print("first words", flush=True)
        while True:
            os.write({fd}, b"x" * (1 << 20))
    """)
    assert run["outcome"] == "output"
    assert run.logs_preview.startswith("first words")


def test_a_flood_by_those_who_are_left_ends_too(attack: Attack) -> None:
    run = attack("""
        for _ in range(4):
            if os.fork() == 0:
                os.setsid()
                while True:
                    os.write(1, b"x" * 65536)
        time.sleep(0.02)
        os._exit(3)
    """)
    assert run["status"] == "failed"
    assert run["usage"]["wall_ms"] < 15_000


def test_descriptors_sent_over_the_channel_reach_nobody(attack: Attack) -> None:
    run = attack("""
        channel = socket.socket(fileno=os.dup(3))
        sent = array.array("i", [os.open("/dev/null", os.O_RDONLY)] * 64)
        told = refusal(channel.sendmsg, [b"R"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])
        os.write(3, (2).to_bytes(4, "big") + b"{}")
        os._exit(0)
    """)
    assert run.output == {}


def test_who_is_at_the_other_end_cannot_be_reached(attack: Attack) -> None:
    run = attack("""
        channel = socket.socket(fileno=os.dup(3))
        pid, uid, gid = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        reached = []
        try:
            peer = struct.unpack("i", channel.getsockopt(socket.SOL_SOCKET, 77, 4))[0]  # SO_PEERPIDFD
        except OSError:
            peer = -1
        if peer >= 0:
            reached += [n for n in range(1, 11) if not refusal(fcntl.ioctl, peer, 0xFF00 | n, 0)]  # PIDFD_GET_*
            reached += [s for s in (0, signal.SIGTERM) if sys_call(424, peer, s, 0, 0) == 0]
        mine = os.pidfd_open(os.getpid())
        return {"pid": pid, "reached": reached, "twin": sys_call(424, mine, 0, 0, 0)}
    """)
    assert run.output == {"pid": 0, "reached": [], "twin": 0}
