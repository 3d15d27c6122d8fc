"""A command that runs in a skill: its text, its place, and the files that go in and out.

Every path is relative to the working directory, or begins with ``/workspace/``. It is checked part by part, and kept
as the path below ``/workspace``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from skillyard.domain.errors import InvalidInput, UnsupportedLanguage, shape, shown
from skillyard.domain.work.service import Service
from skillyard.domain.work.service import from_stored as stored_service
from skillyard.values import dataclass

LANGUAGES = ("bash", "python", "javascript", "typescript")
"""The last two need node in the sandbox, which says so by name where it has none."""
VIEW = "skill"
"""The writable view of the skill, below ``/workspace``."""
MOST_TEXT = 127 * 1024
"""Bytes of one argument of a program (execve(2)), less some for an option before it."""
VIEWS = ".skill-"
"""Begins the names of the writable views of a session's skills, below ``/workspace``."""
MOST_VARIABLES = 64 * 1024
"""Bytes of all variables of a request."""
_ROOT = "/workspace/"
_MOST_PATH = 512
_MOST_PART = 255
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Input:
    """A blob that is written to ``path`` before the command starts."""

    blob_id: str
    path: str


@dataclass(frozen=True, slots=True)
class Output:
    """A file, or the files that a pattern names, to be kept when the command has ended.

    ``path`` lies below ``/workspace``; ``asked`` is how the caller wrote it. ``save_as`` is the name that the artifact
    gets, or with a pattern the directory before the names; empty for the file's own name.
    """

    path: str
    asked: str
    save_as: str = ""

    @property
    def is_pattern(self) -> bool:
        return _GLOB.search(self.path) is not None

    def filename(self, path: str) -> str:
        """Returns the name of the artifact that was made of ``path``."""
        own = path.rpartition("/")[2]
        if not self.save_as:
            return own
        return f"{self.save_as}{own}" if self.is_pattern else self.save_as


@dataclass(frozen=True, slots=True)
class Command:
    """A checked command. ``workdir`` lies below ``/workspace``; it is empty for that directory itself.

    ``service`` is there when it listens, and is None for other commands. A task tells of a silence of
    ``quiet_after_s``, and is started up to ``max_attempts`` times while its sandbox is lost. ``view`` is the place of
    the skill's writable files, which paths call ``skill``. ``callback_url`` is told the end of a task.
    """

    text: str
    language: str = "bash"
    workdir: str = VIEW
    env: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Output, ...] = ()
    service: Service | None = None
    view: str = VIEW
    quiet_after_s: float | None = None
    max_attempts: int = 1
    callback_url: str | None = None

    @property
    def can_only_read(self) -> bool:
        """Whether it needs no file to be written before it starts, and names none to be kept."""
        return not (self.inputs or self.outputs) and self.workdir.partition("/")[0] in ("", VIEW)

    def stored(self) -> dict[str, Any]:
        """Returns the JSON form that :func:`from_stored` takes."""
        plain = {**asdict(self), "env": dict(self.env)}
        del plain["service"]
        for name, usual in _USUAL:
            if plain[name] == usual:
                del plain[name]
        return plain if self.service is None else {**plain, "service": self.service.stored()}

    def inside(self, path: str) -> str:
        """Returns the place of a path in the sandbox."""
        return path if self.view == VIEW else _moved(path, VIEW, self.view)

    def shown(self, path: str) -> str:
        """Returns the path that callers know a place by."""
        return path if self.view == VIEW else _moved(path, self.view, VIEW)


_USUAL = (("view", VIEW), ("quiet_after_s", None), ("max_attempts", 1), ("callback_url", None))
"""The fields of tasks and sessions that most commands do not have."""


def _moved(path: str, top: str, to: str) -> str:
    return to + path[len(top) :] if path == top or path.startswith(f"{top}/") else path


def from_stored(stored: Mapping[str, Any]) -> Command:
    """Returns the command of :meth:`Command.stored`, which was checked when it came."""
    inputs = tuple(Input(**row) for row in stored["inputs"])
    outputs = tuple(Output(**row) for row in stored["outputs"])
    service = stored_service(stored["service"]) if "service" in stored else None
    return Command(**{**stored, "inputs": inputs, "outputs": outputs, "service": service})


