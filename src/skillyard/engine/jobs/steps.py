"""The steps of a job as parameters of tasks, and the artifacts that they name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from skillyard.domain.checks import check_unicode
from skillyard.domain.errors import BlobNotFound, InvalidInput, shown
from skillyard.domain.principal import Principal
from skillyard.domain.work.command import MOST_TEXT, Command, from_params
from skillyard.domain.work.job import JobRecord
from skillyard.values import dataclass

Params = Mapping[str, Any]
OF_STEP = "step:"
"""Begins an artifact id that names a file of an earlier step: ``step:NAME/FILENAME``."""
MOST_BYTES = 4 * MOST_TEXT
"""Bytes of all steps together, as they are stored."""
_SHARED = ("skill_name", "version", "network", "limits", "isolation", "image", "agent", "session_id")
_OWN = ("command", "inputs", "outputs", "timeout_sec", "max_attempts")

_encode = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Everything that a later server needs beside the record: ``steps`` are parameters of ``skills.run_cmd_async``.

    It holds no secret.
    """

    principal: Principal
    steps: tuple[Params, ...]

    def encoded(self) -> str:
        """Raises InvalidInput for steps that are too large together."""
        text = _encode({**self.principal.stored(), "steps": self.steps})
        if len(text) > MOST_BYTES:
            rule = f"must be at most {MOST_BYTES} bytes together; send large texts as inputs"
            raise InvalidInput("steps", rule, f"{len(text)} bytes")
        return text

    @classmethod
    def decoded(cls, text: str, job: JobRecord) -> JobRequest:
        stored = json.loads(text)
        return cls(Principal.of_stored(job.principal, job.project, stored), tuple(stored["steps"]))


def digest(*asked: Any) -> str:
    """Returns what an idempotency key is bound to."""
    return hashlib.sha256(_encode(asked).encode()).hexdigest()


def steps_of(params: Params) -> tuple[dict[str, Any], ...]:
    """Returns each step as parameters of a task. Its own ``env`` lies over that of the job."""
    shared = {name: params[name] for name in _SHARED if name in params}
    return tuple(
        {
            **shared,
            "workdir": step.get("workdir", params["workdir"]),
            "language": step.get("language", params["language"]),
            "env": {**(params.get("env") or {}), **(step.get("env") or {})},
            **{name: step[name] for name in _OWN if name in step},
        }
        for step in params["steps"]
    )


def names_of(params: Params) -> tuple[str, ...]:
    """Returns the names of the steps; ``step-1`` and so on for those without one. Raises InvalidInput."""
    if not params["steps"]:
        raise InvalidInput("steps", "must have at least one step")
    names: list[str] = []
    for at, step in enumerate(params["steps"]):
        name = step.get("name") or f"step-{at + 1}"
        check_unicode(f"steps[{at}].name", name)
        if name in names:
            raise InvalidInput(f"steps[{at}].name", f"is the name of steps[{names.index(name)}] too", shown(name))
        names.append(name)
    return tuple(names)


def check_steps(steps: Sequence[Params], names: Sequence[str]) -> list[Params]:
    """Returns the steps with the inputs alone that are there already. Raises InvalidInput, UnsupportedLanguage.

    A file of another step must be one of an earlier step, which has outputs.
    """
    plain: list[Params] = []
    commands: list[Command] = []
    for at, step in enumerate(steps):
        with of_step(at):
            commands.append(from_params(step))
        known = []
        for number, one in enumerate(step.get("inputs") or ()):
            if one["artifact_id"].startswith(OF_STEP):
                _check_reference(f"steps[{at}].inputs[{number}].artifact_id", one["artifact_id"], names[:at], commands)
            else:
                known.append(one)
        plain.append({**step, "inputs": known})
    return plain


def _check_reference(where: str, text: str, names: Sequence[str], commands: Sequence[Command]) -> None:
    name, filename = _referred(text)
    if name not in names or not filename:
        raise InvalidInput(where, "must be 'step:NAME/FILENAME' with the name of an earlier step", shown(text))
    outputs = commands[names.index(name)].outputs
    sure = {output.filename(output.path) for output in outputs if not output.is_pattern}
    if filename not in sure and not any(output.is_pattern for output in outputs):
        raise InvalidInput(where, f"must be a file that outputs of step '{name}' name", shown(text))


def _referred(text: str) -> tuple[str, str]:
    name, _, filename = text.removeprefix(OF_STEP).partition("/")
    return name, filename


def resolved(at: int, step: Params, made: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Returns the parameters of a step's task. ``made`` has the blob ids by step and file name.

    Raises BlobNotFound for a file that the earlier step did not make.
    """
    inputs = []
    for number, one in enumerate(step.get("inputs") or ()):
        blob_id = one["artifact_id"]
        if blob_id.startswith(OF_STEP):
            name, filename = _referred(blob_id)
            found = made.get(name, {}).get(filename)
            if found is None:
                where = f"steps[{at}].inputs[{number}].artifact_id"
                raise BlobNotFound(where, f"step '{name}' left no artifact '{filename}'", blob_id=blob_id)
            blob_id = found
        inputs.append({**one, "artifact_id": blob_id})
    return {**step, "inputs": inputs}


@contextmanager
def of_step(at: int) -> Iterator[None]:
    """Has errors name the step that they are about."""
    try:
        yield
    except InvalidInput as error:
        raise error.below(f"steps[{at}]") from None
