"""``[skills]``, ``[tools.e2b]`` and ``[srt]`` as a CommonGround configuration has them.

``skills.mode`` chooses the place of runs: ``local`` is this host, with the default isolation or with srt, and
``remote`` is a backend on other hosts. ``[srt]`` holds for ``local``, ``[tools.e2b]`` for ``remote``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from skillyard.config.foreign import Alias, Foreign
from skillyard.config.srt import SrtSettings
from skillyard.domain.errors import InvalidInput, shown

LOCAL, REMOTE = "local", "remote"
_LIMITS = {
    "timeout_sec_default": "timeout_s",
    "timeout_sec_max": "max_timeout_s",
    "stdout_max_bytes": "stdout_bytes",
    "stderr_max_bytes": "stderr_bytes",
    "input_max_bytes": "input_bytes",
    "output_max_bytes": "output_bytes",
    "total_input_max_bytes": "inputs_bytes",
    "total_output_max_bytes": "outputs_bytes",
}
"""Limits of commands by their names there and in ``[commands]``."""
_ROOTS = ("cache_root", "local_root")
_SKILLS_IDLE = {
    "cache_root": "skills are kept in the data directory, below snapshots/",
    "local_root": "a run has no directory on this host; its files lie in its sandbox",
    "max_file_bytes": "a file of a skill is bounded with its archive, by skills.upload_bytes",
}
_SKILLS = ("mode", "executor", "reaper_interval_sec", *_LIMITS, *_SKILLS_IDLE)
_SESSIONS = {"reuse_mode": "reuse_mode", "idle_ttl_sec": "idle_ttl_s", "hard_ttl_sec": "hard_ttl_s"}
"""Settings of sessions by their names there and in ``[sessions]``, in either mode."""
_LOCK = "lock_timeout_sec"
_MACHINES = ("template", "domain", "api_url", "sandbox_url")
"""Settings of the provider of machines. The reference has none of them; each stands in ``[e2b]`` too."""
_API_KEY = "api_key"
_E2B = (*_SESSIONS, _LOCK, *_LIMITS, *_MACHINES, _API_KEY)
_REMOTE_ISOLATION = "e2b"
_NO_HOST_FILES = "a sandbox is shown the programs and libraries of this host, read-only, and no other file of it"
_SRT: Mapping[str, Any] = {
    "settings_mode": ("generated", "srt has no file of settings here"),
    "settings_path": ("", "srt has no file of settings here"),
    "ignore_violations": (None, "the kernel refuses a violation, and nothing lists violations"),
    "enable_weaker_nested_sandbox": (False, "no wall is left out but those that policy.allow_degraded names"),
    "network": {
        "allowed_domains": None,
        "denied_domains": None,
        "allow_unix_sockets": (None, "no socket of this host is shown in a sandbox"),
        "allow_all_unix_sockets": (False, "no socket of this host is shown in a sandbox"),
        "allow_local_binding": (None, ""),  # each sandbox has a loopback of its own, which nobody else reaches
    },
    "filesystem": {
        "deny_read": (None, _NO_HOST_FILES),
        "allow_write": (None, f"{_NO_HOST_FILES}; files that are to stay are outputs of a command"),
        "deny_write": (None, ""),  # by construction
    },
}
"""The names of ``[srt]``: the value that says nothing and the reason for the others, or None for what has effect."""
_EXECUTOR = "srt"
_NO_SOCKETS = "srt's filter refuses unix sockets, and cannot tell one path from another"
_BELOW = "programs write below /workspace, /tmp and /dev/shm only; files that are to stay are outputs of a command"
_OF_EXECUTOR: Mapping[str, Any] = {
    "settings_mode": None,
    "settings_path": None,
    "ignore_violations": None,
    "enable_weaker_nested_sandbox": (False, "no wall of srt is left out"),
    "network": {
        "allowed_domains": None,
        "denied_domains": None,
        "allow_unix_sockets": (None, _NO_SOCKETS),
        "allow_all_unix_sockets": (False, _NO_SOCKETS),
        "allow_local_binding": (None, ""),
    },
    "filesystem": {"deny_read": None, "allow_write": (None, _BELOW), "deny_write": None},
}
"""The same where srt is the executor."""
_OF_BACKEND = {
    "settings_mode": "settings_mode",
    "settings_path": "settings_path",
    "ignore_violations": "ignore_violations",
    "filesystem.deny_read": "deny_read",
    "filesystem.deny_write": "deny_write",
}
"""Names of ``[srt]`` there, and of the section of the backend here."""


def read_tables(tables: Mapping[str, Any], isolations: Sequence[str]) -> tuple[dict[str, Any], Foreign]:
    """Returns the tables without those of CommonGround, and these.

    ``isolations`` are the names of all. Raises InvalidInput.
    """
    skills, tools = _table(tables, "skills"), _table(tables, "tools")
    theirs = {name: value for name, value in skills.items() if name in _SKILLS}
    ours = {name: value for name, value in tables.items() if name not in ("skills", "tools", "srt")}
    if own := {name: value for name, value in skills.items() if name not in theirs}:
        ours["skills"] = own
    _check_known("tools", tools, ("e2b",))
    e2b, srt = _table(tools, "e2b", "tools.e2b"), dict(_table(tables, "srt"))
    if own := {name: srt.pop(name) for name in [*srt] if name in SrtSettings.model_fields and name not in _SRT}:
        ours["srt"] = own
    _check_known("tools.e2b", e2b, _E2B)
    _check_srt("srt", srt, _SRT)
    known = _OF_EXECUTOR if theirs.get("executor") == _EXECUTOR else _SRT
    mode = theirs.get("mode", LOCAL)
    if mode not in (LOCAL, REMOTE):
        raise InvalidInput("skills.mode", f"must be '{LOCAL}' or '{REMOTE}'", shown(mode))
    aliases = [*_of_skills(theirs, isolations), *_of_sessions(e2b), *_of_srt(srt, mode)]
    aliases += _of_machines(theirs, e2b, mode)
    idle = _SKILLS_IDLE
    if known is _OF_EXECUTOR:
        aliases += [*_of_executor(theirs, srt)]
        idle = {name: why for name, why in idle.items() if name not in _ROOTS}
    remarks = [f"skills.{name} has no effect: {why}" for name, why in idle.items() if name in theirs]
    if _LOCK in e2b:
        remarks.append(f"tools.e2b.{_LOCK} has no effect: a session is busy as long as its call works, and no longer")
    if mode == REMOTE:
        aliases += [
            Alias(f"tools.e2b.{name}", f"commands.{_LIMITS[name]}", e2b[name]) for name in _LIMITS if name in e2b
        ]
        remarks += [f"srt has no effect: it is for skills.mode = '{LOCAL}'"] if srt else []
    else:
        remarks += _idle_e2b(theirs, e2b)
        remarks += _idle_srt("srt", srt, known)
    return ours, Foreign(tuple(aliases), tuple(remarks))


def is_remote(tables: Mapping[str, Any]) -> bool:
    """Returns whether runs must be on other hosts."""
    return _table(tables, "skills").get("mode") == REMOTE


def check_remote(isolation: str, remote: Sequence[str], template: str) -> None:
    """Raises InvalidInput for an isolation on this host, or one that lacks its settings.

    ``remote`` are the isolations on others; ``template`` is that of machines.
    """
    if isolation == _REMOTE_ISOLATION and not template:
        rule = (
            "needs a template of machines: build one with `skillyard image e2b-template`, and write "
            f'template = "NAME" below [tools.e2b]; or write mode = "{LOCAL}" below [skills]'
        )
        raise InvalidInput("skills.mode", rule, shown(REMOTE))
    if isolation in remote:
        return
    lines = [f'isolation = "{name}" below [policy]' for name in remote]
    lines.append(f'mode = "{LOCAL}" below [skills]')
    rule = f"needs a backend on other hosts: '{isolation}' runs on this one; write {', or '.join(lines)}"
    raise InvalidInput("skills.mode", rule, shown(REMOTE))


def _of_machines(theirs: Mapping[str, Any], e2b: Mapping[str, Any], mode: str) -> Iterator[Alias]:
    """Yields the isolation of ``remote``, and the provider's settings. Raises InvalidInput for a key in the file."""
    if _API_KEY in e2b:
        words = "skillyard secret set E2B_API_KEY --project skillyard --skills skillyard-e2b"
        raise InvalidInput(f"tools.e2b.{_API_KEY}", f"must not stand in a file; {words}")
    if mode == REMOTE and "executor" not in theirs:
        yield Alias("skills.mode", "policy.isolation", _REMOTE_ISOLATION)
    for name in _MACHINES:
        if name in e2b:
            yield Alias(f"tools.e2b.{name}", f"e2b.{name}", e2b[name])


