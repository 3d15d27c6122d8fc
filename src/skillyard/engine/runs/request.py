"""The request for a run. Its parameters are checked; nothing has been looked up yet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from skillyard.domain.errors import InvalidInput, UnsupportedLanguage, shape, shown
from skillyard.domain.network.policy import parse_rules
from skillyard.domain.network.rule import Rule
from skillyard.domain.sandbox.image import check_image
from skillyard.domain.work.command import VIEW, Command
from skillyard.domain.work.command import from_stored as stored_command
from skillyard.domain.work.labels import check_labels
from skillyard.domain.work.record import RunKind
from skillyard.domain.work.stay import Stay
from skillyard.engine.packages.asked import asked_packages
from skillyard.values import dataclass

_HELD = 64 * 1024
"""Bytes that tasks, records and buffers of one request take, however small it is."""
_COPIES = 2
_VALUE = 64
"""Bytes of an empty list, which three bytes of JSON make (sys.getsizeof)."""
_MARKS = ",[{"
_PLAIN = 4096

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One execute_skill, run_code or run_cmd. ``limits`` holds what was asked for, ``timeout_ms`` merged in.

    ``args_json`` is ``args`` in compact JSON: proof that they can be sent, and what the digest is over. ``network``
    are the rules that it narrows to, None when it says nothing. ``packages`` are requirements that its code asks for.
    """

    kind: RunKind
    args: Mapping[str, Any] = field(default_factory=dict)
    args_json: str = "{}"
    skill: str | None = None
    version: str | None = None
    code: str | None = None
    entrypoint: str | None = None
    mount_skills: tuple[str, ...] = ()
    input_blobs: tuple[str, ...] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)
    environment: str | None = None
    packages: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    """Full names or patterns of the tools that its code asks for."""
    isolation: str | None = None
    image: str | None = None
    """The image that it asks for, by digest; None for the one of its skills or of the backend."""
    network: tuple[Rule, ...] | None = None
    idempotency_key: str | None = None
    detach: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    command: Command | None = None
    agent: str = ""
    """The agent that a command belongs to; empty for other runs."""
    session: str | None = None
    """The alias of the session that it runs in; None for a sandbox of its own."""
    life: str = ""
    """The one life of that session in which it may run; empty for any."""
    wait_ms: int = 0
    """How long it waits for that session while another run has it."""
    restart: bool = False
    """Whether its cell gets a new interpreter."""
    stay: Stay | None = None
    """The wishes of a caller that keeps the sandbox; None for a run of a program."""
    weight: int = field(init=False, compare=False)
    """Bytes that it may take while it is held: its text, and the values that were made of it."""

    def __post_init__(self) -> None:
        text = len(self.args_json)
        values = sum(map(self.args_json.count, _MARKS)) if text > _PLAIN else text
        if self.command is not None:
            text += len(self.command.text) + sum(map(len, self.command.env.values()))
        object.__setattr__(self, "weight", _HELD + _COPIES * (text + len(self.code or "")) + _VALUE * values)

    @property
    def is_cell(self) -> bool:
        """Returns whether its code runs in the interpreter of its session."""
        return self.session is not None and self.command is None

    def digest(self) -> str:
        """SHA-256 over everything that decides what runs: what an idempotency key is bound to."""
        parts = [
            self.kind,
            self.args_json,
            self.skill,
            self.version,
            self.code,
            self._entrypoint(),
            self.mount_skills,
            self.input_blobs,
            sorted(self.limits.items()),
            self.environment,
            self.isolation,
            *([] if self.network is None else [[rule.text for rule in self.network]]),
            *([{"packages": self.packages}] if self.packages else []),
            *([{"tools": self.tools}] if self.tools else []),
            *([] if self.command is None else [self._command()]),
            *([] if self.session is None else [{"session": self.session}]),
            *([{"restart": True}] if self.restart else []),
            *([] if self.image is None else [{"image": self.image}]),
            *([] if self.stay is None else [{"stay": self.stay.stored()}]),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _command(self) -> dict[str, Any]:
        assert self.command is not None
        task = {"task": True} if self.detach else {}
        asked = replace(self.command, view=VIEW)  # another place is found where the run is planned
        return {"command": asked.stored(), "agent": self.agent, **task}

    def stored(self) -> dict[str, Any]:
        """Returns the JSON form that :func:`from_stored` takes, for a later server."""
        plain = {name: getattr(self, name) for name in _STORED}
        rules = None if self.network is None else [rule.text for rule in self.network]
        command = {} if self.command is None else {"command": self.command.stored(), "agent": self.agent}
        session = {} if self.session is None else {"session": self.session, "life": self.life}
        image = {} if self.image is None else {"image": self.image}
        labels, stay = dict(self.labels), {} if self.stay is None else {"stay": self.stay.stored()}
        told = {**plain, "kind": self.kind.value, "network": rules, "labels": labels}
        return {**told, **command, **session, **image, **stay}

    def _entrypoint(self) -> str | list[str] | None:
        """Versions before had ``main`` as the default, and a call is repeated across an upgrade."""
        if self.code is None:
            return self.entrypoint
        return [self.entrypoint] if self.entrypoint == "main" else self.entrypoint or "main"


_STORED = (
    "args_json",
    "skill",
    "version",
    "code",
    "entrypoint",
    "mount_skills",
    "input_blobs",
    "limits",
    "environment",
    "packages",
    "isolation",
    "idempotency_key",
    "detach",
)
"""The fields that JSON holds as they are. ``args`` are made of their text."""


def from_stored(stored: Mapping[str, Any]) -> RunRequest:
    """Returns the request of :meth:`RunRequest.stored`, which was checked when it came."""
    plain = {name: stored[name] for name in _STORED}
    for name in ("mount_skills", "input_blobs", "packages"):
        plain[name] = tuple(plain[name])
    return RunRequest(
        kind=RunKind(stored["kind"]),
        args=json.loads(stored["args_json"]),
        network=None if stored["network"] is None else parse_rules(stored["network"]),
        labels=stored["labels"],
        command=stored_command(stored["command"]) if "command" in stored else None,
        agent=stored.get("agent", ""),
        session=stored.get("session"),
        life=stored.get("life", ""),
        image=stored.get("image"),
        stay=Stay(**stored["stay"]) if "stay" in stored else None,
        **plain,
    )


def from_params(kind: RunKind, params: Mapping[str, Any]) -> RunRequest:
    """The request that checked parameters make. Raises InvalidInput."""
    args = params.get("args") or {}
    code = params.get("code")
    if code is not None:
        _check_language(params["language"])
        _check_text("code", code)
    return RunRequest(
        kind=kind,
        args=args,
        args_json=_args_json(args),
        skill=params.get("name"),
        version=params.get("version"),
        code=code,
        entrypoint=params.get("entrypoint"),
        mount_skills=tuple(dict.fromkeys(params.get("mount_skills") or ())),
        input_blobs=tuple(dict.fromkeys(params.get("input_blobs") or ())),
        limits=_limits(params),
        environment=params.get("environment"),
        packages=asked_packages(params, code),
        tools=_tools(params),
        isolation=params.get("isolation"),
        image=asked_image(params),
        network=None if params.get("network") is None else parse_rules(params["network"]),
        idempotency_key=params.get("idempotency_key"),
        detach=bool(params.get("detach")),
        labels=check_labels(params["labels"]) if params.get("labels") else {},
    )


def _tools(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the tools that are asked for. Raises InvalidInput for a run that outlives its server."""
    tools = tuple(dict.fromkeys(params.get("tools") or ()))
    if tools and params.get("detach"):
        rule = "cannot be called by a detached run, which may outlive its server; leave detach out"
        raise InvalidInput("tools", rule)
    return tools


def asked_image(params: Mapping[str, Any]) -> str | None:
    """Returns the image that parameters name. Raises InvalidInput for one that is not named by digest."""
    image = params.get("image")
    return None if image is None else check_image("image", image)


def _check_language(language: str) -> None:
    if language != "python":
        raise UnsupportedLanguage("language", "must be 'python'", shown(language), supported=["python"])


def _check_text(field_name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(field_name, "must be Unicode text without lone surrogates", shape(text)) from None


def _limits(params: Mapping[str, Any]) -> dict[str, Any]:
    """Takes ``timeout_ms`` from both places of the protocol (skills-protocol §4, row 1)."""
    limits = dict(params.get("limits") or {})
    outer = params.get("timeout_ms")
    if outer is None:
        return limits
    if limits.setdefault("timeout_ms", outer) != outer:
        raise InvalidInput("timeout_ms", "must equal limits.timeout_ms when both are given")
    return limits


def _args_json(args: Mapping[str, Any]) -> str:
    if not args:
        return "{}"
    try:
        return _encode(args)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput("args", f"must be JSON-serializable: {_reason(error)}", shape(args)) from None


def _reason(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error)[:200]
