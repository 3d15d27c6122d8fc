"""The methods of the server as Python methods, over one abstract ``call``.

:class:`ProtocolMethods` serves whatever can call: the client over HTTP and the runtime in process.
:class:`SyncProtocolMethods` is the same for callers without an event loop, method by method.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skillyard.client.methods.calling import Json, blocking, given
from skillyard.client.methods.commands import CommandMethods, SyncCommandMethods
from skillyard.client.methods.gateway import GatewayMethods, SyncGatewayMethods
from skillyard.client.methods.operators import (
    CatalogueMethods,
    EnvironmentMethods,
    SkillTools,
    SyncCatalogueMethods,
    SyncEnvironmentMethods,
    SyncSkillTools,
)
from skillyard.client.methods.tools import SyncToolMethods, ToolMethods
from skillyard.client.run import Run

if TYPE_CHECKING:
    from skillyard.client.sources import Sink

_POLL_MS = 30_000
Detail = Literal["full", "brief"]
"""``brief`` leaves of a run what a model needs."""


class ProtocolMethods(CatalogueMethods, EnvironmentMethods, CommandMethods, SkillTools, ToolMethods, GatewayMethods):
    """Parameters left out are not sent, so the server's defaults hold. Every method raises the errors of
    ``call``; results are the JSON objects of the protocol unless the method says otherwise."""

    async def list_skills(
        self,
        *,
        namespace: str | None = None,
        detail: Literal["names", "summary"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Json:
        """One page: ``skills`` and ``next_cursor``, which is None at the end."""
        return await self.call("list_skills", given(**locals()))

    async def describe_skill(
        self,
        name: str,
        *,
        version: str | None = None,
        detail: Literal["manifest", "summary", "full"] | None = None,
    ) -> Json:
        """``skill``: manifest, versions, documentation."""
        return await self.call("describe_skill", given(**locals()))

    async def read_skill_file(
        self,
        name: str,
        path: str,
        *,
        version: str | None = None,
        offset: int | None = None,
        max_bytes: int | None = None,
    ) -> Json:
        """``content`` in ``encoding``, ``size_bytes``, ``truncated``."""
        return await self.call(
            "read_skill_file",
            given(**locals()),
        )

    async def execute_skill(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        *,
        version: str | None = None,
        input_blobs: Sequence[str] | None = None,
        mount_skills: Sequence[str] | None = None,
        timeout_ms: int | None = None,
        limits: Mapping[str, Any] | None = None,
        isolation: str | None = None,
        image: str | None = None,
        network: Sequence[str] | None = None,
        idempotency_key: str | None = None,
        detach: bool | None = None,
        labels: Mapping[str, str] | None = None,
        detail: Detail | None = None,
    ) -> Run:
        """Run a skill. ``isolation``: the boundary to run behind, where policy offers a choice. ``image``: the image
        of its sandbox by digest, where policy admits it. ``network``: rules that narrow what the skill declares, such
        as ``api.x.com:443``; an empty list for no network. ``idempotency_key``: a repeated call gets the first run.
        ``detach``: the answer comes at once,
        and the run outlives this caller and the server; :meth:`wait_run` has its result. ``labels``: pairs that
        :meth:`list_runs` finds it by. ``detail='brief'``: of the run only what a model needs."""
        return Run.of(await self.call("execute_skill", given(**locals())))

    async def run_code(
        self,
        code: str,
        args: Mapping[str, Any] | None = None,
        *,
        language: str = "python",
        entrypoint: str | None = None,
        environment: str | None = None,
        packages: Sequence[str] | None = None,
        input_blobs: Sequence[str] | None = None,
        mount_skills: Sequence[str] | None = None,
        timeout_ms: int | None = None,
        limits: Mapping[str, Any] | None = None,
        isolation: str | None = None,
        image: str | None = None,
        network: Sequence[str] | None = None,
        idempotency_key: str | None = None,
        detach: bool | None = None,
        labels: Mapping[str, str] | None = None,
        detail: Detail | None = None,
        session_id: str | None = None,
        wait_ms: int | None = None,
        restart: bool | None = None,
        agent: str | None = None,
    ) -> Run:
        """Run source text; its function ``entrypoint`` (``main``) gets ``args``. ``network``: rules that narrow what
        the operator gives to code; an empty list for no network. ``packages``: requirements such as ``numpy>=2`` that
        the code may import, where policy admits them; a ``# /// script`` block in the code asks likewise.
        ``session_id``: the code is a cell of this session's interpreter, which keeps names; ``output["result"]`` is the
        value of the last expression, ``output["repr"]`` its text where JSON has no form for it. ``restart``: with a new
        interpreter. ``wait_ms``: how long to wait while another call has the session."""
        return Run.of(await self.call("run_code", given(**locals())))

    async def create_blob(self, content: str | bytes, kind: str) -> Json:
        """Store a small blob: ``blob_id``, ``size_bytes``. Bytes travel as base64."""
        if isinstance(content, str):
            return await self.call("create_blob", {"content": content, "kind": kind})
        from base64 import b64encode

        encoded = b64encode(content).decode("ascii")
        return await self.call("create_blob", {"content": encoded, "kind": kind, "encoding": "base64"})

    async def read_blob(
        self,
        blob_id: str,
        *,
        mode: Literal["sample_head", "sample_tail", "full"] | None = None,
        max_bytes: int | None = None,
    ) -> Json:
        """``preview`` in ``encoding``, ``kind``, ``size_bytes``, ``truncated``."""
        return await self.call("read_blob", given(**locals()))

    async def get_blob(self, blob_id: str, sink: Sink) -> object:
        """Writes a blob to a path or a binary file."""
        raise NotImplementedError

    async def save_files(self, run: Run, directory: str | os.PathLike[str]) -> list[Path]:
        """Writes the files of ``/workspace/out`` below ``directory``; returns their paths. Raises
        BadArgument for a file that exists already, and the errors of :meth:`get_blob`."""
        base = Path(directory)
        base.mkdir(parents=True, exist_ok=True)
        saved = []
        for file in run.files:
            saved.append(file.place(base))
            await self.get_blob(file.blob_id, saved[-1])
        return saved

    async def load_skills_protocol_guide(self) -> str:
        """The guide's Markdown."""
        return str((await self.call("load_skills_protocol_guide"))["content"])

    async def list_runs(
        self,
        *,
        status: Literal["queued", "starting", "running", "completed", "failed"] | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        all: bool | None = None,
    ) -> Json:
        """One page of run records, newest first: ``runs`` and ``next_cursor``. ``labels``: those that have all of them.
        ``all`` needs ``admin``."""
        return await self.call("runs.list", given(**locals()))

    async def show_run(self, run_id: str, *, detail: Detail | None = None) -> Json:
        """``run``: the run record."""
        return await self.call("runs.show", given(**locals()))

    async def wait_run(self, run_id: str, *, timeout_ms: int | None = None, detail: Detail | None = None) -> Run:
        """Returns the run when it has ended, or as it is after ``timeout_ms``.

        Without ``timeout_ms`` it waits as long as the run takes. No run ends when this caller goes away.
        """
        end = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            left = _POLL_MS if end is None else max(0, round((end - time.monotonic()) * 1000))
            asked = given(run_id=run_id, wait_ms=min(left, _POLL_MS), detail=detail)
            answer = await self.call("runs.wait", asked)
            if answer["ended"] or (end is not None and left <= _POLL_MS):
                return Run.of(answer["run"])

    async def run_logs(
        self, run_id: str, *, offset: int | None = None, max_bytes: int | None = None, wait_ms: int | None = None
    ) -> Json:
        """A piece of the run's log, also while it runs: ``content``, ``next_offset``, ``complete``. ``wait_ms``: waits
        that long for something new."""
        return await self.call("runs.logs", given(**locals()))

    async def run_events(
        self, run_id: str, *, after: int | None = None, limit: int | None = None, wait_ms: int | None = None
    ) -> Json:
        """Events of the run with a number above ``after``: ``events``, ``next_after``, ``complete``. ``wait_ms``: waits
        that long for the first one."""
        return await self.call("runs.events", given(**locals()))

    async def cancel_run(self, run_id: str, *, reason: str | None = None, detail: Detail | None = None) -> Json:
        """End a run: ``cancelled`` (False when it had ended before) and ``run``, its record. Returns when
        nothing of it is left."""
        return await self.call("runs.cancel", given(**locals()))

    async def set_run_network(self, run_id: str, network: Sequence[str]) -> Json:
        """Change what a run at work may reach: ``run``, its record. Rules of the run's owner narrow what was granted,
        those of an ``admin`` take its place below the operator's. In force when this returns, for connections that
        are open too."""
        return await self.call("runs.set_network", given(**locals()))

    async def explain_policy(
        self,
        targets: Sequence[str],
        *,
        skill: str | None = None,
        version: str | None = None,
        code: bool | None = None,
        mount_skills: Sequence[str] | None = None,
        network: Sequence[str] | None = None,
        resolve: bool | None = None,
    ) -> Json:
        """Which rules decide about ``host:port``, layer by layer: ``layers``, ``targets`` and, when such a run would be
        refused, ``refused``."""
        return await self.call("policy.explain", given(**locals()))

    async def drain_server(self, *, undo: bool | None = None, wait_ms: int | None = None) -> Json:
        """Refuse new work until the server is stopped: ``draining``, ``attached``, ``detached``. ``wait_ms``: waits
        that long for the work that ends with the server. Needs ``admin``."""
        return await self.call("server.drain", given(**locals()))

    async def show_policy(self) -> Json:
        """Returns what the operator lets runs reach; needs ``admin``."""
        return await self.call("policy.show")

    async def list_blobs(self, *, limit: int | None = None, cursor: str | None = None, all: bool | None = None) -> Json:
        """One page, newest first: ``blobs`` and ``next_cursor``. ``all`` needs ``admin``."""
        return await self.call("blobs.list", given(**locals()))

    async def stat_blob(self, blob_id: str) -> Json:
        """``blob``: what is known of it."""
        return await self.call("blobs.stat", {"blob_id": blob_id})

    async def delete_blob(self, blob_id: str) -> bool:
        """Returns whether it was there."""
        return bool((await self.call("blobs.delete", {"blob_id": blob_id}))["deleted"])

    async def set_secret(
        self,
        name: str,
        value: str,
        *,
        project: str | None = None,
        skills: str | None = None,
        delivery: Literal["env", "gate"] | None = None,
        hosts: Sequence[str] | None = None,
    ) -> Json:
        """Store a value as a new version: ``secret``, what is known of it. For every project and skill unless it says
        otherwise. No method gives a value back. Needs ``admin``, as all that follow."""
        return await self.call("secrets.set", given(**locals()))

    async def bind_secret(
        self,
        name: str,
        delivery: Literal["env", "gate"],
        hosts: Sequence[str] = (),
        *,
        project: str | None = None,
        skills: str | None = None,
    ) -> Json:
        """Change how a secret is delivered: ``secret``."""
        return await self.call("secrets.bind", given(**locals()))

    async def list_secrets(self, *, limit: int | None = None, cursor: str | None = None) -> Json:
        """One page: ``secrets``, without values, and ``next_cursor``."""
        return await self.call("secrets.list", given(**locals()))

    async def rollback_secret(
        self, name: str, version: int, *, project: str | None = None, skills: str | None = None
    ) -> Json:
        """Make a kept version the current one: ``secret``."""
        return await self.call("secrets.rollback", given(**locals()))

    async def delete_secret(self, name: str, *, project: str | None = None, skills: str | None = None) -> bool:
        """Returns whether it was there."""
        return bool((await self.call("secrets.delete", given(**locals())))["deleted"])

    async def audit_secrets(
        self, *, name: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Json:
        """One page, newest first: ``events`` and ``next_cursor``."""
        return await self.call("secrets.audit", given(**locals()))


class SyncProtocolMethods(
    SyncCatalogueMethods,
    SyncEnvironmentMethods,
    SyncCommandMethods,
    SyncSkillTools,
    SyncToolMethods,
    SyncGatewayMethods,
):
    """:class:`ProtocolMethods` without ``await``. A subclass gives ``_inner`` and ``_wait``."""

    list_skills = blocking(ProtocolMethods.list_skills)
    describe_skill = blocking(ProtocolMethods.describe_skill)
    read_skill_file = blocking(ProtocolMethods.read_skill_file)
    execute_skill = blocking(ProtocolMethods.execute_skill)
    run_code = blocking(ProtocolMethods.run_code)
    create_blob = blocking(ProtocolMethods.create_blob)
    read_blob = blocking(ProtocolMethods.read_blob)
    save_files = blocking(ProtocolMethods.save_files)
    load_skills_protocol_guide = blocking(ProtocolMethods.load_skills_protocol_guide)
    list_runs = blocking(ProtocolMethods.list_runs)
    show_run = blocking(ProtocolMethods.show_run)
    wait_run = blocking(ProtocolMethods.wait_run)
    run_logs = blocking(ProtocolMethods.run_logs)
    run_events = blocking(ProtocolMethods.run_events)
    cancel_run = blocking(ProtocolMethods.cancel_run)
    set_run_network = blocking(ProtocolMethods.set_run_network)
    explain_policy = blocking(ProtocolMethods.explain_policy)
    drain_server = blocking(ProtocolMethods.drain_server)
    show_policy = blocking(ProtocolMethods.show_policy)
    list_blobs = blocking(ProtocolMethods.list_blobs)
    stat_blob = blocking(ProtocolMethods.stat_blob)
    delete_blob = blocking(ProtocolMethods.delete_blob)
    set_secret = blocking(ProtocolMethods.set_secret)
    bind_secret = blocking(ProtocolMethods.bind_secret)
    list_secrets = blocking(ProtocolMethods.list_secrets)
    rollback_secret = blocking(ProtocolMethods.rollback_secret)
    delete_secret = blocking(ProtocolMethods.delete_secret)
    audit_secrets = blocking(ProtocolMethods.audit_secrets)
