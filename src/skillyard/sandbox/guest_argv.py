"""Guests and files for a backend that only starts programs: as files and commands.

Put :func:`guest_bundle` into the sandbox as a file that foreign code cannot write, the request as another that only
its user can read (it holds secrets; the guest removes it), and start :func:`guest_argv`. The channel of the guest is
the process's ``Stream.CHANNEL``; stdout and stderr belong into one pipe, so that they keep their order.
:func:`files_argv` does the same for the files of a sandbox.

A channel or a request is a path, or a descriptor that the backend leaves open (:func:`descriptor`). A channel file
is appended to, made when it is missing, and complete when the process has ended; it is best a pipe or a socket, as
a file in the sandbox counts against its disk limit and can be rewritten by foreign code, which the reader of its
frames has to expect anyway.
"""

from __future__ import annotations

import io
import marshal
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import MAGIC_NUMBER

from skillyard.domain.sandbox.spec import Argv
from skillyard.guest.command import START

PACKAGE = "skillyard_guest"
_MAIN = f"from {PACKAGE}.command import main\n\nmain()\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_UNCHECKED = MAGIC_NUMBER + bytes((1, 0, 0, 0)) + bytes(8)
"""The head of bytecode that is compared with no source."""


@cache
def guest_bundle() -> bytes:
    """Returns an uncompressed zip file that Python runs: the same bytes for the same sources.

    It has the bytecode of this server's Python, since compiling costs an agent more than all the rest of its start.
    Another version of Python takes the sources.
    """
    sources = dict(_sources(resources.files("skillyard.guest"), PACKAGE))
    compiled = {f"{name}c": bytecode(name, source) for name, source in sources.items()}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as bundle:
        for name, source in sorted({"__main__.py": _MAIN.encode(), **sources, **compiled}.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = 0o100444 << 16
            info.create_system = 3
            bundle.writestr(info, source)
    return archive.getvalue()


def bytecode(name: str, source: bytes) -> bytes:
    """Returns bytecode without docstrings, which depends on nothing but the code."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=2)
    return _UNCHECKED + marshal.dumps(code, 2)  # of that version, which has no references


def _sources(package: Traversable, at: str) -> Iterator[tuple[str, bytes]]:
    for item in package.iterdir():
        if item.is_file() and item.name.endswith(".py"):
            yield f"{at}/{item.name}", item.read_bytes()
        elif item.is_dir() and item.name != "__pycache__":
            yield from _sources(item, f"{at}/{item.name}")


def descriptor(number: int) -> str:
    """Returns the name of a descriptor that the guest finds open."""
    return f"fd:{number}"


def guest_argv(python: str, bundle_path: str, request_path: str, channel_path: str) -> Argv:
    """Returns the command that runs an encoded request.

    It ends with status 0 when the last frame was written, whether the code succeeded or not.
    """
    return Argv((python, "-I", "-c", START, bundle_path, "call", request_path, channel_path))


def files_argv(python: str, bundle_path: str) -> Argv:
    """Returns the command that serves files, by :mod:`skillyard.guest.files`."""
    return Argv(guest_words(python, bundle_path, "files"), stdin=True)


def guest_words(python: str, bundle_path: str, *words: str) -> tuple[str, ...]:
    """Returns the command that runs files program or agent, which need no packages."""
    return (python, "-I", "-S", "-c", START, bundle_path, *words)
