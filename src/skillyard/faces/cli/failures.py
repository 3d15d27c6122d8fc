"""Turns exceptions of commands into one line on standard error and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import click

from skillyard.client.errors import BadArgument, ConnectionFailed
from skillyard.domain.errors import SkillyardError


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    BAD_INPUT = 2
    NO_ACCESS = 3
    REFUSED = 4
    BUSY = 5
    INTERNAL = 70
    INTERRUPTED = 130


_MEANINGS = {
    Exit.OK: "done",
    Exit.FAILED: "the run failed, doctor found missing what policy demands, or the output cannot be written",
    Exit.BAD_INPUT: "usage or bad input",
    Exit.NO_ACCESS: "cannot connect, or no valid token",
    Exit.REFUSED: "refused: not allowed, or a protection is missing",
    Exit.BUSY: "too many runs at once, or the data directory is in use",
    Exit.INTERNAL: "internal error",
    Exit.INTERRUPTED: "interrupted; a run that is not detached was cancelled",
}

_BY_CODE = {
    -32700: Exit.BAD_INPUT,
    -32600: Exit.BAD_INPUT,
    -32601: Exit.BAD_INPUT,
    -32602: Exit.BAD_INPUT,
    -32001: Exit.NO_ACCESS,
    -32003: Exit.REFUSED,
    -32004: Exit.REFUSED,
    -32005: Exit.BUSY,
}

_BY_TYPE = {
    "CannotListen": Exit.BAD_INPUT,
    "DataDirUnusable": Exit.BAD_INPUT,
    "DataDirInUse": Exit.BUSY,
}

_SHORT = {
    errno.EMFILE: "raise the limit of open files: ulimit -n",
    errno.ENFILE: "the host has no descriptor left: raise fs.file-max",
    errno.EAGAIN: "no further process or thread may be started: raise ulimit -u, or end some",
    errno.ENOMEM: "there is no memory left",
    errno.ENOSPC: "a disk is full",
}

_MENDS = {
    "CannotListen": "choose another --host or --port; port 0 takes any that is free",
    "SkillNotFound": "`skillyard skill list` shows what there is",
    "BundleRefused": "`skillyard skill validate` tells more",
    "VersionTaken": "`skillyard skill list NAME --versions` shows what is taken",
    "BlobNotFound": "`skillyard blob list` shows yours",
    "SessionNotFound": "`skillyard session list` shows those of your agent",
    "RunNotFound": "`skillyard runs list` shows yours",
    "TaskNotFound": "`skillyard task list` shows yours",
    "JobNotFound": "`skillyard job list` shows yours",
    "Unauthenticated": "give a token by --token or SKILLYARD_TOKEN; `skillyard token create` makes one",
    "ProtectionMissing": "`skillyard doctor` shows what is missing and the mend",
    "SecretNotFound": "`skillyard secret list` shows the names, and for whom each is",
    "MissingSecret": "store it with `skillyard secret set`",
}


_LINE = 4000
"""The most characters of a message."""


class Failure(Exception):
    """A command's own error: one line, a remedy, an exit code."""

    def __init__(self, message: str, mend: str = "", code: Exit = Exit.BAD_INPUT) -> None:
        super().__init__(message)
        self.mend = mend
        self.code = code


def exit_codes_help() -> str:
    """Returns the exit codes for --help."""
    return "\b\nExit codes:\n" + "\n".join(f"  {code:3}  {meaning}" for code, meaning in _MEANINGS.items())


@contextmanager
def reported() -> Iterator[None]:
    """Turns an exception inside into a line on standard error and SystemExit."""
    try:
        yield
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code if isinstance(error, click.UsageError) else Exit.BAD_INPUT)
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted", "")
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        _swallow_stdout()
        sys.exit(Exit.OK)
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None:
            _swallow_stdout()
        if os.environ.get("SKILLYARD_DEBUG"):
            raise
        message, mend, code = explain(error)
        _say(message, mend)
        sys.exit(code)


def explain(error: Exception) -> tuple[str, str, Exit]:
    """Returns message, remedy and exit code of an error."""
    match error:
        case Failure():
            return str(error), error.mend, error.code
        case SkillyardError():
            code = _BY_TYPE.get(error.type) or _BY_CODE.get(error.code, Exit.INTERNAL)
            return error.message, _MENDS.get(error.type, ""), code
        case BadArgument():
            return error.message, "", Exit.BAD_INPUT
        case ConnectionFailed():
            return error.message, "", Exit.NO_ACCESS
        case OSError() if error.filename:
            return f"{error.filename}: {error.strerror}", "", Exit.BAD_INPUT
        case OSError() if error.errno in _SHORT:
            return f"{error.strerror}", _SHORT[error.errno], Exit.FAILED
        case RuntimeError() if "start new thread" in str(error):
            return str(error), _SHORT[errno.EAGAIN], Exit.FAILED
        case _:
            return f"internal error: {type(error).__name__}: {error}", "SKILLYARD_DEBUG=1 shows where", Exit.INTERNAL


def _say(message: str, mend: str) -> None:
    from skillyard.faces.cli.render import calm

    line = calm(" ".join(message.split()))[:_LINE]
    click.echo(f"skillyard: {line}" + (f" ({mend})" if mend else ""), err=True)


def _swallow_stdout() -> None:
    """Drops the interpreter's last flush: an output that failed is not tried again."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)
