"""The payload of the frame that reports an exception, and the last stack after a timeout.

The traceback shows the code of the run: our own frames and those of the import system are left out, and frames of
the standard library and of packages are counted, not shown (skills-protocol §4, row 12). The interpreter writes the
last stack within a signal, so that it shows code that never comes back from a loop or a library; a later program reads
it.
"""

from __future__ import annotations

import errno
import faulthandler
import json
import os
import re
import signal
import sys
from traceback import FrameSummary, TracebackException

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_TRACEBACK = 32 * 1024
MAX_MESSAGE = 8192
_HEAD = 8192
_MAX_NAME = 128

_OURS = os.path.dirname((lambda: None).__code__.co_filename) + os.sep  # bytecode has names of its own
_encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
_OUT_OF_MEMORY = b'{"type":"MemoryError","message":"","traceback":""}'
_OUTSIDE = {"'return' outside function": "def main(args)", "'await' outside function": "async def main(args)"}
_PACKAGES = "packages come by packages=[...] or environment=..., not by pip in a run"
_MOST_STACK = 16 * 1024
_THREADS = 5
_FRAMES = 30
_FRAME = re.compile(r'  File "([^"\n]*)", line (\d+) in (.*)')
_THREAD = re.compile(r"^(?:Current t|T)hread .*$", re.MULTILINE)
_CALLER = os.path.join(_OURS, "main.py")


def spelling(error: SyntaxError, source: str) -> str:
    """Returns the remedy for code of a chat or a notebook; empty for other code. Never raises."""
    try:
        return _spelling(error, source)
    except BaseException:  # noqa: BLE001 - code that runs may raise one with anything in it
        return ""


def _spelling(error: SyntaxError, source: str) -> str:
    lines = source.splitlines()
    for number, line in enumerate(lines if "```" in source else (), 1):
        if line.lstrip().startswith("```"):
            return f"line {number} of the code is a Markdown fence: send the Python source without ```"
    if error.msg in _OUTSIDE:
        return f"put it into {_OUTSIDE[error.msg]}, which is called"
    at = error.lineno or 0
    if 0 < at <= len(lines) and lines[at - 1].lstrip().startswith(("!", "%")):
        return f"line {at} of the code is a command of notebooks: send plain Python; {_PACKAGES}"
    return ""


def mend(error: BaseException) -> str:
    """Returns the remedy of an exception that says too little; empty for the others. Never raises."""
    try:
        return _mend(error)
    except BaseException:  # noqa: BLE001 - foreign code may have changed all that is asked here
        return ""


def _mend(error: BaseException) -> str:
    kind, place = type(error), _raised_in(error)
    if kind is EOFError:
        return "standard input is empty: pass values in args"
    if kind is FileNotFoundError and not place.endswith("subprocess.py"):
        return "a run has no files of yours: name blobs in input_blobs and read /blobs/<id>; write to /workspace/out"
    if kind is OSError and getattr(error, "errno", 0) == errno.EROFS:
        return "only /workspace and /tmp can be written; files in /workspace/out come back"
    if kind is SystemExit and place.endswith("argparse.py"):
        return "a run has no command line: define main(args) and take values from there"
    if kind is KeyError and place.endswith(("<frozen os>", "/os.py")):
        return "a run has none of your variables: pass values in args"
    if kind.__name__ == "CalledProcessError" and {"pip", "install"} <= set(_words(error.cmd)):  # type: ignore[attr-defined]
        return _PACKAGES
    return ""


