"""The settings of srt: written from policy, or an operator's file that opens nothing more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from skillyard.config.srt import SrtSettings
from skillyard.domain.errors import InvalidInput, shown

WRITABLE = ("/workspace", "/tmp", "/dev/shm")  # noqa: S108 - directories of the sandbox
_MOST_BYTES = 256 * 1024
_HELD = "no wall of srt is left out"
_NETWORK: Mapping[str, str | None] = {
    "allowedDomains": "sandboxes of srt have no network",
    "deniedDomains": None,
    "deniedDomainReasons": None,
    "strictAllowlist": None,
    "deniedResolvedAddresses": None,
    "allowUnixSockets": _HELD,
    "allowAllUnixSockets": _HELD,
    "allowLocalBinding": None,
    "allowMachLookup": _HELD,
    "httpProxyPort": "srt asks no other proxy, since sandboxes have no network",
    "socksProxyPort": "srt asks no other proxy, since sandboxes have no network",
    "mitmProxy": "srt asks no other proxy, since sandboxes have no network",
    "parentProxy": "srt asks no other proxy, since sandboxes have no network",
    "tlsTerminate": "srt opens no traffic, since sandboxes have no network",
}
_FILES: Mapping[str, str | None] = {
    "disabled": _HELD,
    "denyRead": None,
    "allowRead": None,  # it lifts denials of the same file
    "allowWrite": None,  # checked by itself
    "denyWrite": None,
    "allowGitConfig": None,
}
_TOP: Mapping[str, str | None] = {
    "network": None,
    "filesystem": None,
    "ignoreViolations": None,
    "mandatoryDenySearchDepth": None,
    "allowPty": None,
    "git": None,
    "enableWeakerNestedSandbox": _HELD,
    "enableWeakerNetworkIsolation": _HELD,
    "allowNestedUserNamespaces": _HELD,
    "allowAppleEvents": _HELD,
    "credentials": "secrets reach a run by the skill that declares them, and no credential of the host is shown",
    "seccomp": "the filter is the one that comes with srt",
    "ripgrep": "a program that srt starts is not chosen by a file of settings",
    "bwrapPath": "a program that srt starts is not chosen by a file of settings",
    "socatPath": "a program that srt starts is not chosen by a file of settings",
}
"""Names of a file of settings, each with the reason for which a value that opens something is refused, or None."""


def settings(ours: SrtSettings, bwrap: str) -> dict[str, Any]:
    """Returns what srt is started with; ``bwrap`` is the bubblewrap of the stage. Raises InvalidInput."""
    if ours.settings_mode == "file":
        assert ours.settings_path is not None
        return {**read_file(ours.settings_path), "bwrapPath": bwrap}
    return {
        "network": {"allowedDomains": [], "deniedDomains": [], "strictAllowlist": True},
        "filesystem": {
            "denyRead": list(ours.deny_read),
            "allowRead": [],
            "allowWrite": list(WRITABLE[:2]),
            "denyWrite": list(ours.deny_write),
        },
        **({"ignoreViolations": ours.ignore_violations} if ours.ignore_violations else {}),
        "bwrapPath": bwrap,
    }


def read_file(path: Path) -> dict[str, Any]:
    """Returns an operator's settings of srt. Raises InvalidInput with every name that is wider than policy."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        given = json.loads(text)
    except OSError as error:
        raise InvalidInput("srt.settings_path", f"cannot be read: {error.strerror}", str(path)) from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput("srt.settings_path", f"is not JSON: {error}", str(path)) from None
    if not isinstance(given, dict):
        raise InvalidInput("srt.settings_path", "must hold a JSON object", str(path))
    if wider := list(_wider(given)):
        rule = f"is wider than policy: {'; '.join(wider)}; take these out, or use settings_mode 'generated'"
        raise InvalidInput("srt.settings_path", rule, str(path))
    return given


def _wider(given: Mapping[str, Any]) -> Iterator[str]:
    """Yields each name that opens something, with its reason, and each that is not known."""
    yield from _opening("", given, _TOP)
    for table, known in (("network", _NETWORK), ("filesystem", _FILES)):
        value = given.get(table)
        if not isinstance(value, Mapping):
            yield f"{table} must be an object"
            continue
        yield from _opening(f"{table}.", value, known)
    files = given.get("filesystem")
    writable = files.get("allowWrite") if isinstance(files, Mapping) else None
    for path in writable if isinstance(writable, list) else [writable]:
        if not _is_writable(path):
            yield f"filesystem.allowWrite names {shown(path)}, and programs write below {', '.join(WRITABLE)} only"


def _opening(table: str, given: Mapping[str, Any], known: Mapping[str, str | None]) -> Iterator[str]:
    for name, value in given.items():
        if name not in known:
            yield f"{table}{shown(name)} is not a name that is known here"
        elif known[name] is not None and value not in (None, False, [], {}):
            yield f"{table}{name}: {known[name]}"


def _is_writable(path: object) -> bool:
    """Returns whether a path is one of the writable places or below one, component by component."""
    if not isinstance(path, str) or "\0" in path or any(sign in path for sign in "*?[{~$"):
        return False
    parts = PurePosixPath(path).parts
    return ".." not in parts and any(parts[: len(place)] == place for place in _PLACES)


_PLACES = [PurePosixPath(place).parts for place in WRITABLE]
