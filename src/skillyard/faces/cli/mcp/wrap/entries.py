"""Entries of a configuration as a client starts them, or why one is left alone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skillyard.faces.cli.mcp.install import program
from skillyard.faces.cli.mcp.wrap.pieces import Keys
from skillyard.values import dataclass

_REMOTE = ("url", "httpUrl", "serverUrl")
_DAEMONS = ("docker", "podman", "nerdctl")
_STEERING = frozenset(
    {"HOME", "PATH", "TMPDIR", "TEMP", "TMP", "LOCPATH", "NLSPATH", "HOSTALIASES", "RES_OPTIONS", "BASH_ENV", "ENV"}
)
_STEERING_PREFIXES = (
    "LD_", "GLIBC_", "GCONV_", "MALLOC_", "LIBC_", "PYTHON", "SKILLYARD", "SKILLFLAW", "OPENSSL_", "SSL", "XDG_",
    "DOCKER_", "NPM_CONFIG_", "UV_",
)  # fmt: skip
"""Variables that loaders, libraries, Python, skillyard and the programs that it starts look at.

Settings and npm take theirs in any case."""
_HARMLESS = frozenset({"PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE"})
_REFERENCE = re.compile(r"\$\{(?:(env):)?([^}]*)\}")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_MOST_WORDS = 1000
_MOST_SHOWN = 300


class LeftAlone(Exception):
    """An entry is not to be wrapped. The message says why."""


@dataclass(frozen=True, slots=True)
class Stdio:
    """A server that its client starts. ``words`` and ``env`` stand as in the file, references and all."""

    keys: Keys
    words: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str

    @property
    def name(self) -> str:
        return self.keys[-1]

    def names(self) -> frozenset[str]:
        """Returns the variables that its references name."""
        texts = (*self.words, *self.env.values(), self.cwd)
        found = (_VARIABLE.fullmatch(match[2]) for text in texts for match in _REFERENCE.finditer(text))
        return frozenset(match[1] for match in found if match is not None)

    def known(self, values: Mapping[str, str]) -> Stdio:
        """Returns it with its references to variables replaced. Raises LeftAlone for others."""
        env = {name: _expanded(value, values) for name, value in self.env.items()}
        return Stdio(self.keys, tuple(_expanded(word, values) for word in self.words), env, _expanded(self.cwd, values))


def _own_args(words: Sequence[str]) -> list[str] | None:
    """Returns the arguments for this very skillyard; None for another program of any name."""
    own = program()
    if list(words[: len(own)]) == own:
        return list(words[len(own) :])
    found = shutil.which(words[0])
    same = found is not None and len(own) == 1 and Path(found).resolve() == Path(own[0]).resolve()
    return list(words[1:]) if same else None


def _steers(name: str) -> bool:
    """Returns whether a variable could change the work of skillyard itself."""
    return name not in _HARMLESS and (name in _STEERING or name.upper().startswith(_STEERING_PREFIXES))


def stdio(keys: Keys, entry: Any) -> Stdio:
    """Returns the server of an entry. Raises LeftAlone."""
    if not isinstance(entry, dict):
        raise LeftAlone("it is not a table")
    if "command" not in entry:
        if "headersHelper" in entry:
            raise LeftAlone("it is reached over HTTP, and its headersHelper is a command that its client runs bare")
        remote = any(key in entry for key in _REMOTE)
        raise LeftAlone("it is reached over HTTP, and runs elsewhere" if remote else "it has no command")
    args, env, cwd = entry.get("args", []), entry.get("env", {}), entry.get("cwd", "")
    words = [entry["command"], *args] if isinstance(args, list) else []
    if not words or not all(map(_is_word, words)) or not words[0] or len(words) > _MOST_WORDS:
        raise LeftAlone(f"its command and args must be texts without NUL, at most {_MOST_WORDS}")
    if not isinstance(env, dict) or not all(map(_is_word, (*env, *env.values()))):
        raise LeftAlone("its env must be a table of texts")
    if any(not name or "=" in name for name in env):
        raise LeftAlone("its env has a name that no variable can have")
    if not _is_word(cwd):
        raise LeftAlone("its cwd must be a text")
    # The client gives them to `skillyard jail`, too, which runs outside of the walls.
    if wrong := sorted(filter(_steers, env)):
        mend = f"make it the command `env {wrong[0]}=... {words[0]} ...`, which sets it in the jail alone"
        raise LeftAlone(f"its env sets {', '.join(wrong)}, which could lead skillyard itself astray; {mend}")
    if "envFile" in entry:
        raise LeftAlone("its envFile could lead skillyard itself astray; write the variables into env")
    if (own := _own_args(words)) is not None:
        jailed = f"it runs jailed already: {' '.join(own)[:_MOST_SHOWN]}"
        raise LeftAlone(jailed if own[:1] == ["jail"] else "it is skillyard itself, which has walls of its own")
    if Path(words[0]).name in _DAEMONS:
        raise LeftAlone("it asks a daemon for a container, and no jail reaches a daemon")
    return Stdio(keys, tuple(words), env, cwd)


def _is_word(value: Any) -> bool:
    """Returns whether a value can be an argument of a program."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _expanded(text: str, values: Mapping[str, str]) -> str:
    """Replaces ``${NAME}``, ``${NAME:-default}`` and ``${env:NAME}``, as clients do."""

    def value(found: re.Match[str]) -> str:
        match = _VARIABLE.fullmatch(found[2])
        if match is None or (match[1] not in values and match[2] is None):
            raise LeftAlone(f"it has {found[0]}, which its client alone knows")
        return values.get(match[1], match[2] or "")

    return _REFERENCE.sub(value, text)
