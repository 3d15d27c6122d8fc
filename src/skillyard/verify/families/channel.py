"""The channel on which a run answers belongs to foreign code: forged frames must neither harm nor deceive."""

from __future__ import annotations

from skillyard.verify.attack import CONTAINED, Judgement, broken, escaped
from skillyard.verify.judge import ending, told
from skillyard.verify.make import Family
from skillyard.verify.prelude import ARMED
from skillyard.verify.yard import Yard

FAMILY = Family("channel", invariants=(7,))

_FRAMES = r"""
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
armed()
write({FRAMES})
os._exit(0)
"""

_LIES = {"SandboxError", "OutputNotSerializable", "OutputTooLarge", "PolicyRefused", "output", "SystemExit", "exit"}


def _forges(name: str, tries: str, *lies: str, invariants: tuple[int, ...] = (7,)) -> None:
    """Each of ``lies`` is an expression for the bytes of one run; none may pass for a result."""

    async def steps(yard: Yard) -> Judgement:
        for lie in lies:
            run = await yard.attack(_FRAMES.replace("{FRAMES}", lie))
            if run.ok:
                return escaped(f"accepted {lie[:80]}")
            if ARMED not in run.logs_preview or not ending(run) & _LIES:
                return broken(f"{lie[:80]}: {told(run)}")
        return CONTAINED

    FAMILY.steps(name, tries, steps, invariants=invariants)


_forges(
    "garbage", "Answer with bytes that mean nothing: zeros, unknown frames, a pickle, random bytes.",
    "b'\\0' * 100", "frame(b'Q', b'{}')", "frame(b'R', __import__('pickle').dumps({'a': 1}))", "os.urandom(4096)",
    "b'HTTP/1.1 200 OK\\r\\n\\r\\n'",
)  # fmt: skip
_forges(
    "lengths", "Announce more than is sent, or than anybody may send.",
    "b'R' + b'\\xff' * 4", "b'D' + b'\\xff' * 4", "frame(b'R', b'{}')[:-1]",
    "frame(b'X', b'{\"message\": \"' + b'x' * (1 << 20) + b'\"}')", "frame(b'B', b'{' + b' ' * 8192 + b'}')",
)  # fmt: skip
_forges(
    "order", "Break the order of frames: two results, blobs after the result, data for blobs that do not exist.",
    "frame(b'R', b'{}') * 2", "frame(b'R', b'{}') + begin(1)", "piece(7, b'x')", "end(7, 0)",
    "begin(1) + end(1, 0) + begin(1)", "begin(2) + begin(1)", "begin(1) + piece(1, b'abc') + end(1, 2)",
)  # fmt: skip
_forges(
    "headers", "Put wrong types, line breaks, paths and negative numbers where the server reads names and numbers.",
    "begin(-1)", "begin('1')", "begin(1.5)", "begin(True)", "begin(2**63)", "begin(1, 'text/plain\\r\\nX-Evil: 1')",
    "begin(1, '../../etc/passwd')", "begin(1, 'a' * 300)", "frame(b'B', b'[' * 4000)", "frame(b'E', b'[]')",
)  # fmt: skip
_forges(
    "values", "Return what is no value: numbers out of range, broken text, arrays, nothing at all.",
    "frame(b'R', b'{\"a\": NaN}')", "frame(b'R', b'{\"a\": 1e999}')", "frame(b'R', b'[1]')", "frame(b'R', b'')",
    "frame(b'R', b'{\"a\": \"\\xff\"}')", "frame(b'R', b'{\"a\": ' + b'9' * 100000 + b'}')", "b''", "b'Z\\0\\0\\0\\0'",
)  # fmt: skip


async def _identity(yard: Yard) -> Judgement:
    """It may answer what it likes about itself; the record must not believe it."""
    lie = (
        "frame(b'R', json.dumps({'run_id': 'run_' + '0' * 32, 'status': 'completed', 'output': {'x': 1},"
        " 'enforced': {}, 'output_blobs': ['blob:' + 'f' * 32], 'error': None, 'usage': {'cpu_ms': 0}}).encode())"
    )
    run = await yard.attack(_FRAMES.replace("{FRAMES}", lie))
    if not run.ok:
        return broken(told(run))
    if run.run_id == "run_" + "0" * 32 or run.output_blobs or not run.raw.get("enforced"):
        return escaped("the run's own words became its record")
    return CONTAINED


FAMILY.steps("identity", "Say that it is another run, with other blobs and walls.", _identity, invariants=(7, 9))


async def _claims_blobs(yard: Yard) -> Judgement:
    """Ids of blobs are the server's: a run cannot name one."""
    wanted = "blob:" + "a" * 32
    lie = (
        f'begin(1) + piece(1, b\'forged\') + frame(b\'E\', b\'{{"n": 1, "size": 6, "blob_id": "{wanted}"}}\')'
        f" + frame(b'R', b'{{\"a\": 1}}')"
    )
    run = await yard.attack(_FRAMES.replace("{FRAMES}", lie))
    if run.ok and wanted in run.output_blobs:
        return escaped("a run chose the id of its blob")
    if not run.ok and not ending(run) & _LIES:
        return broken(told(run))
    return CONTAINED


FAMILY.steps("blob-ids", "Write a blob under an id of its own choice.", _claims_blobs, invariants=(9,))

FAMILY.program(
    "descriptors",
    "Send open descriptors over the channel to the server, and fill its table with them.",
    """
    import array
    channel = socket.socket(fileno=os.dup(3))
    fds = array.array("i", [os.open("/dev/null", os.O_RDONLY)] * 200)
    sent = 0
    channel.setblocking(False)
    for _ in range(3):
        try:
            channel.sendmsg([b"D"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        except OSError:
            break
        sent += 1
    armed()
    os._exit(0)
    """,
    ends=("SandboxError", "exit", "SystemExit", "OutputNotSerializable"),
)

FAMILY.program(
    "urgent-data",
    "Send data out of band, set options of the other end and attach filters to the channel.",
    """
    channel = socket.socket(fileno=os.dup(3))
    must_fail("urgent data", channel.send, b"x", 1, refused=("EOPNOTSUPP", "ENOTSUP", "EPERM"))
    one, two = socket.socketpair()
    must_fail("urgent data to itself", one.send, b"x", 1, refused=("EOPNOTSUPP", "ENOTSUP", "EPERM"))
    must_fail("another protocol above TCP", lambda: socket.socket().setsockopt(6, 31, b"tls"),
              refused=("EPERM", "ENOPROTOOPT", "EAFNOSUPPORT"))
    works("plain data", one.send, b"x")
    """,
    walls=("seccomp",),
)


async def _deaf(yard: Yard) -> Judgement:
    """It never answers, keeps the channel open in a child, and leaves."""
    run = await yard.attack(
        """
        if os.fork() == 0:
            os.setsid()
            time.sleep(30)
            os._exit(0)
        armed()
        os._exit(0)
        """,
        timeout_ms=8000,
    )
    if run.ok:
        return escaped("a run without a result passed for completed")
    wall = (run.raw.get("usage") or {}).get("wall_ms") or 0
    if ARMED not in run.logs_preview:
        return broken(told(run))
    return CONTAINED if wall < 7000 else escaped(f"it was waited for {wall:.0f} ms")


FAMILY.steps("deaf", "Leave without an answer while a child holds the channel open.", _deaf)
