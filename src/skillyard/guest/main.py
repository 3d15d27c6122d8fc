"""One run: the request in, the code called, the last frame out."""

from __future__ import annotations

import os
import select
import sys

from . import process
from .blobs import Blobs
from .call import Call, find, finished, forget_code, load_code, load_skill
from .errors import SandboxError, is_success
from .frames import Channel
from .imports import show_skills
from .output_files import make_place, send_left
from .result import encode, encoder, scan
from .runtime import publish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, NoReturn

__all__ = ["prepare", "reseed", "run", "serve"]

MAX_RESULT_BYTES = 16 * 1024 * 1024
WORKSPACE = "/workspace"

_USES = {
    "numpy": "numpy.array(args['xs']).sum()",
    "pandas": "pandas.Series(args['xs']).sum()",
}
"""The first steps of most programs with a package. They import nothing more, print nothing, and draw no random
number."""
_USE = "    try:\n        import {name}\n        {step}\n    except BaseException:\n        pass\n"


def _rehearsal() -> bytes:
    """Returns a request for the working directory, which also uses what was imported ahead."""
    uses = "".join(_USE.format(name=name, step=step) for name, step in _USES.items() if name in sys.modules)
    return _encode(
        {
            "code": f"import json\n\ndef main(args):\n{uses}"
            "    return {'sum': sum(args['xs']), 'text': json.dumps(args)}\n",
            "args": {"xs": [1, 2.5], "text": "é"},
            "skill": None,
            "skills": {},
            "entrypoint": "main",
            "blobs": {},
            "blob_prefix": "blob:0-",
            "env": {},
            "workspace": ".",
            "files": {"count": 0, "each_bytes": 0, "bytes": 0},
        }
    ).encode()


_WARM_UPS = 24
"""More than the calls after which an interpreter has specialised a function."""
_REHEARSE_AFTER_S = 0.02
"""A request that comes sooner is awaited: a rehearsal beside it takes as long as it saves."""
_NOWHERE = "/proc/self/fdinfo"
"""A working directory in which nothing can be made or removed."""

_encode = encoder()
_exit = os._exit  # foreign code may replace what it finds in os
_setrecursionlimit, _RECURSION = sys.setrecursionlimit, sys.getrecursionlimit()


def prepare(ahead: bool = False, *, warm_up: bool = True) -> None:
    """Does once, before a warm interpreter forks, the work that every run would do alike. ``ahead`` says whether it has
    imported modules that are not ours, ``warm_up`` that enough forks follow to make runs of our own for them."""
    import_all()
    if ahead:
        _others["randomness"].remember()
    process.open_stdio()
    process.reset_signals()
    process.size_threads()
    if warm_up:
        _warm_up()
    guest = _Guest()
    _hidden.update(process.hide(guest.hidden))
    guest.hidden = []
    guest.rehearsal = _rehearsal()
    _warm.append(guest)


def import_all() -> None:
    """Imports what requests to run code do without, and what tells of failures."""
    from . import clearing, failure, randomness, shell
    from .programs import interpreter, tools

    for module in (clearing, failure, randomness, shell, interpreter, tools):
        _others[module.__name__.rpartition(".")[2]] = module


def reseed() -> None:
    """Gives this fork of a warm interpreter random numbers of its own."""
    _others["randomness"].reseed()


def _warm_up() -> None:
    """Makes whole runs of our own, after which the interpreter is as it was but for its caches.

    Each run would otherwise specialise bytecode, bind symbols and fill caches on pages that it must copy first.
    """
    try:
        before = os.getcwd()
        os.chdir(_NOWHERE)
    except OSError:  # a ground that shows no /proc
        return
    path, finders, argv, modules = list(sys.path), list(sys.meta_path), sys.argv, dict(sys.modules)
    nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    request = _rehearsal()
    for _ in range(_WARM_UPS):
        guest = _Guest()
        guest.hidden = []
        guest.open(nothing)
        guest.run(request)
        forget_code()
        sys.path[:], sys.meta_path[:], sys.argv = path, finders, argv
    os.close(nothing)
    os.chdir(before)
    for name in sys.modules.keys() - modules.keys():
        if name.partition(".")[0] not in _USES:  # a package keeps the parts that it has
            del sys.modules[name]
    sys.modules.update(modules)


