"""The state of the process for foreign code: that of a plain interpreter just started."""

from __future__ import annotations

import _thread
import gc
import io
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    Handler = Callable[[int, Any], Any] | signal.Handlers | None

_OUR_PACKAGE = __name__.partition(".")[0]
_OTHERWISE: dict[signal.Signals, Handler] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGPIPE: signal.SIG_IGN,
    signal.SIGXFSZ: signal.SIG_IGN,
}
_THREAD_STACK = 2 << 20
"""RLIMIT_DATA counts the whole of a stack however little of it is touched (getrlimit(2)), and the usual 8 MiB would
let no more than sixty threads start in 512 MiB."""
_UNCATCHABLE = (signal.SIGKILL, signal.SIGSTOP)


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
    for number in signal.Signals:
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


def hide(names: list[str]) -> list[object]:
    """Takes modules away from those that can be imported; returns them."""
    return [sys.modules.pop(name) for name in names if name in sys.modules]


def be_plain(hidden: list[str]) -> None:
    """Nothing of ours among the modules, and a working garbage collector."""
    if hidden:
        hide(hidden)
    gc.enable()
    os.umask(0o022)
