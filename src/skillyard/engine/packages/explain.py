"""Why a build failed, from how its program ended, what the gate refused and what uv said: one sentence or two, with the
setting to change where there is one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from skillyard.config.packages import PackagesSettings
from skillyard.domain.network.session import host_and_port
from skillyard.domain.work.outcome import Ending, Outcome
from skillyard.engine.packages.build import calm
from skillyard.engine.text import shorten

MOST = 900
_NAME = r"([A-Za-z0-9][A-Za-z0-9._-]*)"
_UNKNOWN = re.compile(rf"\b{_NAME} was not found in the (?:package registry|provided package locations)")
_NO_WHEEL = re.compile(rf"\b{_NAME}(?:[=<>!~]=?\S+)? has no wheels with a matching ([^(]+?) \(")
_SOURCE = re.compile(rf"\b{_NAME}(?:==(\S+))? has no usable wheels")
_BUILD = re.compile(rf"Failed to build [`']?{_NAME}")
_HINT = re.compile(r"^hint: (.+)$", re.MULTILINE)
_CAUSES = re.compile(r"^\s+cause: (.+)$", re.MULTILINE)
_MISMATCH = re.compile(r"Hash mismatch for [`'](\S+?)[`']")
_FETCH = re.compile(r"Failed to (?:fetch|download)\S* [`']?(\S+?)[`']?\s*$", re.MULTILINE)
_DENIED = re.compile(r"(?:returned a |\(|HTTP Error )(40[13])[ :]")
_FULL = re.compile(r"No space left on device|os error 28\b")
_NO_MEMORY = re.compile(
    r"Cannot allocate memory|memory allocation of \d+ bytes failed|os error 12\b|Tokio executor failed|"
    r"failed to spawn thread"
)
_REACHING = re.compile(r"error sending request|tunnel error|dns error|Failed to fetch|Failed to download|urlopen error")


def explained(config: PackagesSettings, ending: Ending, text: str, network: Mapping[str, Any]) -> str:
    """``text`` is the end of the log, foreign; ``network`` what the gate saw, in a record's form."""
    text = calm(text)
    said = _limit(config, ending, text) or _refused(network, text) or _from_uv(config, text)
    return shorten(" ".join((said or _last(text) or _ended(ending)).split()), MOST)


def _limit(config: PackagesSettings, ending: Ending, text: str) -> str:
    if ending.outcome is Outcome.MEMORY or (ending.outcome is not Outcome.TIMEOUT and _NO_MEMORY.search(text)):
        return f"the build needs more than its memory of {config.memory_mb} MiB (packages.memory_mb)"
    if ending.outcome in (Outcome.DISK, Outcome.OUTPUT) or _FULL.search(text):
        return f"the build needs more than its disk of {config.disk_mb} MiB (packages.disk_mb)"
    if ending.outcome is Outcome.TIMEOUT:
        return f"the build took longer than {config.timeout_s:g} s (packages.timeout_s)"
    if ending.outcome is Outcome.PROCESSES:
        return "the build started more processes than a sandbox may have"
    return ""


def _refused(network: Mapping[str, Any], text: str) -> str:
    refused = [c for c in network.get("connections", ()) if not c["allowed"] and c["host"]]
    if not refused or not _REACHING.search(text):
        return ""
    last = max(refused, key=lambda connection: connection["last_ms"])
    where = calm(host_and_port(last["host"], last["port"]))
    why = calm(last["reason"]).replace("network.rules", "packages.network")
    return f"the build may not reach {where}: {why}. Which hosts builds may reach is the setting packages.network"


def _from_uv(config: PackagesSettings, text: str) -> str:
    if match := _MISMATCH.search(text):
        return (
            f"{match[1]} is not what was locked: the index gives a file with another SHA-256. If that is meant, "
            "`skillyard environment build --refresh` resolves anew"
        )
    if match := _DENIED.search(text):
        return f"the index wants credentials or does not accept them (HTTP {match[1]}): see packages.secret"
    if match := _UNKNOWN.search(text):
        where = "in packages.wheels" if config.offline else f"in the index {config.index}"
        return f"there is no package '{match[1]}' {where}"
    if match := _NO_WHEEL.search(text):
        return f"'{match[1]}' has no wheel for this platform (the {match[2].strip()} does not fit). {_hints(text)}"
    if match := _SOURCE.search(text):
        version = f" {match[2]}" if match[2] else ""
        return (
            f"'{match[1]}'{version} has no wheel, only a source distribution, and only wheels are taken: "
            f'packages.source = ["{match[1]}"] lets it be built from source, in the build\'s sandbox'
        )
    if match := _BUILD.search(text):
        return f"'{match[1]}' could not be built from source: {_last(text)}"
    if "No solution found" in text:
        return f"the requirements cannot be met together: {_causes(text)}"
    if match := _FETCH.search(text):
        return f"{'the index' if not config.offline else 'a file'} cannot be read: {match[1]}: {_last_cause(text)}"
    return ""


def _causes(text: str) -> str:
    """The paragraph behind ``cause:``, without the steps of a proof: why, not that."""
    _, _, rest = text.partition("cause: ")
    body = " ".join(rest.partition("\nhint:")[0].split())
    body = re.sub(r"(?:And because [^.]*?,|,) we can conclude that your requirements are unsatisfiable\.?$", "", body)
    return body.replace("we can conclude that ", "").strip()


def _last_cause(text: str) -> str:
    return next(reversed(_CAUSES.findall(text)), "it said nothing")


def _hints(text: str) -> str:
    return " ".join(_without_flags(_HINT.findall(text)))


def _without_flags(hints: Iterable[str]) -> list[str]:
    """Returns what uv advises for its command line is no help here."""
    return [hint for hint in hints if "`--" not in hint]


def _last(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    start = next((at for at, line in enumerate(lines) if line.startswith(("error:", "Error:"))), max(0, len(lines) - 3))
    return " ".join(lines[start : start + 6])


def _ended(ending: Ending) -> str:
    if ending.outcome is Outcome.EXIT:
        return f"the build ended with code {ending.code} and said nothing"
    if ending.outcome is Outcome.SIGNAL:
        return f"the build was ended by signal {ending.signal}"
    return f"the build's sandbox ended: {ending.reason or ending.outcome.value}"
