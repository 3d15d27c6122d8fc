"""Attacks on the server by forged frames, and by results, logs and blobs that cost too much."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

from skillyard.testing.attacks.attack import CONTAINED, Family, Judgement, broken, escaped
from skillyard.verify.site import Site

CHANNEL = Family("channel", invariants=(7,))

_FIND = """
named = [word for word in open("/proc/self/cmdline").read().split(chr(0)) if word[:3] == "fd:"]
CHANNEL = int(named[-1][3:]) if named else 3  # an agent names the request and the channel in the guest's words
"""
_FRAMES = (
    _FIND
    + r"""
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
        view = view[os.write(CHANNEL, view):]
armed()
write({FRAMES})
os._exit(0)
"""
)

_LIES = {"SandboxError", "OutputNotSerializable", "OutputTooLarge", "PolicyRefused", "output", "SystemExit", "exit"}


def _forges(name: str, tries: str, *lies: str) -> None:
    """Adds an attack of one run for each of ``lies``.

    A lie is an expression for the bytes that the program writes to its channel; none may pass for a result.
    """

    async def steps(site: Site) -> Judgement:
        for lie in lies:
            run = await site.attack(_FRAMES.replace("{FRAMES}", lie))
            if run.ok:
                return escaped(f"accepted {lie[:80]}")
            if not run.armed or run.ends.isdisjoint(_LIES):
                return broken(f"{lie[:80]}: {run.why}")
        return CONTAINED

    CHANNEL.steps(name, tries, steps)


_forges(
    "garbage", "Answer with bytes that mean nothing: zeros, unknown frames, a pickle, random bytes.",
    "b'\\0' * 100", "frame(b'Q', b'{}')", "frame(b'R', __import__('pickle').dumps({'a': 1}))", "os.urandom(4096)",
    "b'HTTP/1.1 200 OK\\r\\n\\r\\n'",
)  # fmt: skip
_forges(
    "lengths", "Announce more than is sent, or than anybody may send.",
    "b'R' + b'\\xff' * 4", "b'D' + b'\\xff' * 4", "frame(b'R', b'{}')[:-1]",
    "frame(b'X', b'{\"message\": \"' + b'x' * (1 << 20) + b'\"}')", "frame(b'R', b'[' + b' ' * (17 << 20) + b']')",
    "frame(b'B', b'{' + b' ' * 8192 + b'}')",
)  # fmt: skip
_forges(
    "order", "Break the order of frames: two results, blobs after the result, data for blobs that do not exist.",
    "frame(b'R', b'{}') * 2", "frame(b'R', b'{}') + begin(1)", "piece(7, b'x')", "end(7, 0)",
    "begin(1) + end(1, 0) + begin(1)", "begin(2) + begin(1)", "begin(1) + piece(1, b'abc') + end(1, 2)",
    "b''.join(begin(n) for n in range(1, 2000))",
)  # fmt: skip
_forges(
    "headers", "Put wrong types, line breaks, paths and negative numbers where the server reads names and numbers.",
    "begin(-1)", "begin('1')", "begin(1.5)", "begin(True)", "begin(2**63)", "begin(1, 'text/plain\\r\\nX-Evil: 1')",
    "begin(1, '../../etc/passwd')", "begin(1, 'a' * 300)", "frame(b'B', b'[' * 4000)", "frame(b'E', b'[]')",
)  # fmt: skip
_forges(
    "values", "Return what is no value: numbers out of range, broken text, arrays, nothing at all.",
    "frame(b'R', b'{\"a\": NaN}')", "frame(b'R', b'{\"a\": 1e999}')", "frame(b'R', b'[1]')", "frame(b'R', b'')",
    "frame(b'R', b'{\"a\": \"\\xff\"}')", "frame(b'R', b'{\"a\": ' + b'9' * 100000 + b'}')", "b''",
    "frame(b'R', b'{\"a\":' + b'[' * 100000 + b']' * 100000 + b'}')", "b'Z\\0\\0\\0\\0'",
)  # fmt: skip


async def _identity(site: Site) -> Judgement:
    """A run may answer anything about itself; the record must not believe it."""
    lie = (
        "frame(b'R', json.dumps({'run_id': 'run_' + '0' * 32, 'status': 'completed', 'output': {'x': 1},"
        " 'enforced': {}, 'output_blobs': ['blob:' + 'f' * 32], 'error': None, 'usage': {'cpu_ms': 0}}).encode())"
    )
    run = await site.attack(_FRAMES.replace("{FRAMES}", lie))
    run.given()
    if run.run.run_id == "run_" + "0" * 32 or run.run.output_blobs or not run.raw.get("enforced"):
        return escaped("the run's own words became its record")
    return CONTAINED


CHANNEL.steps("identity", "Say that it is another run, with other blobs and walls.", _identity, invariants=(7, 9))


async def _claims_blobs(site: Site) -> Judgement:
    """Ids of blobs are the server's: a run cannot name one."""
    wanted = "blob:" + "a" * 32
    lie = (
        f'begin(1) + piece(1, b\'forged\') + frame(b\'E\', b\'{{"n": 1, "size": 6, "blob_id": "{wanted}"}}\')'
        f" + frame(b'R', b'{{\"a\": 1}}')"
    )
    run = await site.attack(_FRAMES.replace("{FRAMES}", lie))
    if run.ok and wanted in run.run.output_blobs:
        return escaped("a run chose the id of its blob")
    return CONTAINED if run.ok or run.ends & _LIES else broken(run.why)


