"""The state of the process for foreign code: that of a plain interpreter just started."""

from __future__ import annotations

import _thread
import gc
import io
import os
import sys
from _json import encode_basestring_ascii

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import Any, NoReturn

    Handler = Callable[[int, Any], Any] | signal.Handlers | None
else:
    import _signal as signal  # whose names signal makes enumerations of, which takes longer than all else here

_OUR_PACKAGE = __name__.partition(".")[0]
_OTHERWISE: dict[int, Handler] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGPIPE: signal.SIG_IGN,
    signal.SIGXFSZ: signal.SIG_IGN,
}
_THREAD_STACK = 2 << 20
"""RLIMIT_DATA counts the whole of a stack however little of it is touched (getrlimit(2)), and the usual 8 MiB would
let no more than sixty threads start in 512 MiB."""
_UNCATCHABLE = (signal.SIGKILL, signal.SIGSTOP)
_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_STANDARD = sys.stdlib_module_names
_close, _path = os.close, sys.path  # foreign code may replace what it finds there


def open_stdio() -> None:
    """Opens stdout by lines and stderr unbuffered, in UTF-8: they keep their order in one pipe."""
    out = io.BufferedWriter(_raw(1, "wb", "<stdout>"))
    sys.stdin = sys.__stdin__ = _text(io.BufferedReader(_raw(0, "rb", "<stdin>")), "r")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text(out, "w", line_buffering=True)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text(_raw(2, "wb", "<stderr>"), "w", write_through=True)  # type: ignore[misc]


def _raw(fd: int, mode: str, name: str) -> io.FileIO:
    raw = io.FileIO(fd, mode, closefd=False)
    raw.name = name
    return raw


def _text(buffer: Any, mode: str, **options: bool) -> io.TextIOWrapper:
    errors = "backslashreplace" if buffer.name == "<stderr>" else "surrogateescape"
    text = io.TextIOWrapper(buffer, "utf-8", errors, newline="\n" if mode == "w" else None, **options)
    text.mode = mode  # type: ignore[misc]
    return text


def flush_stdio() -> None:
    """Flushes the streams. A stream that foreign code broke loses its text, and not the result."""
    for name in ("stdout", "__stdout__", "stderr"):
        try:
            stream = getattr(sys, name, None)
            if stream is not None:
                stream.flush()
        except BaseException:  # noqa: BLE001, S112 - a stream of foreign code may raise anything
            continue


def reset_signals() -> None:
    """Handlers and mask as a fresh interpreter has them."""
    for number in signal.valid_signals():
        if number not in _UNCATCHABLE:
            signal.signal(number, _OTHERWISE.get(number, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def size_threads() -> None:
    """Of the threads that code starts, unless it calls ``threading.stack_size`` itself."""
    _thread.stack_size(_THREAD_STACK)


def stay() -> NoReturn:
    """Does nothing for ever. Programs that are ended by their name are not this one."""
    try:
        with open("/proc/self/comm", "w") as name:
            name.write("sandbox-stays")
    except OSError:  # a ground that shows no /proc
        pass
    while True:
        signal.pause()


def our_modules() -> list[str]:
    """Returns the modules to hide from foreign code. The search touches every imported name."""
    return [name for name in sys.modules if name.partition(".")[0] == _OUR_PACKAGE]


def hide(names: list[str]) -> dict[str, ModuleType]:
    """Takes modules away from those that can be imported; returns them."""
    return {name: sys.modules.pop(name) for name in names if name in sys.modules}


def be_plain(hidden: list[str]) -> dict[str, ModuleType]:
    """Nothing of ours among the modules, which it returns, and a working garbage collector."""
    ours = hide(hidden) if hidden else {}
    gc.enable()
    os.umask(0o022)
    return ours


class Late:
    """Imports modules of ours behind foreign code, which may have put anything in their way.

    An interpreter that serves one request imports what tells of a failure when there is one. ``ours`` are the modules
    that are there, which foreign code does not find.
    """

    def __init__(self, ours: Mapping[str, ModuleType], libraries: Sequence[str]) -> None:
        self._ours, self._libraries = ours, libraries
        self._known: dict[str, Any] = {}

    def module(self, name: str) -> Any:
        """Returns a module of the guest. Raises whatever its import raises."""
        if name not in self._known:
            whole = f"{__package__}.{name}"
            try:
                self._known[name] = self._imported(whole)
            except OSError:  # the code took all descriptors: that of its input is enough
                _close(0)
                self._known[name] = self._imported(whole)
        return self._known[name]

    def _imported(self, whole: str) -> Any:
        modules, path = sys.modules, list(_path)
        aside = {each: module for each, module in list(modules.items()) if _stands_in_the_way(each, module)}
        try:
            for each in aside:
                del modules[each]
            modules.update(self._ours)
            _path[:] = self._libraries
            __import__(whole)
            return modules[whole]
        finally:
            _path[:] = path
            modules.update(aside)
            for each in [each for each in modules if each.partition(".")[0] == whole.partition(".")[0]]:
                del modules[each]


def _stands_in_the_way(name: str, module: object) -> bool:
    """Returns whether a module has the name of one of the standard library, and is another."""
    file = getattr(module, "__file__", None)
    return name.partition(".")[0] in _STANDARD and isinstance(file, str) and not file.startswith(_LIBRARY)


def bare(error: BaseException) -> bytes:
    """Returns the report of a failure of which nothing else can be told."""
    name = str.__str__(type.__dict__["__name__"].__get__(type(error)))
    return b'{"type":%s,"message":"","traceback":""}' % encode_basestring_ascii(name[:128]).encode()
