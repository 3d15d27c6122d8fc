"""``tests/examples.toml`` of a bundle: runs of the skill with what they must give. The rules over a parsed document.

.. code-block:: toml

    [[example]]
    name = "counts words"
    args = { text = "one two" }

    [example.expect]
    output = { words = 2 }
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from skillyard.domain.skill.manifest import ENV_NAME, check_limits, check_relative
from skillyard.domain.skill.report import Path, Problem, Report
from skillyard.values import dataclass

PATH = "tests/examples.toml"
MOST = 100

_KEYS = frozenset({"name", "args", "blobs", "secrets", "limits", "code", "script", "argv", "stdin", "expect"})
_EXPECT = frozenset({"output", "schema", "error", "message", "log", "blobs", "exit", "stdout", "stderr"})
_BLOB = frozenset({"kind", "contains", "json", "bytes"})
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class ExpectedBlob:
    """The expectations of one output blob; those that are None are not checked.

    They are its media type, a text in it, a part of its JSON, and its first bytes (hexadecimal).
    """

    kind: str | None = None
    contains: str | None = None
    json: Any = None
    bytes: str | None = None


@dataclass(frozen=True, slots=True)
class Expectation:
    """``output`` is a part of what is returned, ``schema`` a JSON Schema of it. With ``error``, the type, the run must
    fail; else it must complete. ``message``, ``log``, ``stdout`` and ``stderr`` are texts that must stand there.
    ``blobs`` in their order; None when nothing is said of them."""

    output: Any = None
    schema: Mapping[str, Any] | None = None
    error: str | None = None
    message: str | None = None
    log: tuple[str, ...] = ()
    blobs: tuple[ExpectedBlob, ...] | None = None
    exit: int | None = None
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """One run. ``blobs`` are files of the bundle by the key of ``args`` that gets the blob's id. ``code`` is run by
    run_code with the skill mounted, ``script`` a file of the bundle that is executed with ``argv`` and ``stdin``;
    with neither the skill itself is executed. ``secrets`` are values for this run alone."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    blobs: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    code: str | None = None
    script: str | None = None
    argv: tuple[str, ...] = ()
    stdin: str = ""
    expect: Expectation = Expectation()


def check_examples(
    document: Mapping[str, Any], files: Collection[str], *, executable: bool, lenient: bool = False
) -> tuple[list[Example], list[Problem]]:
    """Returns the examples that can be run, and the problems.

    ``files`` are those of the bundle; ``executable``: the skill is an action. A skill with wrong examples is still a
    skill: lenient only warns.
    """
    report = Report(lenient)
    report.unknown_keys(document, (), frozenset({"example"}))
    entries = document.get("example", [])
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        report.error(("example",), "type", "must be tables [[example]]", entries)
        entries = []
    if len(entries) > MOST:
        report.error(("example",), "example-many", f"must be at most {MOST}", entries)
        entries = entries[:MOST]
    examples = [_Reader(report, ("example", i), entry, files, executable).example() for i, entry in enumerate(entries)]
    _check_names(report, examples)
    problems = [replace(problem, level="warning") if lenient else problem for problem in report.problems]
    return [] if report.failed else examples, problems


def _check_names(report: Report, examples: list[Example]) -> None:
    names = [example.name for example in examples]
    for index, name in enumerate(names):
        if name and name in names[:index]:
            report.error(("example", index, "name"), "example-duplicate", "another example has this name")


