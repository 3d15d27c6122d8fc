"""The methods of the server as Python methods, over one abstract ``call``.

:class:`ProtocolMethods` serves whatever can call: the client over HTTP and the runtime in process.
:class:`SyncProtocolMethods` is the same for callers without an event loop, method by method.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast

from skillyard.client.run import Run

P = ParamSpec("P")
T = TypeVar("T")

Json = dict[str, Any]


class ProtocolMethods:
    """Parameters left out are not sent, so the server's defaults hold. Every method raises the errors of
    ``call``; results are the JSON objects of the protocol unless the method says otherwise."""

    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> Json:
        """The result of any method by its name."""
        raise NotImplementedError

    async def list_skills(
        self,
        *,
        namespace: str | None = None,
        detail: Literal["names", "summary"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Json:
        """One page: ``skills`` and ``next_cursor``, which is None at the end."""
        return await self.call("list_skills", _given(namespace=namespace, detail=detail, limit=limit, cursor=cursor))

    async def describe_skill(
        self,
        name: str,
        *,
        version: str | None = None,
        detail: Literal["manifest", "summary", "full"] | None = None,
    ) -> Json:
        """``skill``: manifest, versions, documentation."""
        return await self.call("describe_skill", _given(name=name, version=version, detail=detail))

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
            _given(name=name, path=path, version=version, offset=offset, max_bytes=max_bytes),
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
        isolation: Literal["native", "gvisor", "landlock", "auto"] | None = None,
        network: Sequence[str] | None = None,
        idempotency_key: str | None = None,
        detach: bool | None = None,
    ) -> Run:
        """Run a skill. ``isolation``: the boundary to run behind, where policy offers a choice. ``network``: rules that
        narrow what the skill declares, such as ``api.x.com:443``; an empty list for no network.
        ``idempotency_key``: a repeated call gets the first run. ``detach``: the run goes on when this caller
        goes away; else it is cancelled."""
        params = _given(
            name=name,
            args=args,
            version=version,
            input_blobs=input_blobs,
            mount_skills=mount_skills,
            timeout_ms=timeout_ms,
            limits=limits,
            isolation=isolation,
            network=_listed(network),
            idempotency_key=idempotency_key,
            detach=detach,
        )
        return Run.of(await self.call("execute_skill", params))

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
        isolation: Literal["native", "gvisor", "landlock", "auto"] | None = None,
        network: Sequence[str] | None = None,
        idempotency_key: str | None = None,
        detach: bool | None = None,
    ) -> Run:
        """Run source text; its function ``entrypoint`` (``main``) gets ``args``. ``network``: rules that narrow what
        the operator gives to code; an empty list for no network. ``packages``: requirements such as ``numpy>=2`` that
        the code may import, where policy admits them; a ``# /// script`` block in the code asks likewise."""
        params = _given(
            language=language,
            code=code,
            args=args,
            entrypoint=entrypoint,
            environment=environment,
            packages=_listed(packages),
            input_blobs=input_blobs,
            mount_skills=mount_skills,
            timeout_ms=timeout_ms,
            limits=limits,
            isolation=isolation,
            network=_listed(network),
            idempotency_key=idempotency_key,
            detach=detach,
        )
        return Run.of(await self.call("run_code", params))

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
        return await self.call("read_blob", _given(blob_id=blob_id, mode=mode, max_bytes=max_bytes))

    async def load_skills_protocol_guide(self) -> str:
        """The guide's Markdown."""
        return str((await self.call("load_skills_protocol_guide"))["content"])

    async def list_runs(
        self,
        *,
        status: Literal["running", "completed", "failed"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        all: bool | None = None,
    ) -> Json:
        """One page of run records, newest first: ``runs`` and ``next_cursor``. ``all`` needs ``admin``."""
        return await self.call("runs.list", _given(status=status, limit=limit, cursor=cursor, all=all))

    async def show_run(self, run_id: str) -> Json:
        """``run``: the run record."""
        return await self.call("runs.show", {"run_id": run_id})

    async def run_logs(self, run_id: str, *, offset: int | None = None, max_bytes: int | None = None) -> Json:
        """A piece of the run's log, also while it runs: ``content``, ``next_offset``, ``complete``."""
        return await self.call("runs.logs", _given(run_id=run_id, offset=offset, max_bytes=max_bytes))

    async def cancel_run(self, run_id: str, *, reason: str | None = None) -> Json:
        """End a run: ``cancelled`` (False when it had ended before) and ``run``, its record. Returns when
        nothing of it is left."""
        return await self.call("runs.cancel", _given(run_id=run_id, reason=reason))

    async def set_run_network(self, run_id: str, network: Sequence[str]) -> Json:
        """Change what a run at work may reach: ``run``, its record. Rules of the run's owner narrow what was granted,
        those of an ``admin`` take its place below the operator's. In force when this returns, for connections that
        are open too."""
        return await self.call("runs.set_network", {"run_id": run_id, "network": _listed(network)})

    async def skill_needs(self, name: str, *, version: str | None = None) -> Json:
        """What a skill declares that it needs: ``needs`` (rows of ``need``, ``asked``, ``granted``, ``why``), the
        ``digest`` that an approval is bound to, and whether it is ``approved``, ``by`` what and ``because`` of whom."""
        return await self.call("catalogue.needs", _given(name=name, version=version))

    async def approve_skill(
        self, name: str, *, version: str | None = None, digest: str | None = None, note: str | None = None
    ) -> Json:
        """Consent to what a version declares: its needs, and ``approval``. With ``digest``, only to these bytes. Needs
        ``admin``."""
        return await self.call("catalogue.approve", _given(name=name, version=version, digest=digest, note=note))

    async def revoke_skill(self, name: str, *, version: str | None = None) -> Json:
        """Take approvals back, of every version when none is given: ``revoked`` counts them, ``still`` says what
        approves it all the same. Needs ``admin``."""
        return await self.call("catalogue.revoke", _given(name=name, version=version))

    async def list_approvals(
        self, *, name: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Json:
        """One page: ``approvals`` and ``next_cursor``. Needs ``admin``."""
        return await self.call("catalogue.approvals", _given(name=name, limit=limit, cursor=cursor))

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
        params = _given(
            targets=list(targets),
            skill=skill,
            version=version,
            code=code,
            mount_skills=mount_skills,
            network=_listed(network),
            resolve=resolve,
        )
        return await self.call("policy.explain", params)

    async def show_policy(self) -> Json:
        """What the operator lets runs reach; needs ``admin``."""
        return await self.call("policy.show")

    async def list_blobs(self, *, limit: int | None = None, cursor: str | None = None, all: bool | None = None) -> Json:
        """One page, newest first: ``blobs`` and ``next_cursor``. ``all`` needs ``admin``."""
        return await self.call("blobs.list", _given(limit=limit, cursor=cursor, all=all))

    async def stat_blob(self, blob_id: str) -> Json:
        """``blob``: what is known of it."""
        return await self.call("blobs.stat", {"blob_id": blob_id})

    async def delete_blob(self, blob_id: str) -> bool:
        """Whether it was there."""
        return bool((await self.call("blobs.delete", {"blob_id": blob_id}))["deleted"])

    async def skill_versions(self, name: str, *, history: int | None = None) -> Json:
        """``versions``, newest first, withdrawn ones too; ``latest``, ``pin``, ``project`` and ``history``."""
        return await self.call("catalogue.versions", _given(name=name, history=history))

    async def diff_skill(self, name: str, old: str, new: str | None = None) -> Json:
        """What version ``new``, the latest when left out, has that ``old`` had not: ``needs``, what widens first,
        ``facts`` and ``files`` with unified diffs; ``same`` and ``widens``."""
        return await self.call("catalogue.diff", {"name": name, "from": old, **_given(to=new)})

    async def review_skill(self, name: str, *, version: str | None = None) -> Json:
        """What a reader should know before trusting it: ``needs``, ``imports``, ``hosts``, and ``findings``, the gravest
        first."""
        return await self.call("catalogue.review", _given(name=name, version=version))

    async def withdraw_skill(self, name: str, version: str, *, reason: str | None = None) -> Json:
        """Serve a published version no longer: its state, ``changed`` and ``unpinned``. Runs at work go on. Needs
        ``publish``, as those that follow, for the project that the name belongs to."""
        return await self.call("catalogue.withdraw", _given(name=name, version=version, reason=reason))

    async def restore_skill(self, name: str, version: str) -> Json:
        """Serve a withdrawn version again."""
        return await self.call("catalogue.restore", {"name": name, "version": version})

    async def pin_skill(self, name: str, version: str) -> Json:
        """Choose which version the name alone means."""
        return await self.call("catalogue.pin", {"name": name, "version": version})

    async def unpin_skill(self, name: str) -> Json:
        """Let the name mean the newest version again: ``unpinned``, ``latest``."""
        return await self.call("catalogue.unpin", {"name": name})

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
        params = _given(
            name=name,
            value=value,
            project=project,
            skills=skills,
            delivery=delivery,
            hosts=None if hosts is None else list(hosts),
        )
        return await self.call("secrets.set", params)

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
        params = _given(name=name, delivery=delivery, hosts=list(hosts), project=project, skills=skills)
        return await self.call("secrets.bind", params)

    async def list_secrets(self, *, limit: int | None = None, cursor: str | None = None) -> Json:
        """One page: ``secrets``, without values, and ``next_cursor``."""
        return await self.call("secrets.list", _given(limit=limit, cursor=cursor))

    async def rollback_secret(
        self, name: str, version: int, *, project: str | None = None, skills: str | None = None
    ) -> Json:
        """Make a kept version the current one: ``secret``."""
        return await self.call("secrets.rollback", _given(name=name, version=version, project=project, skills=skills))

    async def delete_secret(self, name: str, *, project: str | None = None, skills: str | None = None) -> bool:
        """Whether it was there."""
        params = _given(name=name, project=project, skills=skills)
        return bool((await self.call("secrets.delete", params))["deleted"])

    async def audit_secrets(
        self, *, name: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Json:
        """One page, newest first: ``events`` and ``next_cursor``."""
        return await self.call("secrets.audit", _given(name=name, limit=limit, cursor=cursor))


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """For a class with ``_inner`` and ``_wait``: the method of ``_inner`` with this name, waited for."""

    @wraps(method)
    def wait(self: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._wait(getattr(self._inner, method.__name__)(*args, **kwargs))
        return result

    return cast("Callable[Concatenate[Any, P], T]", wait)


class SyncProtocolMethods:
    """:class:`ProtocolMethods` without ``await``. A subclass gives ``_inner`` and ``_wait``."""

    _inner: ProtocolMethods

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    call = blocking(ProtocolMethods.call)
    list_skills = blocking(ProtocolMethods.list_skills)
    describe_skill = blocking(ProtocolMethods.describe_skill)
    read_skill_file = blocking(ProtocolMethods.read_skill_file)
    execute_skill = blocking(ProtocolMethods.execute_skill)
    run_code = blocking(ProtocolMethods.run_code)
    create_blob = blocking(ProtocolMethods.create_blob)
    read_blob = blocking(ProtocolMethods.read_blob)
    load_skills_protocol_guide = blocking(ProtocolMethods.load_skills_protocol_guide)
    list_runs = blocking(ProtocolMethods.list_runs)
    show_run = blocking(ProtocolMethods.show_run)
    run_logs = blocking(ProtocolMethods.run_logs)
    cancel_run = blocking(ProtocolMethods.cancel_run)
    set_run_network = blocking(ProtocolMethods.set_run_network)
    skill_needs = blocking(ProtocolMethods.skill_needs)
    approve_skill = blocking(ProtocolMethods.approve_skill)
    revoke_skill = blocking(ProtocolMethods.revoke_skill)
    list_approvals = blocking(ProtocolMethods.list_approvals)
    explain_policy = blocking(ProtocolMethods.explain_policy)
    show_policy = blocking(ProtocolMethods.show_policy)
    list_blobs = blocking(ProtocolMethods.list_blobs)
    stat_blob = blocking(ProtocolMethods.stat_blob)
    delete_blob = blocking(ProtocolMethods.delete_blob)
    skill_versions = blocking(ProtocolMethods.skill_versions)
    diff_skill = blocking(ProtocolMethods.diff_skill)
    review_skill = blocking(ProtocolMethods.review_skill)
    withdraw_skill = blocking(ProtocolMethods.withdraw_skill)
    restore_skill = blocking(ProtocolMethods.restore_skill)
    pin_skill = blocking(ProtocolMethods.pin_skill)
    unpin_skill = blocking(ProtocolMethods.unpin_skill)
    set_secret = blocking(ProtocolMethods.set_secret)
    bind_secret = blocking(ProtocolMethods.bind_secret)
    list_secrets = blocking(ProtocolMethods.list_secrets)
    rollback_secret = blocking(ProtocolMethods.rollback_secret)
    delete_secret = blocking(ProtocolMethods.delete_secret)
    audit_secrets = blocking(ProtocolMethods.audit_secrets)


def _listed(texts: Sequence[str] | None) -> Sequence[str] | None:
    """A text is left whole, for the server to refuse: its letters are no list."""
    return texts if texts is None or isinstance(texts, str) else list(texts)


def _given(**params: Any) -> Json:
    """The parameters that were given; None is how a method's signature says left out."""
    return {name: value for name, value in params.items() if value is not None}
