"""``runtime.log``: lines on standard error with a level in front, and so in the run's logs."""

from __future__ import annotations

import sys


class Log:
    def debug(self, msg: object) -> None:
        _write("DEBUG", msg)

    def info(self, msg: object) -> None:
        _write("INFO", msg)

    def warning(self, msg: object) -> None:
        _write("WARNING", msg)

    def error(self, msg: object) -> None:
        _write("ERROR", msg)


def _write(level: str, msg: object) -> None:
    """One write for one line, behind what was printed before."""
    if sys.stdout is not None:
        sys.stdout.flush()
    if sys.stderr is not None:
        sys.stderr.write(f"{level}: {msg}\n")