def serve(
    request_fd: int,
    channel_fd: int,
    stack_fd: int = -1,
    spared: frozenset[int] = frozenset(),
    end: bytes = b"",
) -> bool:
    """Reads a request up to end of file and runs it. Both may be one socket. Never raises. The last stack is written to
    ``stack_fd``, and read there by a request that collects another's files. A request that clears the sandbox takes the
    processes ``spared`` for kept ones. ``end`` goes with the last frame; returns whether both were sent.

    Without a request nothing happens: nobody wants this process any more.
    """
    try:
        if stack_fd >= 0:
            if not _others:
                import_all()
            _others["failure"].write_when_told(stack_fd)
        if _warm:
            _warm[0].open(channel_fd)
            if not select.select([request_fd], [], [], _REHEARSE_AFTER_S)[0]:
                _warm[0].rehearse()
        request = _read_all(request_fd)
    except OSError as error:
        sys.stderr.write(f"the request cannot be read: {error}\n")
        return False
    guest = _warm[0] if _warm else _begin(request, channel_fd)
    guest.stack_fd, guest.spared, guest.end = stack_fd, spared, end
    if request:
        _run(guest, request)
    return guest.finished


def run(request_bytes: bytes, channel_fd: int) -> None:
    """Run a request and write its frames; stdout and stderr are flushed. Never raises, and does not exit."""
    _run(_begin(request_bytes, channel_fd), request_bytes)


def _run(guest: _Guest, request: bytes) -> None:
    try:
        guest.run(request)
    except BaseException:  # noqa: BLE001 - foreign code broke what ours needs: it has no result, as if it had exited
        return


def _begin(request: bytes, channel_fd: int) -> _Guest:
    read = None if _warm else _read_early(request)
    guest = _warm[0] if _warm else _Guest()
    guest.open(channel_fd)
    guest.read = read
    return guest


def _read_early(request: bytes) -> dict[str, Any] | None:
    """Returns a request whose modules are imported; None for one that is not to be understood."""
    try:
        read = _read(request)
        if read.get("op", "call") != "call" or read.get("tools"):
            import_all()
    except Exception:  # noqa: BLE001 - the run tells it
        return None
    return read