class _Reader:
    """One entry at ``path``."""

    def __init__(
        self, report: Report, path: Path, entry: Mapping[str, Any], files: Collection[str], executable: bool
    ) -> None:
        self._report, self._path, self._entry, self._files, self._executable = report, path, entry, files, executable

    def example(self) -> Example:
        self._report.unknown_keys(self._entry, self._path, _KEYS)
        made = Example(
            name=self._report.text(self._entry, self._at("name"), required=True) or "",
            args=self._report.table(self._entry, self._at("args")),
            blobs=self._blobs(),
            secrets=self._secrets(),
            limits=self._limits(),
            code=self._report.text(self._entry, self._at("code")),
            script=self._script(),
            argv=self._report.texts(self._entry, self._at("argv")),
            stdin=self._report.text(self._entry, self._at("stdin")) or "",
            expect=self._expectation(),
        )
        self._check_way(made)
        return made

    def _at(self, *keys: str | int) -> Path:
        return (*self._path, *keys)

    def _check_way(self, made: Example) -> None:
        if made.code is not None and made.script is not None:
            self._report.error(self._at("script"), "example-way", "stands beside 'code'; use one of them")
        elif made.code is None and made.script is None and not self._executable:
            rule = "must have 'code' or 'script': an instruction skill is not executed"
            self._report.error(self._path, "example-way", rule)
        if made.script is None and (made.argv or made.stdin):
            self._report.error(self._path, "example-way", "'argv' and 'stdin' are for a 'script'")
        clash = sorted(set(made.blobs) & set(made.args))
        if clash:
            self._report.error(self._at("blobs", clash[0]), "example-way", "args has this key already")

    def _blobs(self) -> dict[str, str]:
        table = self._report.table(self._entry, self._at("blobs"))
        found = {key: self._report.text(table, self._at("blobs", key)) for key in table}
        return {key: path for key, path in found.items() if path and self._is_file(self._at("blobs", key), path)}

    def _script(self) -> str | None:
        path = self._report.text(self._entry, self._at("script"))
        if path is not None:
            self._is_file(self._at("script"), path)
        return path

    def _is_file(self, path: Path, value: str) -> bool:
        if not check_relative(self._report, path, value):
            return False
        if value not in self._files:
            self._report.error(path, "example-file", "must be a file of the skill, from its root", value)
            return False
        return True

    def _secrets(self) -> dict[str, str]:
        table = self._report.table(self._entry, self._at("secrets"))
        for key in table:
            if ENV_NAME.fullmatch(key) is None:
                self._report.error(self._at("secrets", key), "secret-name", "must be an environment variable's name")
        return {key: text for key in table if (text := self._report.text(table, self._at("secrets", key))) is not None}

    def _limits(self) -> dict[str, Any]:
        return dict(check_limits(self._report, self._at("limits"), self._entry, free=""))

    def _expectation(self) -> Expectation:
        report, path = self._report, self._at("expect")
        table = report.table(self._entry, path)
        report.unknown_keys(table, path, _EXPECT)
        error = report.text(table, (*path, "error"))
        for key in ("output", "schema", "exit", "stdout", "stderr"):
            if error is not None and key in table:
                report.error((*path, key), "example-way", "a run that fails gives none; expect 'error' or this")
        code = table.get("exit")
        if code is not None and (not isinstance(code, int) or isinstance(code, bool)):
            report.error((*path, "exit"), "type", "must be an exit code", code)
        for key in ("exit", "stdout", "stderr"):
            if key in table and "script" not in self._entry:
                report.error((*path, key), "example-way", "is of a 'script'")
        return Expectation(
            output=table.get("output"),
            schema=report.table(table, (*path, "schema")) if "schema" in table else None,
            error=error,
            message=report.text(table, (*path, "message")),
            log=self._strings(table, "log"),
            blobs=self._expected_blobs(table),
            exit=code,
            stdout=self._strings(table, "stdout"),
            stderr=self._strings(table, "stderr"),
        )

    def _strings(self, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
        """Returns one text or a list of them as a tuple."""
        value = table.get(key)
        return self._report.texts({key: [value] if isinstance(value, str) else value}, self._at("expect", key))

    def _expected_blobs(self, table: Mapping[str, Any]) -> tuple[ExpectedBlob, ...] | None:
        value, path = table.get("blobs"), self._at("expect", "blobs")
        if value is None:
            return None
        if not isinstance(value, list):
            self._report.error(path, "type", "must be a list of media types, or of tables", value)
            return None
        return tuple(self._expected_blob(item, (*path, index)) for index, item in enumerate(value))

    def _expected_blob(self, item: Any, path: Path) -> ExpectedBlob:
        entry = {"kind": item} if isinstance(item, str) else item
        if not isinstance(entry, Mapping):
            self._report.error(path, "type", "must be a media type, or a table", item)
            return ExpectedBlob()
        self._report.unknown_keys(entry, path, _BLOB)
        start = self._report.text(entry, (*path, "bytes"))
        if start is not None and not re.fullmatch(r"(?:[0-9a-fA-F]{2})+", start):
            self._report.error((*path, "bytes"), "example-bytes", "must be pairs of hexadecimal digits", start)
        return ExpectedBlob(
            kind=self._report.text(entry, (*path, "kind")),
            contains=self._report.text(entry, (*path, "contains")),
            json=entry.get("json"),
            bytes=start,
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """``path`` says where, as ``output.rows[2].name``; the others are short texts."""

    path: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class GivenBlob:
    """``data`` is its beginning."""

    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Given:
    """How a run ended; ``error`` and ``message`` are empty for one that completed. For a script ``output`` holds
    ``exit``, ``stdout`` and ``stderr``."""

    output: Any = None
    error: str = ""
    message: str = ""
    log: str = ""
    blobs: Sequence[GivenBlob] = ()


def differences(expect: Expectation, given: Given) -> Iterator[Difference]:
    """Yields the differences of a run from its expectation; a schema is left to a validator."""
    if expect.error is not None and given.error != expect.error:
        yield Difference("error", expect.error, _ended(given))
        return
    if expect.error is None and given.error:
        yield Difference("error", "none", _ended(given))
        return
    if expect.message is not None and expect.message not in given.message:
        yield Difference("message", f"a text with {_show(expect.message)}", _show(given.message))
    if expect.output is not None:
        yield from _part("output", expect.output, given.output)
    yield from _process(expect, given)
    yield from (_missing("log", text, given.log) for text in expect.log if text not in given.log)
    if expect.blobs is not None:
        yield from _blobs(expect.blobs, given.blobs)


def _ended(given: Given) -> str:
    return f"{given.error}: {given.message}"[:_SHOWN] if given.error else "the run completed"


def _process(expect: Expectation, given: Given) -> Iterator[Difference]:
    ended = given.output if isinstance(given.output, Mapping) else {}
    if expect.exit is not None and ended.get("exit") != expect.exit:
        yield Difference("exit", str(expect.exit), _show(ended.get("exit")))
    for name, texts in (("stdout", expect.stdout), ("stderr", expect.stderr)):
        said = str(ended.get(name, ""))
        yield from (_missing(name, text, said) for text in texts if text not in said)


def _part(path: str, expected: Any, got: Any) -> Iterator[Difference]:
    """Compares values; objects may hold more than expected, lists may not; 1 equals 1.0."""
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        for key, value in expected.items():
            if key in got:
                yield from _part(f"{path}.{key}", value, got[key])
            else:
                yield Difference(f"{path}.{key}", _show(value), "nothing")
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, (wanted, found) in enumerate(zip(expected, got, strict=True)):
            yield from _part(f"{path}[{index}]", wanted, found)
    elif not _equal(expected, got):
        yield Difference(path, _show(expected), _show(got))


def _equal(expected: Any, got: Any) -> bool:
    numbers = isinstance(expected, (int, float)) and isinstance(got, (int, float))
    if numbers and not isinstance(expected, bool) and not isinstance(got, bool):
        return math.isclose(expected, got, rel_tol=1e-9, abs_tol=1e-12)
    return type(expected) is type(got) and bool(expected == got)


def _blobs(expected: Sequence[ExpectedBlob], given: Sequence[GivenBlob]) -> Iterator[Difference]:
    if len(expected) != len(given):
        kinds = ", ".join(blob.kind for blob in given)
        yield Difference("blobs", str(len(expected)), f"{len(given)} ({kinds})" if given else "0")
        return
    for index, (wanted, blob) in enumerate(zip(expected, given, strict=True)):
        yield from _blob(f"blobs[{index}]", wanted, blob)


def _blob(path: str, wanted: ExpectedBlob, blob: GivenBlob) -> Iterator[Difference]:
    if wanted.kind is not None and wanted.kind != blob.kind:
        yield Difference(f"{path}.kind", wanted.kind, blob.kind)
    if wanted.contains is not None and wanted.contains.encode() not in blob.data:
        yield _missing(f"{path}.contains", wanted.contains, blob.data.decode("utf-8", "replace"))
    if wanted.bytes is not None and not blob.data.startswith(bytes.fromhex(wanted.bytes)):
        yield Difference(f"{path}.bytes", wanted.bytes, blob.data[: len(wanted.bytes) // 2].hex())
    if wanted.json is not None:
        try:
            value = json.loads(blob.data)
        except (ValueError, RecursionError):
            yield Difference(f"{path}.json", _show(wanted.json), "no JSON")
        else:
            yield from _part(f"{path}.json", wanted.json, value)


def _missing(path: str, text: str, said: str) -> Difference:
    return Difference(path, f"a text with {_show(text)}", _show(said))


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 40]} … {text[-30:]}"
