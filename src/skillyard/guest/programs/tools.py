"""Calls tools of MCP servers by import: ``from tools.git import git_status``.

A call leaves through the gate, on a port of its own, and waits for its answer. A function takes the arguments by name,
or as one object; it returns what the tool answered as JSON, else its text. Programs of a command get the same as a
package in a directory, and `python3 -m tools SERVER TOOL '{"name": "value"}'` for shells.
"""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock
from importlib.machinery import ModuleSpec
from json import dumps, loads
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from typing import Any

ROOT = "tools"
PORT = 3129
_HEAD = 4
_PIECE = 1 << 20


class ToolError(Exception):
    """A call that failed. ``type`` is the kind of error, such as ``ToolError`` or ``TimeoutError``."""

    def __init__(self, type_: str, message: str) -> None:
        super().__init__(message if type_ == "ToolError" else f"{type_}: {message}")
        self.type = type_


class _Line:
    """Connections to the gate, each for one call at a time. A forked child makes its own."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._free: list[socket.socket] = []
        self._pid = 0

    def ask(self, request: bytes) -> bytes:
        """Returns the answer. Raises OSError."""
        with self._lock:
            if self._pid != os.getpid():
                self._free, self._pid = [], os.getpid()
            line = self._free.pop() if self._free else None
        if line is None:
            import socket

            line = socket.create_connection(("127.0.0.1", PORT))
        try:
            line.sendall(len(request).to_bytes(_HEAD, "big") + request)
            answer = _read(line, int.from_bytes(_read(line, _HEAD), "big"))
        except BaseException:
            line.close()
            raise
        with self._lock:
            self._free.append(line)
        return answer


def _read(line: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = line.recv(min(_PIECE, size - len(data)))
        if not piece:
            raise ConnectionError("the gate ended the connection")
        data += piece
    return bytes(data)


_line = _Line()


def call(server: str, tool: str, arguments: Mapping[str, Any]) -> Any:
    """Returns what a tool answered. Raises ToolError."""
    request = dumps({"server": server, "tool": tool, "arguments": arguments}, separators=(",", ":")).encode()
    try:
        told = loads(_line.ask(request))
    except OSError as error:
        raise ToolError("ToolServerError", f"the call did not leave the sandbox: {error}") from None
    if "error" in told:
        raise ToolError(told["error"]["type"], told["error"]["message"])
    if told.get("structured") is not None:
        return told["structured"]
    content = told["content"]
    if all(part["type"] == "text" for part in content):
        return "\n".join(part["text"] for part in content)
    return content


def _function(server: str, tool: str, description: str) -> Callable[..., Any]:
    def function(arguments: Mapping[str, Any] | None = None, /, **named: Any) -> Any:
        return call(server, tool, {**(arguments or {}), **named})

    function.__name__ = function.__qualname__ = import_name(tool)
    function.__doc__ = description
    function.__module__ = f"{ROOT}.{server}"
    return function


def import_name(tool: str) -> str:
    """Returns the name by which a tool is imported."""
    name = "".join(c if c.isalnum() or c == "_" else "_" for c in tool)
    return f"_{name}" if name[:1].isdigit() else name


class _Loader:
    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = members

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(self._members)


class ToolFinder:
    """The meta-path finder for the tools of this run."""

    def __init__(self, servers: Mapping[str, Mapping[str, str]]) -> None:
        self._servers = servers

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Raises ImportError for a server whose tools this run may not call."""
        if fullname == ROOT:
            spec = ModuleSpec(fullname, _Loader({"ToolError": ToolError, "call": call}), is_package=True)  # type: ignore[arg-type]
            spec.submodule_search_locations = []
            return spec
        if not fullname.startswith(ROOT + "."):
            return None
        server = fullname[len(ROOT) + 1 :]
        tools = self._servers.get(server)
        if tools is None and server != "__main__":
            told = f"this run may call tools of {', '.join(self._servers)}, not of '{server}'; ask for them with tools"
            raise ImportError(told, name=fullname)
        if tools is None:
            return None
        members = {import_name(tool): _function(server, tool, text) for tool, text in tools.items()}
        return ModuleSpec(fullname, _Loader(members))  # type: ignore[arg-type]


_PROGRAM = """
import sys
from json import dumps, loads
from tools import ToolError, call
if len(sys.argv) not in (3, 4):
    sys.exit("usage: python3 -m tools SERVER TOOL [ARGUMENTS as a JSON object]")
try:
    print(dumps(call(sys.argv[1], sys.argv[2], loads(sys.argv[3]) if sys.argv[3:] else {})))
except (ToolError, ValueError) as error:
    sys.exit(str(error))
"""


def make_package(servers: Mapping[str, Mapping[str, str]]) -> str:
    """Returns a new directory with the package ``tools``, for programs that a command starts. Raises OSError."""
    from tempfile import mkdtemp

    source = __loader__.get_source(__name__)  # type: ignore[name-defined]
    place = mkdtemp(prefix="tools-")
    os.mkdir(f"{place}/{ROOT}")
    for name, text in (("__init__", f"{source}\n\nshow_tools({dict(servers)!r})\n"), ("__main__", _PROGRAM)):
        with open(f"{place}/{ROOT}/{name}.py", "x", encoding="utf-8") as file:
            file.write(text)
    return place


def show_tools(servers: Mapping[str, Mapping[str, str]]) -> None:
    """Lets what comes after import the tools of ``servers``."""
    sys.meta_path.insert(0, ToolFinder(servers))
