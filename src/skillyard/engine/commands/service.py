"""Commands in skills, from their parameters to their answers. A command is a run like the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from skillyard.config.commands import CommandSettings
from skillyard.config.profiles import ProfileSettings
from skillyard.domain.errors import InvalidInput, QuotaExceeded, SkillyardError, shown
from skillyard.domain.network.policy import parse_rules
from skillyard.domain.principal import Principal, agent_scope
from skillyard.domain.work.command import Command, from_params
from skillyard.domain.work.labels import check_labels
from skillyard.domain.work.record import Outcome, RunKind, RunRecord, RunStatus
from skillyard.engine.blobs.service import agents_blob
from skillyard.engine.commands.ending import NO_CODE
from skillyard.engine.commands.output import STDERR, STDOUT
from skillyard.engine.commands.tails import Tail, tails_of
from skillyard.engine.runs.request import RunRequest, asked_image
from skillyard.engine.runs.service import RunService
from skillyard.engine.sessions.service import SessionService
from skillyard.ports.blobs import BlobStore
from skillyard.ports.records import RecordStore

Params = Mapping[str, Any]
SUCCEEDED, FAILED, CANCELED = "succeeded", "failed", "canceled"


class CommandService:
    """Runs commands for callers that wait for their end. ``settings`` bound what they may ask for."""

    def __init__(
        self,
        runs: RunService,
        sessions: SessionService,
        blobs: BlobStore,
        records: RecordStore,
        settings: CommandSettings,
        profiles: Mapping[str, ProfileSettings],
    ) -> None:
        self._profiles = profiles
        self._runs = runs
        self._sessions = sessions
        self._blobs = blobs
        self._records = records
        self._settings = settings

    async def run(self, principal: Principal, params: Params, *, alone: bool = False) -> dict[str, Any]:
        """Returns the answer of a command that has ended, however it did.

        ``alone`` gives it a sandbox of its own, whatever the settings do with calls that name no session.
        Raises what :meth:`RunService.run` raises, QuotaExceeded, UnsupportedLanguage.
        """
        request = await self.request(principal, params, alone=alone)
        record = await self._runs.record(principal, request)
        return await self.answer(record, request.command)

    async def request(
        self,
        principal: Principal,
        params: Params,
        *,
        task: bool = False,
        alone: bool = False,
        usual_s: float | None = None,
    ) -> RunRequest:
        """Returns the request that checked parameters mean. That for a ``task`` outlives its caller.

        Parameters without a time get ``usual_s``, or the default of the settings, and at most the profile's time.
        """
        command, agent = from_params(params), agent_scope(principal, params.get("agent")).agent
        await self._check_inputs(principal, command)
        limits = dict(params.get("limits") or {})
        asked_s, usual_s = params.get("timeout_sec"), usual_s or self._settings.times(task=task)[0]
        if asked_s is None and limits.get("timeout_ms") is None:
            asked_s = self._within_profile(principal, usual_s)
        elif asked_s is not None and asked_s > (most_s := self._within_profile(principal, asked_s)):
            rule = f"must be at most {most_s:g}, which the profile '{principal.profile}' of this token says"
            raise InvalidInput("timeout_sec", rule, shown(asked_s), limit="timeout_ms", maximum=most_s)
        return RunRequest(
            kind=RunKind.COMMAND,
            skill=params["skill_name"],
            version=params.get("version"),
            input_blobs=tuple(dict.fromkeys(one.blob_id for one in command.inputs)),
            limits={**limits, "timeout_ms": self._timeout_ms(asked_s, limits, task=task)},
            isolation=params.get("isolation"),
            image=asked_image(params),
            network=None if params.get("network") is None else parse_rules(params["network"]),
            idempotency_key=params.get("idempotency_key"),
            labels=check_labels(params["labels"]) if params.get("labels") else {},
            detach=task,
            command=command,
            agent=agent,
            session=None if alone else self._sessions.alias_of(params.get("session_id")),
            wait_ms=self._sessions.wait_ms_of(params.get("wait_ms")),
        )

    def _within_profile(self, principal: Principal, usual_s: float) -> float:
        profile = self._profiles.get(principal.profile or "")
        most_ms = None if profile is None else profile.limits.most.get("timeout_ms")
        return usual_s if most_ms is None else min(usual_s, most_ms / 1000)

    def _timeout_ms(self, asked: float | None, limits: Mapping[str, Any], *, task: bool) -> int:
        """Returns the time of a command. Raises InvalidInput for one that is above its limit, or said twice."""
        name = "commands.max_task_timeout_s" if task else "commands.max_timeout_s"
        _, most = self._settings.times(task=task)
        inner = limits.get("timeout_ms")
        if asked is None:
            asked = float(limits["timeout_ms"]) / 1000
        elif inner not in (None, round(asked * 1000)):
            raise InvalidInput("timeout_sec", "must equal limits.timeout_ms when both are given")
        if asked > most:
            rule = f"must be at most {most:g}, which {name} says"
            raise InvalidInput("timeout_sec", rule, shown(asked), limit=name, maximum=most)
        return max(1, round(asked * 1000))

    async def _check_inputs(self, principal: Principal, command: Command) -> None:
        """Raises BlobNotFound, QuotaExceeded."""
        most, together = self._settings.input_bytes, self._settings.inputs_bytes
        total = 0
        for at, one in enumerate(command.inputs):
            where = f"inputs[{at}].artifact_id"
            size = (await agents_blob(self._blobs, self._records, principal, one.blob_id, where))[0].size
            total += size
            if size > most:
                rule = f"is a file of {size} bytes, and commands.input_bytes allows {most}"
                raise QuotaExceeded(where, rule, limit="commands.input_bytes", maximum=most)
        if total > together:
            rule = f"are {total} bytes together, and commands.inputs_bytes allows {together}"
            raise QuotaExceeded("inputs", rule, limit="commands.inputs_bytes", maximum=together)

    async def answer(self, record: RunRecord, command: Command | None) -> dict[str, Any]:
        """Returns what ``skills.run_cmd`` answers for a run that has ended."""
        most = {STDOUT: self._settings.stdout_bytes, STDERR: self._settings.stderr_bytes}
        tails, lost = await self._tails(record, most)
        told = record.output if isinstance(record.output, dict) else {}
        return {
            "status": status_of(record),
            "reason": "" if record.outcome is None else record.outcome.value,
            "run_id": record.run_id,
            "stdout": tails[STDOUT].text(),
            "stderr": tails[STDERR].text(),
            "stdout_truncated": lost or tails[STDOUT].truncated,
            "stderr_truncated": lost or tails[STDERR].truncated,
            "exit_code": told.get("exit_code", NO_CODE),
            "error_message": "" if record.status is RunStatus.COMPLETED else record.reason,
            "created_artifacts": [artifact(file) for file in record.files],
            "output_errors": told.get("output_errors", []),
            "timing": {"duration_ms": record.usage.get("wall_ms", 0.0)},
            "skill_name": record.skill,
            "version": record.version,
            "version_hash": record.digests.get("skill", ""),
            "workdir": "." if command is None or not command.workdir else command.workdir,
            "skill_root": f"/skills/{record.skill}",
            "isolation": record.isolation,
            "usage": record.usage,
            "limits": record.limits,
            **({"logs_blob": record.logs_blob} if record.logs_blob else {}),
            **await self.session_of(record),
        }

    async def session_of(self, record: RunRecord) -> dict[str, Any]:
        """Returns what an answer about a command says of its session; empty without one."""
        return await self._sessions.times(record.session, record.session_life)

    async def _tails(self, record: RunRecord, most: dict[str, int]) -> tuple[dict[str, Tail], bool]:
        """Returns the ends of both streams, and whether there was output that is not kept any more."""
        if record.logs_blob is not None:
            try:
                return await tails_of(self._blobs.read(record.logs_blob), most), False
            except SkillyardError:  # it expired, or was deleted
                pass
        return await tails_of(_none(), most), bool(record.logs_preview)


async def _none() -> AsyncIterator[bytes]:
    for piece in (b"",):
        yield piece


def status_of(record: RunRecord) -> str:
    """Returns the state of a command: that of its run, and of its exit code when it has ended."""
    if record.status.live:
        return record.status.value
    if record.outcome is Outcome.CANCELLED:
        return CANCELED
    return SUCCEEDED if record.status is RunStatus.COMPLETED else FAILED


def artifact(file: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a file of a command as ``created_artifacts`` tells it."""
    return {
        "artifact_id": file["blob_id"],
        "path": file["path"],
        "filename": file.get("filename", file["path"].rpartition("/")[2]),
        "mime": file["mime"],
        "size": file["size"],
    }