def _of_skills(theirs: Mapping[str, Any], isolations: Sequence[str]) -> Iterator[Alias]:
    executor = theirs.get("executor")
    if executor is not None:
        if executor not in isolations:
            rule = f"must be one of {', '.join(isolations)}; leave it out for the isolation that policy.isolation names"
            raise InvalidInput("skills.executor", rule, shown(executor))
        yield Alias("skills.executor", "policy.isolation", executor)
    if "reaper_interval_sec" in theirs:
        for ours in ("sessions.reap_every_s", "sweep_every_s"):
            yield Alias("skills.reaper_interval_sec", ours, theirs["reaper_interval_sec"])
    for name, ours in _LIMITS.items():
        if name in theirs:
            yield Alias(f"skills.{name}", f"commands.{ours}", theirs[name])


def _of_srt(srt: Mapping[str, Any], mode: str) -> Iterator[Alias]:
    network = _table(srt, "network", "srt.network")
    if mode != LOCAL or not network.keys() & {"allowed_domains", "denied_domains"}:
        return
    allowed, denied = (_domains(f"srt.network.{name}", network.get(name)) for name in _DOMAINS)
    rules = [*(f"{name}:*" for name in allowed), *(f"!{name}:*" for name in denied)] if allowed else []
    # srt bounds every command by these names, and lets every command reach them.
    yield Alias("srt.network.allowed_domains", "network.rules", rules)
    yield Alias("srt.network.allowed_domains", "network.run_code", rules)