def _raised_in(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else trace.tb_frame.f_code.co_filename


def _words(command: object) -> list[str]:
    if type(command) is str:
        return command.split()
    return [word for word in command if type(word) is str] if type(command) in (list, tuple) else []  # type: ignore[attr-defined]


def describe(error: BaseException, libraries: Iterable[str] = (), hint: str = "") -> bytes:
    """The payload of an X frame. Never raises, whatever the exception's own methods do.

    ``libraries`` are the directories that hold no code of the run; ``hint`` is put behind the message.
    """
    roots = tuple(os.path.join(path, "") for path in libraries if path)
    for attempt in (_whole, _bare):
        try:
            return attempt(error, roots, hint)
        except MemoryError:
            error.__traceback__ = error.__context__ = error.__cause__ = None  # lets go of what the frames hold
        except BaseException:  # noqa: BLE001, S112 - methods of foreign exceptions, and signals; the next is simpler
            continue
    return _OUT_OF_MEMORY


def _whole(error: BaseException, libraries: tuple[str, ...], hint: str) -> bytes:
    report: dict[str, object] = {
        "type": _type_name(error),
        "message": _message(error) + (f" ({hint})" if hint else ""),
        "traceback": _shorten(_traceback(error, libraries)),
    }
    if isinstance(error, OSError) and type(error.errno) is int:
        report["errno"] = error.errno
    return _encode(report).encode()


def _bare(error: BaseException, _: tuple[str, ...], __: str) -> bytes:
    return _encode({"type": _type_name(error), "message": "", "traceback": ""}).encode()


def _type_name(error: BaseException) -> str:
    name = str.__str__(type.__dict__["__name__"].__get__(type(error)))
    return name if len(name) <= _MAX_NAME else "Exception"


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        code = error.code
        text = str(code) if isinstance(code, str) else f"exit status {code or 0}"
    else:
        text = _string(error)
    return text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + "…"


def _string(error: BaseException) -> str:
    try:
        return str.__str__(str(error))
    except MemoryError:
        raise
    except BaseException:  # noqa: BLE001 - a foreign __str__ may raise anything, SystemExit too
        return "<its __str__ failed>"


def _traceback(error: BaseException, libraries: tuple[str, ...]) -> str:
    """Empty when no code of the run is in it."""
    report = TracebackException(type(error), error, error.__traceback__, limit=-200)
    for part in _chain(report):
        part.stack[:] = _without_libraries(part.stack, libraries)
    if isinstance(error, SyntaxError) or any(part.stack for part in _chain(report)):
        return "".join(report.format())
    return ""


def _chain(report: TracebackException) -> Iterator[TracebackException]:
    """The report and all it names: causes, contexts and the members of groups."""
    seen: set[int] = set()
    pending = [report]
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        pending.extend(other for other in (part.__cause__, part.__context__) if other is not None)
        pending.extend(getattr(part, "exceptions", None) or ())


def _without_libraries(stack: Iterable[FrameSummary], libraries: tuple[str, ...]) -> list[FrameSummary]:
    """Makes each run of library frames one line that names the innermost, and drops the first."""
    kept: list[FrameSummary] = []
    skipped: list[FrameSummary] = []
    for frame in stack:
        if frame.filename.startswith((_OURS, "<frozen ")):
            continue
        if frame.filename.startswith(libraries):
            skipped.append(frame)
            continue
        kept += _collapsed(skipped, libraries) if kept else []
        skipped.clear()
        kept.append(frame)
    return kept + _collapsed(skipped, libraries) if kept else []


def _collapsed(frames: list[FrameSummary], libraries: tuple[str, ...]) -> list[FrameSummary]:
    if not frames:
        return []
    last = frames[-1]
    root = max((path for path in libraries if last.filename.startswith(path)), key=len)
    name = last.name if len(frames) == 1 else f"{last.name} ({len(frames)} calls deep)"
    return [FrameSummary(f"<{last.filename[len(root) :]}>", last.lineno, name, lookup_line=False, line="")]


def _shorten(text: str) -> str:
    """Keeps whole lines of the head and of the tail: the host could not find a part of a secret. The host chooses how
    much of it is shown."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_TRACEBACK:
        return data.decode()
    mark = b"  ...\n"
    head = data[: data.rfind(b"\n", 0, _HEAD) + 1]
    tail = data[len(head) + len(mark) - MAX_TRACEBACK :]
    return (head + mark + tail.partition(b"\n")[2]).decode("utf-8", "replace")


def write_when_told(fd: int) -> None:
    """Makes SIGXCPU write the stacks to ``fd`` before it ends the process."""
    os.set_inheritable(fd, False)
    faulthandler.register(signal.SIGXCPU, file=fd, all_threads=True, chain=True)


def read_last(fd: int) -> str:
    """Returns the stacks as a traceback shows them, the main thread first; empty without any. The innermost call is
    last."""
    try:
        text = os.read(fd, _MOST_STACK).decode("utf-8", "replace")
    except OSError:
        return ""
    blocks = [
        block for part in re.split(r"^(?:Current t|T)hread .*$", text, flags=re.MULTILINE) if (block := _frames(part))
    ]
    # The signal goes to the main thread unless code has blocked it there, and the thread that got it comes last.
    return "".join(f"Stack (most recent call last):\n{block}" for block in reversed(blocks[-_THREADS:]))


def _frames(text: str) -> str:
    """Returns the frames of the run's own code and of its callees."""
    lines = []
    for match in filter(None, map(_FRAME.fullmatch, text.splitlines())):
        path, line, name = match.groups()
        if path == _CALLER:
            break
        if not path.startswith((_OURS, "<frozen ")):
            lines.append(f'  File "{_short(path)}", line {line}, in {name}\n')
    return "".join(reversed(lines[:_FRAMES]))


def _short(path: str) -> str:
    """Shortens a path as failure.py does for code that is not the run's."""
    roots = [f"{root}/" for root in sys.path if root and path.startswith(f"{root}/")]
    root = max(roots, key=len, default="")
    return f"<{path[len(root) :]}>" if root else path
