"""The methods ``skills.*`` that run commands, as Python methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from skillyard.client.calling import Calls, Json, Waits, blocking, given, listed

Language = Literal["bash", "python"]


class CommandMethods(Calls):
    """Shell commands in skills. A non-zero exit code is an answer, not an error."""

    async def run_cmd(
        self,
        skill_name: str,
        command: str,
        *,
        inputs: Sequence[Mapping[str, str]] | None = None,
        outputs: Sequence[Mapping[str, str]] | None = None,
        timeout_sec: float | None = None,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        version: str | None = None,
        language: Language | None = None,
        network: Sequence[str] | None = None,
        limits: Mapping[str, Any] | None = None,
        isolation: str | None = None,
        idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
        agent: str | None = None,
    ) -> Json:
        """Runs a command in a skill and returns how it ended: ``status``, ``exit_code``, ``stdout``, ``stderr``.

        ``inputs`` are ``{"artifact_id": blob, "mount_path": path}``, ``outputs`` are ``{"path": path or pattern,
        "save_as": name}``; the files that came back are ``created_artifacts``, the others ``output_errors``. Paths are
        relative to ``workdir``: ``skill``, a writable copy of the skill, unless another one is given.
        """
        params = given(
            skill_name=skill_name,
            command=command,
            inputs=inputs,
            outputs=outputs,
            timeout_sec=timeout_sec,
            env=env,
            workdir=workdir,
            version=version,
            language=language,
            network=listed(network),
            limits=limits,
            isolation=isolation,
            idempotency_key=idempotency_key,
            labels=labels,
            agent=agent,
        )
        return await self.call("skills.run_cmd", params)


class SyncCommandMethods(Waits):
    """:class:`CommandMethods` without ``await``."""

    run_cmd = blocking(CommandMethods.run_cmd)
