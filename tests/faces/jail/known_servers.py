"""MCP servers of the registries: what each is, what it needs in a jail, and calls that it answers.

``python -m tests.faces.jail.known_servers DIRECTORY [NAME...]`` fetches them, as ``.ci/setup`` does.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillyard.faces.cli.jail.builds import Npm

PLACE = Path("/usr/local/lib/skillyard-ci/mcp-servers")
PYPI = ("pypi.org", "files.pythonhosted.org")
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Server:
    """A server. In all texts ``{place}`` is a directory of the host, ``{port}`` that of a page on the loopback."""

    add: tuple[str, ...]
    calls: tuple[Call, ...]
    args: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


_WRITE = ("--write", "{place}")
_ENTITY = {"name": "gate", "entityType": "wall", "observations": ["it is closed"]}
SERVERS = {
    "everything": Server(
        ("npx", "-y", "@modelcontextprotocol/server-everything"),
        (("echo", {"message": "ü"}), ("get-sum", {"a": 2, "b": 3}), ("get-tiny-image", {})),
    ),
    "files": Server(
        ("npx", "-y", "@modelcontextprotocol/server-filesystem"),
        (
            ("write_file", {"path": "{place}/new.txt", "content": "written"}),
            ("read_text_file", {"path": "{place}/new.txt"}),
            ("create_directory", {"path": "{place}/below"}),
            ("move_file", {"source": "{place}/new.txt", "destination": "{place}/below/moved.txt"}),
            ("list_directory", {"path": "{place}"}),
            ("directory_tree", {"path": "{place}"}),
        ),
        ("{place}",),
        _WRITE,
    ),
    "memory": Server(
        ("npx", "-y", "@modelcontextprotocol/server-memory"),
        (("create_entities", {"entities": [_ENTITY]}), ("search_nodes", {"query": "closed"}), ("read_graph", {})),
        (),
        (*_WRITE, "--env", "MEMORY_FILE_PATH"),
        {"MEMORY_FILE_PATH": "{place}/memory.jsonl"},
    ),
    "git": Server(
        ("uvx", "mcp-server-git"),
        (
            ("git_status", {"repo_path": "{place}"}),
            ("git_add", {"repo_path": "{place}", "files": ["first.txt"]}),
            ("git_diff_staged", {"repo_path": "{place}"}),
            ("git_log", {"repo_path": "{place}"}),
        ),
        ("--repository", "{place}"),
        _WRITE,
    ),
    "sqlite": Server(
        ("uvx", "--with", "mcp<2", "mcp-server-sqlite"),
        (
            ("create_table", {"query": "CREATE TABLE walls (name TEXT, height INTEGER)"}),
            ("write_query", {"query": "INSERT INTO walls VALUES ('seccomp', 3), ('landlock', 2)"}),
            ("read_query", {"query": "SELECT name, height FROM walls ORDER BY height"}),
            ("list_tables", {}),
        ),
        ("--db-path", "{place}/walls.db"),
        _WRITE,
    ),
    "fetch": Server(
        ("uvx", "mcp-server-fetch"),
        (("fetch", {"url": "http://127.0.0.1:{port}/page"}),),
        ("--ignore-robots-txt", "--allow-private-ips"),
        ("--allow", "127.0.0.1:{port}"),
    ),
    "numpy": Server(
        ("uvx", "mcp-numpy"),
        (("np_sqrt", {"array": [1, 4, 9]}), ("np_mod", {"a": [7, 8], "b": [4, 3]}), ("np_dtype", {"array": [1.5]})),
    ),
}
SHORT = ("files", "fetch")
"""The servers that tests need which are not long."""


def bare(name: str, base: Path = PLACE) -> list[str]:
    """Returns the command of a server without a jail, of the very files that a jail shows."""
    there = base / "packages" / name
    start = json.loads((there / "jail.json").read_text())["start"]
    return [str(word).replace(f"/skills/{name}", str(there / "tree")) for word in start]


def fetched(name: str) -> bool:
    """Returns whether ``.ci/setup`` fetched a server."""
    return (PLACE / "packages" / name / "jail.json").is_file()


def fill(value: Any, **words: object) -> Any:
    """Returns arguments with the directory and the port of a test put in."""
    text = json.dumps(value)
    for name, word in words.items():
        text = text.replace("{" + name + "}", str(word))
    return json.loads(text)


def _addresses() -> dict[str, list[str]]:
    """Returns the addresses of registries whose names lead to places that the gate keeps closed, as on mirrors."""
    hosts = (*PYPI, Npm.find().registry.split("/")[2].partition(":")[0])
    found = {host: sorted({str(info[4][0]) for info in socket.getaddrinfo(host, 443)}) for host in hosts}
    closed = {
        host: told for host, told in found.items() if not all(ipaddress.ip_address(one).is_global for one in told)
    }
    return {host: told for host, told in closed.items() if not _is_address(host)}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def main(place: Path, names: list[str]) -> int:
    """Fetches servers, and returns how many could not be fetched."""
    place.mkdir(mode=0o755, parents=True, exist_ok=True)
    env = {**os.environ, "SKILLYARD_JAIL__DIR": str(place), "SKILLYARD_DATA_DIR": str(place / "data")}
    env["SKILLYARD_NETWORK__HOSTS"] = json.dumps(_addresses())
    failed = 0
    for name in names or list(SERVERS):
        if (place / "packages" / name / "jail.json").is_file():
            continue
        words = [sys.executable, "-m", "skillyard", "jail", "add", "--no-try", name, "--", *SERVERS[name].add]
        if subprocess.run(words, env=env, stdout=subprocess.DEVNULL, check=False).returncode:
            failed += 1
            continue
        for path in (place / "packages", place / "packages" / name):
            path.chmod(0o755)
        (place / "packages" / name / "jail.json").chmod(0o644)
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