CHANNEL.steps("blob-ids", "Write a blob under an id of its own choice.", _claims_blobs, invariants=(9,))

CHANNEL.program(
    "descriptors",
    "Send open descriptors over the channel to the server, and fill its table with them.",
    _FIND
    + dedent("""
    import array, stat
    if not stat.S_ISSOCK(os.fstat(CHANNEL).st_mode):  # a pipe takes none
        armed()
        os._exit(0)
    channel = socket.socket(fileno=os.dup(CHANNEL))
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
    """),
    ends=("SandboxError", "exit", "SystemExit", "OutputNotSerializable"),
)


async def _deaf(site: Site) -> Judgement:
    """The program never answers, keeps the channel open in a child, and leaves."""
    run = await site.attack(
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
    if not run.armed:
        return broken(run.why)
    return CONTAINED if (run.wall_ms or 0) < 7000 else escaped(f"it was waited for {run.wall_ms:.0f} ms")


CHANNEL.steps("deaf", "Leave without an answer while a child holds the channel open.", _deaf)

RESULTS = Family("results", invariants=(7,))

MAX_OUTPUT = 4096


def _too_much(name: str, tries: str, body: str, **options: Any) -> None:
    """Adds an attack: the run must fail, or its value must be replaced by something small."""

    async def steps(site: Site) -> Judgement:
        run = await site.attack("armed()\n" + body, memory_mb=384)
        if not run.ok:
            fits = run.armed and run.ends - {"timeout", "lost", "SandboxLost"}
            return CONTAINED if fits else broken(run.why)
        size = len(str(run.output))
        return CONTAINED if size <= 2 * MAX_OUTPUT else escaped(f"an output of {size} characters came back")

    RESULTS.steps(name, tries, steps, **options)


_too_much("size", "Return a value of twenty megabytes.", "return {'a': 'x' * (20 << 20)}", alone=True)
_too_much(
    "depth", "Return a value nested four hundred deep, which other parsers may not take.",
    "value = {}\nfor _ in range(400):\n    value = {'a': value}\nreturn {'deep': value, 'wide': 'x' * 9000}",
)  # fmt: skip
_too_much("width", "Return half a million small containers.", "return {'a': [[] for _ in range(500_000)]}", alone=True)
_too_much("digits", "Return a number of a hundred thousand digits.", "return {'a': 10 ** 100_000}")
_too_much(
    "keys", "Return a value with a hundred thousand keys that are long.",
    "return {('k' * 50) + str(n): n for n in range(100_000)}",
)  # fmt: skip
_too_much(
    "exception", "Raise an exception whose message and traceback are megabytes long.",
    "def deep(n):\n    return deep(n - 1) if n else [][1]\ntry:\n    deep(900)\n"
    "except IndexError as error:\n    raise ValueError('x' * (8 << 20)) from error",
)  # fmt: skip
_too_much(
    "evil-types", "Return and raise objects whose methods lie, loop or raise.",
    "class Evil(dict):\n    def items(self):\n        raise SystemExit(0)\n    def __len__(self):\n        return -1\n"
    "class Bad(Exception):\n    def __str__(self):\n        raise self\n    __repr__ = __str__\n"
    "if os.getpid() % 2:\n    return Evil(a=1)\nraise Bad()",
)  # fmt: skip


async def _calm(site: Site) -> Judgement:
    """Text that steers terminals and parsers comes back as bounded text."""
    run = await site.attack(
        """
        sys.stdout.buffer.write(b"\\x1b]0;owned\\x07\\x1b[2J\\xff\\xfe\\x00<script>\\r\\n")
        sys.stdout.flush()
        return {"a": "\\ud800\\udfff", "__proto__": {"x": 1}, "$ref": "file:///etc/passwd",
                "summary": "\\x1b[2Jx" * 9999}
        """
    )
    if not run.ok and "OutputNotSerializable" not in run.ends:
        return broken(run.why)
    size = len(run.run.summary)
    return escaped(f"a summary of {size} characters") if size > 4096 else CONTAINED


RESULTS.steps("text", "Return text that steers terminals, breaks encodings or points to files.", _calm)


def _blobs(name: str, tries: str, body: str) -> None:
    async def steps(site: Site) -> Judgement:
        run = await site.attack("from runtime import blobs\narmed()\n" + body)
        if run.ok:
            return escaped(f"{len(run.run.output_blobs)} blobs were taken")
        return CONTAINED if run.armed else broken(run.why)

    RESULTS.steps(name, tries, steps)


_blobs("blob-count", "Write fifteen hundred blobs.", "for n in range(1500):\n    blobs.write_text(str(n))\nreturn {}")
_blobs(
    "blobs-at-once",
    "Begin a hundred blobs and end none.",
    "held = [blobs.writer() for _ in range(100)]\nfor one in held:\n    one.write(b'x')\nreturn {'held': len(held)}",
)


async def _log_order(site: Site) -> Judgement:
    """A log that pretends to be the server's stays the run's."""
    run = await site.attack(
        "print('\\n'.join('{\"status\": \"completed\"}' for _ in range(2000)))\narmed()\nos._exit(5)"
    )
    if run.ok:
        return escaped("a log passed for a result")
    return CONTAINED if run.ends & {"exit", "SystemExit"} else broken(run.why)


RESULTS.steps("log-forgery", "Print what looks like the server's own answer, and leave.", _log_order)