def _read_all(fd: int) -> bytes:
    pieces = []
    while piece := os.read(fd, 1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def _read(request: bytes) -> dict[str, Any]:
    """Returns the request. Raises ValueError."""
    text = request.decode()
    try:
        value, end = scan(text, 0)
    except (StopIteration, SystemError):
        raise ValueError("it is not JSON") from None
    if end != len(text):
        raise ValueError("it has something behind its end")
    return value  # type: ignore[no-any-return]


class _Guest:
    """A guest. A warm interpreter makes it once, ahead of request and channel."""

    def __init__(self) -> None:
        self._channel = Channel()
        self._blobs = Blobs(self._channel)
        self._libraries = list(sys.path)
        self.hidden = process.our_modules()
        """Names that foreign code does not find among the modules."""
        self._hint = ""
        self._as_script = False
        self.rehearsal = b""
        self.read: dict[str, Any] | None = None
        """The next request, where it was read already."""
        self.stack_fd = -1
        self.spared: frozenset[int] = frozenset()
        self.end = b""
        self.finished = False
        self._notes: dict[str, object] = {}
        self._request: dict[str, Any] = {}
        self._workspace = WORKSPACE
        publish(self._blobs)

    def open(self, channel_fd: int) -> None:
        self._channel.open(channel_fd)
        ours = process.be_plain(self.hidden)
        if not _others:
            self._late = process.Late(ours, self._libraries)

    def rehearse(self) -> None:
        """Makes a whole run of our own while the request is awaited.

        It copies the memory pages of the warm interpreter that the real run will touch, each of which costs
        microseconds. The real run replaces all that it leaves.
        """
        path, finders, argv, channel = list(sys.path), list(sys.meta_path), sys.argv, self._channel
        nothing = os.open(os.devnull, os.O_WRONLY)
        self._channel = Channel()
        self._channel.open(nothing)
        self.run(self.rehearsal)
        os.close(nothing)
        forget_code()
        sys.path[:], sys.meta_path[:], sys.argv = path, finders, argv
        self._channel, self._hint, self._notes, self._request = channel, "", {}, {}
        self._workspace, self.finished = WORKSPACE, False

    def run(self, request_bytes: bytes) -> None:
        try:
            kind, payload = b"R", self._perform(request_bytes)
        except BaseException as error:  # noqa: BLE001 - whatever ends the code is reported
            _setrecursionlimit(_RECURSION)
            if not self._channel.is_ours():
                self._leave_child(error)
            if is_success(error):
                kind, payload = b"R", b"{}"
                self._notes.update({"script": True} if self._as_script else {})
            else:
                kind, payload = b"X", self._described(error)
        process.flush_stdio()
        if not self._channel.is_ours():
            _exit(0)
        self._send_left()
        try:
            self._channel.finish(kind, payload, _encode(self._notes).encode() if self._notes else b"", self.end)
            self.finished = True
        except OSError as error:
            sys.stderr.write(f"the result cannot be sent: {error}\n")

    def _perform(self, request_bytes: bytes) -> bytes:
        try:
            request, workspace = self._take(request_bytes)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise SandboxError(f"the guest cannot use its request: {type(error).__name__}: {error}") from None
        del request_bytes
        if request.get("op") == "collect":
            if last := _others["failure"].read_last(self.stack_fd):
                self._notes["stack"] = last
            return b"{}"
        if request.get("op") == "clear":
            return _encode({"left": _others["clearing"].clear(workspace, self.spared)}).encode()
        if request.get("op") == "stay":
            process.stay()
        if request.get("op") == "interpreter":
            _others["interpreter"].lead(request, workspace, self._libraries)
        if request.get("op") == "cell":
            _others["interpreter"].run_cell(request, self._channel)
        if request.get("op") == "command":
            return _encode(_others["shell"].run(request, workspace, self._blobs, self._tell)).encode()
        max_bytes = request.get("max_result_bytes", MAX_RESULT_BYTES)
        source = request["code"]
        entrypoint, args = request["entrypoint"], request.pop("args")
        self._as_script = entrypoint is None
        if source is None:
            module = load_skill(request["skill"])
        else:
            try:
                module = load_code(source, workspace, script=entrypoint is None)
            except SyntaxError as error:
                self._hint = self._failure().spelling(error, source)
                raise
        function = find(module, entrypoint)
        if function is None:
            self._notes["script"] = True
            return b"{}"
        self._as_script = False
        call = Call(function, args)
        self._hint = call.hint
        value = finished(call.make())
        _setrecursionlimit(_RECURSION)
        return encode(value, max_bytes)

    def _failure(self) -> Any:
        return _others.get("failure") or self._late.module("failure")

    def _described(self, error: BaseException) -> bytes:
        """Returns the report of a failure, however little of it can be told."""
        try:
            failure = self._failure()
            return bytes(failure.describe(error, self._libraries, self._hint or failure.mend(error)))
        except BaseException:  # noqa: BLE001 - foreign code left no room for an import
            return process.bare(error)

    def _leave_child(self, error: BaseException) -> NoReturn:
        """A process that the code forked has come back from its function: it ends as a script does."""
        code: object = 1
        if isinstance(error, SystemExit):
            code = error.code or 0
        else:
            sys.stderr.write(scan(self._described(error).decode(), 0)[0]["traceback"])
        process.flush_stdio()
        _exit(code & 0xFF if isinstance(code, int) else 1)

    def _tell(self, state: dict[str, object]) -> None:
        self._channel.send(b"S", _encode(state).encode())
        self._channel.send(b"S")  # the last five bytes of a channel wait for those behind them

    def _send_left(self) -> None:
        """Sends the files. The result is sent whatever foreign code made of the modules that this needs."""
        try:
            send = send_left if self._request.get("command") is None else _others["shell"].send_outputs
            self._notes.update(send(self._workspace, self._request, self._blobs))
        except BaseException:  # noqa: BLE001
            return

    def _take(self, request_bytes: bytes) -> tuple[dict[str, Any], str]:
        """The request, and the working directory, which is entered."""
        request, self.read = self.read or _read(request_bytes), None
        workspace = request.get("workspace", WORKSPACE)
        try:
            os.chdir(workspace)
        except PermissionError:  # an earlier program of a session left it so
            os.chmod(workspace, 0o700)
            os.chdir(workspace)
        show_skills(request)
        if request.get("tools"):
            _others["tools"].show_tools(request["tools"])
        for name, value in request["env"].items():
            os.environ[name] = value
        self._blobs._mount(request)
        if request.get("files") and request.get("command") is None:
            make_place(workspace)
        self._request, self._workspace = request, workspace
        return request, workspace


_warm: list[_Guest] = []
_others: dict[str, Any] = {}
"""The modules that :func:`import_all` imports, by their last names."""
_hidden: dict[str, ModuleType] = {}
"""Our modules, which live on when they are not among the modules any more."""