def _of_executor(theirs: Mapping[str, Any], srt: Mapping[str, Any]) -> Iterator[Alias]:
    """Yields the names that the backend of the executor takes."""
    for name in _ROOTS:
        if name in theirs:
            yield Alias(f"skills.{name}", f"srt.{name}", theirs[name])
    files = _table(srt, "filesystem", "srt.filesystem")
    given = {**srt, **{f"filesystem.{name}": value for name, value in files.items()}}
    for name, ours in _OF_BACKEND.items():
        if name in given:
            yield Alias(f"srt.{name}", f"srt.{ours}", given[name])


_DOMAINS = ("allowed_domains", "denied_domains")


def _domains(path: str, given: Any) -> list[str]:
    names = [] if given is None else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidInput(path, "must be a list of names such as 'example.com' or '*.example.com'", shown(given))
    return names


def _of_sessions(e2b: Mapping[str, Any]) -> Iterator[Alias]:
    for name, ours in _SESSIONS.items():
        if name in e2b:
            yield Alias(f"tools.e2b.{name}", f"sessions.{ours}", e2b[name])


def _idle_e2b(skills: Mapping[str, Any], e2b: Mapping[str, Any]) -> Iterator[str]:
    others = [name for name in _LIMITS if name in e2b and e2b[name] != skills.get(name)]
    if others:
        told = f"skills.mode is '{LOCAL}', where those of [skills] hold"
        yield f"these names of tools.e2b have no effect: {', '.join(others)}; {told}"


def _idle_srt(path: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        about = known[name]
        if isinstance(about, Mapping):
            yield from _idle_srt(f"{path}.{name}", value, about)
        elif about is not None and about[1] and value != about[0] and value:
            yield f"{path}.{name} has no effect: {about[1]}"


def _check_srt(path: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    _check_known(path, given, tuple(known))
    for name, about in known.items():
        if isinstance(about, Mapping):
            _check_srt(f"{path}.{name}", _table(given, name, f"{path}.{name}"), about)


def _check_known(path: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if unknown := sorted(given.keys() - set(known)):
        raise InvalidInput(f"{path}.{unknown[0]}", f"is not a setting; known are {', '.join(known)}")


def _table(tables: Mapping[str, Any], name: str, path: str = "") -> Mapping[str, Any]:
    found = tables.get(name, {})
    if not isinstance(found, Mapping):
        raise InvalidInput(path or name, "must be a table", shown(found))
    return found
