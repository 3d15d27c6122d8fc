"""The methods ``skills.*`` of commands, tasks and jobs, as Python methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from skillyard.client.methods.calling import Calls, Json, Waits, blocking, given

Language = Literal["bash", "python", "javascript", "typescript"]


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
        session_id: str | None = None,
        wait_ms: int | None = None,
        version: str | None = None,
        language: Language | None = None,
        network: Sequence[str] | None = None,
        limits: Mapping[str, Any] | None = None,
        isolation: str | None = None,
        image: str | None = None,
        idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
        agent: str | None = None,
    ) -> Json:
        """Runs a command in a skill and returns how it ended: ``status``, ``exit_code``, ``stdout``, ``stderr``.

        ``inputs`` are ``{"artifact_id": blob, "mount_path": path}``, ``outputs`` are ``{"path": path or pattern,
        "save_as": name}``; the files that came back are ``created_artifacts``, the others ``output_errors``. Paths are
        relative to ``workdir``: ``skill``, a writable copy of the skill, unless another one is given. Calls with one
        ``session_id`` share ``/workspace``, one call at a time.
        """
        return await self.call("skills.run_cmd", given(**locals()))

    async def run_cmd_async(
        self,
        skill_name: str,
        command: str,
        *,
        inputs: Sequence[Mapping[str, str]] | None = None,
        outputs: Sequence[Mapping[str, str]] | None = None,
        timeout_sec: float | None = None,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        session_id: str | None = None,
        wait_ms: int | None = None,
        version: str | None = None,
        language: Language | None = None,
        network: Sequence[str] | None = None,
        limits: Mapping[str, Any] | None = None,
        isolation: str | None = None,
        image: str | None = None,
        idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
        agent: str | None = None,
        quiet_after_sec: float | None = None,
        max_attempts: int | None = None,
        callback_url: str | None = None,
    ) -> Json:
        """Starts a command as a task, which outlives this caller and the server: ``task_id``.

        The parameters are those of :meth:`run_cmd`. An event tells that it wrote nothing for ``quiet_after_sec``. It
        is started up to ``max_attempts`` times while its sandbox is lost. ``callback_url`` is told of its end.
        """
        return await self.call("skills.run_cmd_async", given(**locals()))

    async def task_status(self, task_id: str, *, tail_bytes: int | None = None, agent: str | None = None) -> Json:
        """How far a task is: ``status``, ``exit_code``, ``stdout_tail``, ``stderr_tail``, ``created_artifacts``."""
        return await self.call("skills.task_status", given(**locals()))

    async def query_status(
        self,
        query_command: str,
        *,
        skill_name: str | None = None,
        task_id: str | None = None,
        workdir: str | None = None,
        status_field: str | None = None,
        progress_field: str | None = None,
        events_field: str | None = None,
        done_states: Sequence[str] | None = None,
        error_states: Sequence[str] | None = None,
        timeout_sec: float | None = None,
        agent: str | None = None,
    ) -> Json:
        """The state of work elsewhere, which ``query_command`` prints as JSON: ``state``, ``done``, ``error``."""
        params = given(
            skill_name=skill_name,
            task_id=task_id,
            workdir=workdir,
            status_field=status_field,
            progress_field=progress_field,
            events_field=events_field,
            done_states=done_states,
            error_states=error_states,
            timeout_sec=timeout_sec,
            agent=agent,
        )
        return await self.call("skills.task_status", {"provider": "cmd", "query_command": query_command, **params})

    async def task_watch(
        self,
        task_id: str,
        *,
        timeout_sec: float | None = None,
        tail_bytes: int | None = None,
        heartbeat_sec: float | None = None,
        dedupe_key: str | None = None,
        agent: str | None = None,
    ) -> Json:
        """Waits for the end of a task, ``timeout_sec`` at most: :meth:`task_status`, ``timed_out``."""
        return await self.call("skills.task_watch", given(**locals()))

    async def task_logs(
        self,
        task_id: str,
        *,
        offset: int | None = None,
        max_bytes: int | None = None,
        wait_ms: int | None = None,
        stream: Literal["stdout", "stderr"] | None = None,
        agent: str | None = None,
    ) -> Json:
        """One page of a task's output: ``chunks`` of a stream and a text each, ``next_offset``, ``complete``."""
        return await self.call("skills.task_logs", given(**locals()))

    async def task_cancel(self, task_id: str, *, reason: str | None = None, agent: str | None = None) -> Json:
        """Ends a task and all that it started: ``canceled`` is False when it had ended before."""
        return await self.call("skills.task_cancel", given(**locals()))

    async def list_tasks(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        agent: str | None = None,
        mode: Literal["batch", "service"] | None = None,
    ) -> Json:
        """One page, newest first: ``tasks`` and ``next_cursor``."""
        return await self.call("skills.tasks", given(**locals()))

    async def start_job(
        self,
        skill_name: str,
        session_id: str,
        steps: Sequence[Mapping[str, Any]],
        *,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        max_concurrency: int | None = None,
        max_wall_time_sec: float | None = None,
        version: str | None = None,
        language: Language | None = None,
        network: Sequence[str] | None = None,
        limits: Mapping[str, Any] | None = None,
        isolation: str | None = None,
        image: str | None = None,
        idempotency_key: str | None = None,
        agent: str | None = None,
    ) -> Json:
        """Starts commands that work one after the other in a session, each a task: ``job_id``.

        A step is ``{"command": text}``, and may have ``name``, ``timeout_sec``, ``env``, ``workdir``, ``language``,
        ``inputs`` and ``outputs``. ``step:NAME/FILENAME`` as ``artifact_id`` names an artifact of an earlier step.
        """
        params = given(
            skill_name=skill_name,
            session_id=session_id,
            steps=[dict(step) for step in steps],
            workdir=workdir,
            env=env,
            max_concurrency=max_concurrency,
            max_wall_time_sec=max_wall_time_sec,
            version=version,
            language=language,
            network=network,
            limits=limits,
            isolation=isolation,
            image=image,
            idempotency_key=idempotency_key,
            agent=agent,
        )
        return await self.call("skills.start_job", params)

    async def job_status(self, job_id: str, *, tail_bytes: int | None = None, agent: str | None = None) -> Json:
        """How far a job is: ``status``, ``current_step_index``, and ``steps`` with the ends of their output."""
        return await self.call("skills.job_status", given(**locals()))

    async def job_watch(
        self,
        job_id: str,
        *,
        timeout_sec: float | None = None,
        tail_bytes: int | None = None,
        heartbeat_sec: float | None = None,
        dedupe_key: str | None = None,
        agent: str | None = None,
    ) -> Json:
        """Waits for the end of a job, ``timeout_sec`` at most: :meth:`job_status`, ``timed_out``."""
        return await self.call("skills.job_watch", given(**locals()))

    async def job_cancel(self, job_id: str, *, reason: str | None = None, agent: str | None = None) -> Json:
        """Ends a job and its step at work: ``canceled`` is False when it had ended before."""
        return await self.call("skills.job_cancel", given(**locals()))

    async def list_jobs(self, *, limit: int | None = None, cursor: str | None = None, agent: str | None = None) -> Json:
        """One page, newest first: ``jobs`` and ``next_cursor``."""
        return await self.call("skills.jobs", given(**locals()))

    async def read_artifact(
        self, artifact_id: str, *, offset: int | None = None, max_bytes: int | None = None, agent: str | None = None
    ) -> Json:
        """One page of a file of a command: ``filename``, ``content``, ``encoding``, ``next_offset``."""
        return await self.call("skills.read_artifact", given(**locals()))

    async def sessions(
        self, *, ended: bool = False, all: bool = False, limit: int | None = None, agent: str | None = None
    ) -> Json:
        """Returns the sessions of an agent, newest first, with ``ended`` also ended ones."""
        params = given(ended=ended or None, all=all or None, limit=limit, agent=agent)
        return await self.call("skills.sessions", params)

    async def end_session(self, session_id: str, *, reason: str | None = None, agent: str | None = None) -> Json:
        """Ends a session and its call at work. Nothing of its files is left when this returns."""
        return await self.call("skills.end_session", given(**locals()))

    async def run_service(
        self,
        /,
        skill_name: str,
        command: str,
        *,
        expose_ports: Sequence[int] | None = None,
        ready_pattern: str | None = None,
        startup_timeout_sec: float | None = None,
        restart: Literal["never", "on-failure"] | None = None,
        **asked: Any,
    ) -> Json:
        """Starts a command that listens: ``task_id``, ``exposed_endpoints``. It outlives caller and server.

        ``asked`` are the parameters of :meth:`run_cmd`.
        """
        params = given(
            skill_name=skill_name,
            command=command,
            expose_ports=expose_ports,
            ready_pattern=ready_pattern,
            startup_timeout_sec=startup_timeout_sec,
            restart=restart,
            **asked,
        )
        return await self.call("skills.run_service", params)

    async def open_service(self, task_id: str, port: int, *, path: str | None = None) -> Json:
        """Returns a ``url`` that opens a port of a service in a browser, once and within a minute."""
        return await self.call("skills.open_service", given(**locals()))


class SyncCommandMethods(Waits):
    """:class:`CommandMethods` without ``await``."""

    run_cmd = blocking(CommandMethods.run_cmd)
    run_service = blocking(CommandMethods.run_service)
    open_service = blocking(CommandMethods.open_service)
    run_cmd_async = blocking(CommandMethods.run_cmd_async)
    task_status = blocking(CommandMethods.task_status)
    query_status = blocking(CommandMethods.query_status)
    task_watch = blocking(CommandMethods.task_watch)
    task_logs = blocking(CommandMethods.task_logs)
    task_cancel = blocking(CommandMethods.task_cancel)
    list_tasks = blocking(CommandMethods.list_tasks)
    start_job = blocking(CommandMethods.start_job)
    job_status = blocking(CommandMethods.job_status)
    job_watch = blocking(CommandMethods.job_watch)
    job_cancel = blocking(CommandMethods.job_cancel)
    list_jobs = blocking(CommandMethods.list_jobs)
    read_artifact = blocking(CommandMethods.read_artifact)
    sessions = blocking(CommandMethods.sessions)
    end_session = blocking(CommandMethods.end_session)
