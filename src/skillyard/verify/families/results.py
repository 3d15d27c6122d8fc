"""Results, logs and blobs that are too large, too many, too deep, or made to cost."""

from __future__ import annotations

from skillyard.verify.attack import CONTAINED, Judgement, broken, escaped
from skillyard.verify.judge import ending, told
from skillyard.verify.make import Family
from skillyard.verify.prelude import ARMED
from skillyard.verify.yard import Yard

FAMILY = Family("results", invariants=(7,))

MAX_OUTPUT = 4096


def _too_much(name: str, tries: str, body: str, *, invariants: tuple[int, ...] = (7,), alone: bool = False) -> None:
    """The run fails, or what it returns is replaced by something small."""

    async def steps(yard: Yard) -> Judgement:
        run = await yard.attack("armed()\n" + body, memory_mb=384)
        if not run.ok:
            fits = ARMED in run.logs_preview and ending(run) - {"timeout", "lost", "SandboxLost"}
            return CONTAINED if fits else broken(told(run))
        size = len(str(run.output))
        return CONTAINED if size <= 2 * MAX_OUTPUT else escaped(f"an output of {size} characters came back")

    FAMILY.steps(name, tries, steps, invariants=invariants, alone=alone)


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


async def _calm(yard: Yard) -> Judgement:
    """Text that steers terminals and parsers comes back as bounded text."""
    run = await yard.attack(
        """
        sys.stdout.buffer.write(b"\\x1b]0;owned\\x07\\x1b[2J\\xff\\xfe\\x00<script>\\r\\n")
        sys.stdout.flush()
        return {"a": "\\ud800\\udfff", "__proto__": {"x": 1}, "$ref": "file:///etc/passwd",
                "summary": "\\x1b[2Jx" * 9999}
        """
    )
    if not run.ok and not ending(run) & {"OutputNotSerializable"}:
        return broken(told(run))
    return escaped(f"a summary of {len(run.summary)} characters") if len(run.summary) > 4096 else CONTAINED


FAMILY.steps("text", "Return text that steers terminals, breaks encodings or points to files.", _calm)


def _blobs(name: str, tries: str, body: str) -> None:
    async def steps(yard: Yard) -> Judgement:
        run = await yard.attack("from runtime import blobs\narmed()\n" + body)
        if run.ok:
            return escaped(f"{len(run.output_blobs)} blobs were taken")
        return CONTAINED if ARMED in run.logs_preview else broken(told(run))

    FAMILY.steps(name, tries, steps)


_blobs("blob-count", "Write fifteen hundred blobs.", "for n in range(1500):\n    blobs.write_text(str(n))\nreturn {}")
_blobs(
    "blobs-at-once",
    "Begin a hundred blobs and end none.",
    "held = [blobs.writer() for _ in range(100)]\nfor one in held:\n    one.write(b'x')\nreturn {'held': len(held)}",
)


async def _log_order(yard: Yard) -> Judgement:
    """A log that pretends to be the server's stays the run's."""
    run = await yard.attack(
        "print('\\n'.join('{\"status\": \"completed\"}' for _ in range(2000)))\narmed()\nos._exit(5)"
    )
    if run.ok:
        return escaped("a log passed for a result")
    return CONTAINED if ending(run) & {"exit", "SystemExit"} else broken(told(run))


FAMILY.steps("log-forgery", "Print what looks like the server's own answer, and leave.", _log_order)
