"""``SKILLFLAW_*`` variables of an existing ``.env``.

A variable without text counts as not given. The value of a key is never told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from skillyard.config.foreign import Alias, Foreign
from skillyard.config.network import AS_RULES
from skillyard.domain.errors import InvalidInput, shape, shown

ALL = "SKILLFLAW_"
PREFIX = f"{ALL}SKILL_SANDBOX_"
_CONNECTION = f"{PREFIX}OPENSANDBOX_"
_SERVERS = f"{ALL}MCP_SANDBOX_"
_NETWORKS: Mapping[str, tuple[str, Any] | None] = {
    "none": ("network.rules", []),
    "allowlist": None,
    "open": ("network.run_code", AS_RULES),
}


def read_variables(environ: Mapping[str, str]) -> Foreign:
    """Returns the settings behind these names. Raises InvalidInput."""
    given = {name: text.strip() for name, text in sorted(environ.items()) if name.startswith(ALL) and text.strip()}
    aliases: list[Alias] = []
    for short, (ours, read) in _KNOWN.items():
        if (name := PREFIX + short) in given:
            aliases.append(Alias(name, ours, read(name, given.pop(name))))
    if (name := f"{PREFIX}NETWORK") in given:
        word = _word(*_NETWORKS)(name, given.pop(name))
        if meant := _NETWORKS[word]:
            aliases.append(Alias(name, *meant))
    return Foreign(tuple(aliases), tuple(_remarks(given)))


def _remarks(given: Mapping[str, str]) -> Iterator[str]:
    connection = [name for name in given if name.startswith(_CONNECTION)]
    servers = [name for name in given if name.startswith(_SERVERS)]
    if connection:
        yield f"these variables have no effect, since nothing here runs 'opensandbox': {', '.join(connection)}"
    if servers:
        yield f"these variables have no effect, since sandboxes run no MCP servers: {', '.join(servers)}"
    for name in given:
        if name not in connection and name not in servers:
            yield f"the variable {name} has no effect: no setting has this name"


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(name, "must be a number", shown(text)) from None


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(name, "must be a whole number", shown(text)) from None


def _milliseconds(name: str, text: str) -> int:
    return round(_number(name, text) * 1000)


def _switch(name: str, text: str) -> bool:
    word = text.lower()
    if word in ("true", "1", "yes", "on"):
        return True
    if word in ("false", "0", "no", "off"):
        return False
    raise InvalidInput(name, "must be true or false", shown(text))


def _word(*words: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text.lower() not in words:
            raise InvalidInput(name, f"must be one of {', '.join(words)}", shown(text))
        return text.lower()

    return read


def _names(name: str, text: str) -> list[str]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidInput(name, """must be a JSON list of names, such as '["LANG"]'""", shape(text))
    return found


_KNOWN: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "CPUS": ("limits.cpus", _number),
    "MEMORY_MB": ("limits.memory_mb", _whole),
    "PIDS_LIMIT": ("limits.pids", _whole),
    "TIMEOUT_SECONDS": ("limits.timeout_ms", _milliseconds),
    "READ_ONLY_ROOT": ("sandbox.read_only_root", _switch),
    "WORKSPACE_ACCESS": ("sandbox.workspace_access", _word("rw", "ro")),
    "TMPFS_ENABLED": ("sandbox.tmpfs", _switch),
    "ENV_ALLOWLIST": ("sandbox.env_allowlist", _names),
}