def from_params(params: Mapping[str, Any]) -> Command:
    """Returns the command that checked parameters mean. Raises InvalidInput, UnsupportedLanguage."""
    language = params["language"]
    if language not in LANGUAGES:
        rule = f"is not known; use {', '.join(LANGUAGES[:-1])} or {LANGUAGES[-1]}"
        raise UnsupportedLanguage("language", rule, shown(language), supported=list(LANGUAGES))
    workdir = _workdir(params["workdir"])
    command = Command(
        text=_text(params["command"]),
        language=language,
        workdir=workdir,
        env=_variables(params.get("env") or {}),
        inputs=tuple(_input(at, row, workdir) for at, row in enumerate(params.get("inputs") or ())),
        outputs=tuple(_output(at, row, workdir) for at, row in enumerate(params.get("outputs") or ())),
        quiet_after_s=params.get("quiet_after_sec"),
        max_attempts=params.get("max_attempts", 1),
        callback_url=params.get("callback_url"),
    )
    _check_apart("inputs", "mount_path", [one.path for one in command.inputs])
    names = [one.save_as or one.path for one in command.outputs if not one.is_pattern]
    if len(set(names)) < len(names):
        raise InvalidInput("outputs", "two of them would get one name; give each its own save_as")
    return command


def _text(text: str) -> str:
    if "\0" in text or not text.strip():
        raise InvalidInput("command", "must be text with something in it, and without NUL")
    if len(_encoded("command", text)) > MOST_TEXT:
        raise InvalidInput("command", f"must be at most {MOST_TEXT} bytes; send a longer one as an input")
    return text


def _variables(given: Mapping[str, Any]) -> dict[str, str]:
    total = 0
    for name, value in given.items():
        if not _VARIABLE.fullmatch(name):
            rule = "every name must be a letter or _, then letters, digits or _, at most 128 in all"
            raise InvalidInput("env", rule, shape(name))
        if "\0" in value:
            raise InvalidInput(f"env.{name}", "must not hold NUL")
        total += len(name) + len(_encoded(f"env.{name}", value))
    if total > MOST_VARIABLES:
        raise InvalidInput("env", f"must be at most {MOST_VARIABLES} bytes together")
    return dict(given)


def _workdir(text: str) -> str:
    return "" if text in (".", "/workspace", _ROOT) else _below("workdir", text, "")


def _input(at: int, row: Mapping[str, Any], workdir: str) -> Input:
    where = f"inputs[{at}].mount_path"
    path = _below(where, row["mount_path"], workdir)
    if _GLOB.search(path):
        raise InvalidInput(where, "must be one path; * ? [ are for outputs", shown(row["mount_path"]))
    return Input(row["artifact_id"], path)


def _output(at: int, row: Mapping[str, Any], workdir: str) -> Output:
    where, save_as = f"outputs[{at}]", row.get("save_as") or ""
    made = Output(_below(f"{where}.path", row["path"], workdir), row["path"])
    if not save_as:
        return made
    if made.is_pattern and not save_as.endswith("/"):
        raise InvalidInput(f"{where}.save_as", "must end with '/' where path is a pattern", shown(save_as))
    if not made.is_pattern and save_as.endswith("/"):
        raise InvalidInput(f"{where}.save_as", "must be the name of a file", shown(save_as))
    checked = _parts(f"{where}.save_as", save_as.rstrip("/"))
    return Output(made.path, made.asked, "/".join(checked) + ("/" if made.is_pattern else ""))


def _below(where: str, text: str, workdir: str) -> str:
    """Returns the path below ``/workspace``. Raises InvalidInput."""
    inside = text.startswith(_ROOT)
    parts = _parts(where, text.removeprefix(_ROOT) if inside else text)
    path = "/".join(parts if inside or not workdir else [*workdir.split("/"), *parts])
    if len(path.encode()) > _MOST_PATH:
        raise InvalidInput(where, f"must be at most {_MOST_PATH} bytes", shape(text))
    return path


def _parts(where: str, text: str) -> list[str]:
    parts = text.removeprefix("./").split("/")
    plain = text.isprintable() and "\\" not in text and "\ufffd" not in text
    if not plain or any(part in ("", ".", "..") or len(_encoded(where, part)) > _MOST_PART for part in parts):
        rule = "must be a path below /workspace of plain names, without '..', empty parts and backslashes"
        raise InvalidInput(where, rule, shown(text))
    return parts


def _check_apart(where: str, name: str, paths: Sequence[str]) -> None:
    """Raises InvalidInput for two paths of which one is, or lies below, the other."""
    taken: dict[str, int] = {}
    for at, path in enumerate(paths):
        if path in taken:
            raise InvalidInput(f"{where}[{at}].{name}", f"is the path of {where}[{taken[path]}] too", shown(path))
        taken[path] = at
    for path, at in taken.items():
        parts = path.split("/")
        above = next((up for n in range(1, len(parts)) if (up := "/".join(parts[:n])) in taken), None)
        if above is not None:
            raise InvalidInput(f"{where}[{at}].{name}", f"lies below the file of {where}[{taken[above]}]", shown(path))


def _encoded(where: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(where, "must be Unicode text without lone surrogates", shape(text)) from None
