"""Runs examples of a skill over a server or a runtime in this process."""

from __future__ import annotations

import asyncio
import io
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from mimetypes import guess_type
from pathlib import Path
from typing import Any, Protocol

from skillyard.client.client import FetchedBlob, StoredBlob
from skillyard.domain.skill.example import Difference, Example, Given, GivenBlob, differences
from skillyard.domain.skill.schema import SchemaVerdict
from skillyard.domain.skill.skill import Finding, Skill, SkillKind
from skillyard.jailed.pool import NO_ACCOUNT, JailedPool
from skillyard.stores.skills.tree import Caps, Tree, read_tree
from skillyard.stores.skills.validation.bundle import Bundle, Place, check_bundle
from skillyard.stores.skills.validation.companions import read_examples
from skillyard.stores.skills.validation.findings import Findings


@dataclass(frozen=True, slots=True)
class Subject:
    directory: Path
    skill: Skill
    tree: Tree
    examples: Sequence[Example]

    def data(self, path: str) -> bytes:
        return self.tree.files[path].data


def read_subject(path: Path | str) -> tuple[Subject | None, Sequence[Finding]]:
    """None with the findings when the skill, or one of its examples, is not valid. Strict, but for the form of an Agent
    Skill's examples, which has no other judge."""
    directory = Path(os.path.abspath(path))  # noqa: PTH100 - the directory's own name counts, not a link's target
    if not directory.is_dir():
        return None, [Finding("error", str(path), 0, "no-directory", "is not a directory that holds a skill")]
    tree, refused = read_tree(directory, Caps())
    if tree is None:
        return None, refused
    skill, findings = check_bundle(Bundle(tree, Place.of(directory), directory, lenient=False))
    if skill is None:
        return None, findings
    own = Findings()
    examples = read_examples(tree, own, executable=skill.kind is SkillKind.ACTION, lenient=False)
    if own.failed:
        return None, own
    return Subject(directory, skill, tree, examples), findings


CODE = '''\
import os
import subprocess
import sys

from runtime import blobs


def main(args):
    script = os.path.join(os.environ["SKILLS_DIR"], args["skill"], args["script"])
    with open(script, "rb") as stream:
        own = stream.read(2) == b"#!" and os.access(script, os.X_OK) and not script.endswith(".py")
    argv = [_path(args["blobs"], text) for text in args["argv"]]
    command = [script] if own else [sys.executable if script.endswith(".py") else "/bin/sh", script]
    done = subprocess.run([*command, *argv], input=args["stdin"].encode(), capture_output=True)
    said = {"stdout": done.stdout.decode(errors="replace"), "stderr": done.stderr.decode(errors="replace")}
    sys.stdout.write(said["stdout"])
    sys.stderr.write(said["stderr"])
    return {"exit": done.returncode, **said}


def _path(ids, text):
    """{key} stands for the file of the blob of that key."""
    for key, blob_id in ids.items():
        text = text.replace("{" + key + "}", str(blobs.path(blob_id)))
    return text
'''
"""The program for run_code. Python files run under its own interpreter, others by their first line or the shell."""


def script_args(skill: str, example: Example, ids: dict[str, str]) -> dict[str, Any]:
    return {"skill": skill, "script": example.script, "argv": list(example.argv), "stdin": example.stdin, "blobs": ids}


MOST_OF_A_BLOB = 16 * 1024 * 1024
"""Bytes of an output blob, or of a log, that are looked at."""


class Target(Protocol):
    """The part that a synchronous client and a synchronous runtime have in common."""

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]: ...

    def put_blob(self, source: bytes, kind: str = ...) -> StoredBlob: ...

    def get_blob(self, blob_id: str, sink: Any, *, length: int | None = None) -> FetchedBlob: ...


@dataclass(frozen=True, slots=True)
class Result:
    """``seconds`` of the whole run, the building of its environment with it; ``log`` is its end."""

    name: str
    passed: bool
    seconds: float
    run_id: str
    differences: tuple[Difference, ...] = ()
    log: str = ""

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "differences": [asdict(difference) for difference in self.differences]}


