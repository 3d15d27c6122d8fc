"""``SKILLFLAW_*`` variables of an existing ``.env``.

A variable without text counts as not given. The value of a key is never told. The address of an OpenSandbox server
chooses the isolation, as it does there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from skillyard.config.foreign import Alias, Foreign
from skillyard.config.network import AS_RULES
from skillyard.domain.errors import InvalidInput, shape, shown

ALL = "SKILLFLAW_"
PREFIX = f"{ALL}SKILL_SANDBOX_"
_CONNECTION = f"{PREFIX}OPENSANDBOX_"
_SERVERS = f"{ALL}MCP_SANDBOX_"
_JAILS = f"{_SERVERS}BASE_DIR"
CHOOSES = f"{_CONNECTION}DOMAIN"
"""The variable that makes ``opensandbox`` the default isolation."""
ISOLATION = "opensandbox"
_NETWORKS: Mapping[str, tuple[str, Any] | None] = {
    "none": ("network.rules", []),
    "allowlist": None,
    "open": ("network.run_code", AS_RULES),
}


def read_variables(environ: Mapping[str, str]) -> Foreign:
    """Returns the settings behind these names. Raises InvalidInput."""
    given = {name: text.strip() for name, text in sorted(environ.items()) if name.startswith(ALL) and text.strip()}
    aliases = [Alias(CHOOSES, "policy.isolation", ISOLATION)] if CHOOSES in given else []
    for short, (ours, read) in _KNOWN.items():
        if (name := PREFIX + short) in given:
            aliases.append(Alias(name, ours, read(name, given.pop(name))))
    aliases += _images(given)
    if _JAILS in given:
        aliases.append(Alias(_JAILS, "jail.dir", str(Path(given.pop(_JAILS)).expanduser())))
    if (name := f"{PREFIX}NETWORK") in given:
        word = _word(*_NETWORKS)(name, given.pop(name))
        if meant := _NETWORKS[word]:
            aliases.append(Alias(name, *meant))
    return Foreign(tuple(aliases), tuple(_remarks(given)))


def _images(given: dict[str, str]) -> Iterator[Alias]:
    """Takes the images by language, and yields them for both backends that have images.

    That for Python goes before the shared one. Raises InvalidInput.
    """
    found = {language: _image(given, f"{_SERVERS}{language}_IMAGE") for language in ("PYTHON", "TYPESCRIPT")}
    shared = f"{_SERVERS}IMAGE"
    every = _reference(shared, given.pop(shared)) if shared in given else ""
    for backend in (ISOLATION, "oci"):
        if image := found["PYTHON"][1] or every:
            yield Alias(found["PYTHON"][0] if found["PYTHON"][1] else shared, f"{backend}.image", image)
        name, image = found["TYPESCRIPT"]
        if image:
            yield Alias(name, f"{backend}.images", dict.fromkeys(("javascript", "typescript"), image))


def _image(given: dict[str, str], name: str) -> tuple[str, str]:
    """Returns the variable and the image of one language.

    An image as a whole stands above its two parts.
    """
    place, tag = f"{name}_REPOSITORY", f"{name}_TAG"
    parts = given.pop(place, ""), given.pop(tag, "")
    if name in given:
        return name, _reference(name, given.pop(name))
    if any(parts) and not all(parts):
        has, lacks = (place, tag) if parts[0] else (tag, place)
        raise InvalidInput(has, f"is one half of an image's name; set {lacks}, too", shown(parts[0] or parts[1]))
    return (place, _reference(place, ":".join(parts))) if all(parts) else (name, "")


def _reference(name: str, text: str) -> str:
    last = text.rpartition("/")[2]
    named = "@" in last or bool(last.partition(":")[2])
    if "://" in text or not named or any(character.isspace() for character in text):
        raise InvalidInput(name, "must be the name of an image with a tag or a digest, and no URL", shown(text))
    return text


def _remarks(given: Mapping[str, str]) -> Iterator[str]:
    for name in given:
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


def _key(_: str, text: str) -> SecretStr:
    return SecretStr(text)


def _text(_: str, text: str) -> str:
    return text


_KNOWN: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "CPUS": ("limits.cpus", _number),
    "MEMORY_MB": ("limits.memory_mb", _whole),
    "PIDS_LIMIT": ("limits.pids", _whole),
    "TIMEOUT_SECONDS": ("limits.timeout_ms", _milliseconds),
    "READ_ONLY_ROOT": ("sandbox.read_only_root", _switch),
    "WORKSPACE_ACCESS": ("sandbox.workspace_access", _word("rw", "ro")),
    "TMPFS_ENABLED": ("sandbox.tmpfs", _switch),
    "ENV_ALLOWLIST": ("sandbox.env_allowlist", _names),
    "OPENSANDBOX_DOMAIN": ("opensandbox.domain", _text),
    "OPENSANDBOX_PROTOCOL": ("opensandbox.protocol", _word("http", "https")),
    "OPENSANDBOX_API_KEY": ("opensandbox.api_key", _key),
    "OPENSANDBOX_USE_SERVER_PROXY": ("opensandbox.use_server_proxy", _switch),
    "OPENSANDBOX_REQUEST_TIMEOUT_SECONDS": ("opensandbox.request_timeout_seconds", _number),
}
