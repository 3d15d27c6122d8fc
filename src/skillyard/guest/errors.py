"""Errors that the guest raises into foreign code, or reports in its place. Their names are ``error.type``."""

from __future__ import annotations


class BlobNotMounted(LookupError):
    """The run may read its input blobs and what it wrote itself, nothing else."""


class EntrypointNotFound(LookupError):
    """The module does not define the function that is to be called."""


class OutputNotSerializable(TypeError):
    """The function returned a value that JSON cannot hold."""


class OutputTooLarge(ValueError):
    """The function returned a value that is larger than the host takes."""


class UnsupportedLanguage(RuntimeError):
    """The sandbox has no runtime for the language of a command."""


class InterpreterLost(RuntimeError):
    """The interpreter of the session has ended, and the names of its cells with it."""


class SandboxError(RuntimeError):
    """The run could not be begun: the host asked for what cannot be."""


def is_success(error: BaseException) -> bool:
    """Returns whether it is ``sys.exit()`` or ``sys.exit(0)``."""
    if not issubclass(type(error), SystemExit):  # isinstance() asks the exception, which may raise
        return False
    code = SystemExit.__dict__["code"].__get__(error)  # of the C type, whatever a subclass says
    return code is None or (type(code) in (int, bool) and code == 0)


BlobNotMounted.__module__ = "runtime"
"""Where foreign code finds it, and where pickle looks when it crosses from a child process."""