@dataclass(frozen=True, slots=True)
class Runner:
    """``own``: the target is made for this test alone, so examples may store secrets there."""

    target: Target
    subject: Subject
    own: bool
    isolation: str | None = None

    def run(self, examples: Sequence[Example], *, keep_going: bool) -> Iterator[Result]:
        """Each as it ends; the first that fails is the last unless ``keep_going``. Raises what the target raises."""
        for example in examples:
            result = self._one(example)
            yield result
            if not result.passed and not keep_going:
                return

    def _one(self, example: Example) -> Result:
        self._store_secrets(example)
        try:
            start = time.perf_counter()
            run = self._call(example)
            seconds = time.perf_counter() - start
        finally:
            self._remove_secrets(example)
        given = self._given(run)
        found = (*differences(example.expect, given), *_against_schema(example, given))
        return Result(example.name, not found, round(seconds, 3), run["run_id"], found, given.log[-2000:])

    def _call(self, example: Example) -> dict[str, Any]:
        ids = {key: self._upload(path) for key, path in example.blobs.items()}
        skill = self.subject.skill
        params: dict[str, Any] = {"args": {**example.args, **ids}, "input_blobs": list(ids.values())}
        if example.limits:
            params["limits"] = dict(example.limits)
        if self.isolation:
            params["isolation"] = self.isolation
        if example.code is None and example.script is None:
            return self.target.call("execute_skill", {**params, "name": skill.name, "version": skill.version})
        if example.script is not None:
            params["args"] = script_args(skill.name, example, ids)
        params |= {"code": example.code or CODE, "language": "python", "mount_skills": [skill.name]}
        return self.target.call("run_code", params)

    def _upload(self, path: str) -> str:
        kind = guess_type(path)[0] or "application/octet-stream"
        return self.target.put_blob(self.subject.data(path), kind).blob_id

    def _store_secrets(self, example: Example) -> None:
        for name, value in example.secrets.items() if self.own else ():
            self.target.call("secrets.set", {"name": name, "value": value})

    def _remove_secrets(self, example: Example) -> None:
        for name in example.secrets if self.own else ():
            self.target.call("secrets.delete", {"name": name})

    def _given(self, run: Mapping[str, Any]) -> Given:
        error = run.get("error") or {}
        output = run.get("output")
        spilt = output.get("blob_id") if isinstance(output, dict) and output.get("truncated") is True else None
        ids = [blob_id for blob_id in run.get("output_blobs") or () if blob_id != spilt]
        return Given(
            output=json.loads(self._fetch(spilt)) if spilt else output,
            error=str(error.get("type") or ("" if run["status"] == "completed" else "failed")),
            message=str(error.get("message") or ""),
            log=self._log(run),
            blobs=[self._blob(blob_id) for blob_id in ids],
        )

    def _log(self, run: Mapping[str, Any]) -> str:
        blob_id = run.get("logs_blob")
        return self._fetch(blob_id).decode("utf-8", "replace") if blob_id else str(run.get("logs_preview") or "")

    def _blob(self, blob_id: str) -> GivenBlob:
        return GivenBlob(str(self._about(blob_id)["kind"]), self._fetch(blob_id))

    def _about(self, blob_id: str) -> Mapping[str, Any]:
        about: Mapping[str, Any] = self.target.call("blobs.stat", {"blob_id": blob_id})["blob"]
        return about

    def _fetch(self, blob_id: str) -> bytes:
        size = self._about(blob_id)["size_bytes"]
        if not size:
            return b""
        sink = io.BytesIO()
        self.target.get_blob(blob_id, sink, length=min(size, MOST_OF_A_BLOB))
        return sink.getvalue()


def _against_schema(example: Example, given: Given) -> Iterator[Difference]:
    if example.expect.schema is None or given.error:
        return
    verdict = asyncio.run(_checked(example.expect.schema, json.dumps(given.output).encode()))
    if verdict.unfit:
        yield Difference("output", "what the schema says", f"the schema cannot be applied: {verdict.unfit[:200]}")
    for path, message in verdict.errors:
        at = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
        yield Difference(f"output{at}", "what the schema says", message[:200])


async def _checked(schema: Mapping[str, Any], value: bytes) -> SchemaVerdict:
    """Checks an output in a process that can be ended: the schema's writer is not trusted."""
    pool = JailedPool(NO_ACCOUNT)
    try:
        return await pool.check("", "", schema, value)
    finally:
        await pool.close()


def why_another(target: Target, subject: Subject) -> str:
    """Why its examples would try something else there; empty when they would not. Raises what the target raises, as
    SkillNotFound."""
    skill = subject.skill
    about = target.call("describe_skill", {"name": skill.name, "version": skill.version, "detail": "full"})["skill"]
    there = {file["path"]: file["sha256"] for file in about["files"]}
    if there != {file.path: file.sha256 for file in skill.files}:
        return f"the server has other content under {skill.name}@{skill.version}"
    mounts = any(example.code or example.script for example in subject.examples)
    latest = target.call("describe_skill", {"name": skill.name, "detail": "manifest"})["skill"]["version"]
    if mounts and latest != skill.version:
        return f"code and scripts mount the latest version, which is {latest} there"
    return ""
