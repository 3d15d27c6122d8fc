"""The rights of a planned run: packages, network, secrets. Decided before a sandbox is made.

A refusal here is a failed run with a record of its own (skills-protocol §6 and §10): the request was
well formed, and what it asks for cannot be given or does not fit the skill.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Any

from skillyard.config.network import NetworkSettings
from skillyard.domain.network.policy import Policy
from skillyard.domain.network.session import EgressPlan, GateSecret
from skillyard.domain.package.environment import SHOWN
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.frames import FrameFamilies, FrameLimits
from skillyard.domain.sandbox.spec import (
    AtCap,
    BlobMount,
    EnvironmentRef,
    GuestCall,
    Mount,
    SandboxSpec,
    SkillMount,
    command_request,
    make_spec,
    stay_request,
)
from skillyard.domain.secret import Delivery
from skillyard.domain.skill.skill import Skill
from skillyard.domain.work.command import VIEW, Command
from skillyard.domain.work.limits import Limits
from skillyard.domain.work.record import RunRecord
from skillyard.engine.gateway.for_code import CodeTools, ToolsForCode
from skillyard.engine.network.grant import check_offer, granted, layers_of, profile_layer, why_none
from skillyard.engine.network.run_network import NetworkGrant
from skillyard.engine.observer import Observer, SecretsGiven
from skillyard.engine.packages.ahead import Ahead, Wish, consented
from skillyard.engine.packages.environment import Environment
from skillyard.engine.packages.environments import Environments
from skillyard.engine.packages.for_run import RunPackages
from skillyard.engine.runs.failure import Refused
from skillyard.engine.runs.plan import Plan
from skillyard.engine.runs.record import OutputSchema, first_record
from skillyard.engine.secrets.redact import NOTHING, Redaction, of_hosts
from skillyard.engine.secrets.service import GivenSecret, RunSecrets, secret_versions
from skillyard.engine.skills.run_needs import Given, Rules, run_needs
from skillyard.engine.skills.schemas import complaint
from skillyard.engine.skills.standings import BEFORE_TOOLS
from skillyard.ports.clock import Ids
from skillyard.ports.gate import Gate
from skillyard.ports.jailed import SchemaChecker
from skillyard.values import dataclass

PLACEHOLDER = "skillyard-secret-"
"""Begins the stand-in of a secret that stays at the gate; 32 hexadecimal digits follow."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a run: its sandbox's spec, and the request to the guest."""

    spec: SandboxSpec
    environment: str
    guest: Mapping[str, Any]
    digests: dict[str, Any]
    redaction: Redaction
    blob_prefix: str
    limits: FrameLimits
    network: NetworkGrant | None = None
    needs: dict[str, Any] | None = None
    wish: Wish | None = None
    given: tuple[GivenSecret, ...] = ()


@dataclass(frozen=True, slots=True)
class Supplies:
    """Everything that runs can ask for beside the network."""

    packages: RunPackages
    secrets: RunSecrets
    tools: ToolsForCode


class Granter:
    """Decides what runs may have, and has it made ready. Without ``gate`` no run has a network."""

    def __init__(
        self,
        supplies: Supplies,
        rules: Rules,
        environments: Environments,
        ahead: Ahead,
        schemas: SchemaChecker,
        gate: Gate | None,
        ids: Ids,
        emit: Observer,
        frames: FrameFamilies,
        environ: Mapping[str, str],
    ) -> None:
        """``environ`` has the server's variables; runs get those that settings list."""
        self._variables, self._no_variables = rules.sandbox.variables(environ)
        self._packages = supplies.packages
        self._secrets = supplies.secrets
        self._tools = supplies.tools
        self._rules = rules
        self._closed = rules.sandbox.read_only
        self._environments = environments
        self._ahead = ahead
        self._schemas = schemas
        self._gate = gate
        self._ids = ids
        self._emit = emit
        self._frames = frames

    async def grant(self, plan: Plan) -> Grant:
        """Raises Refused; InvalidInput for an environment that does not exist."""
        await self._check_inputs(plan)
        policy = self._policy(plan)
        environment = await self._packages.give(plan)
        named = environment.built is None or self._environments.is_named(environment)
        group = plan.principal.name if self._rules.policy.separate_principals else ""
        modules = consented(plan, environment, self._environments.definitions[plan.environment], named=named)
        ref, wish = self._ahead.chosen(plan.offer.backend, environment.ref, modules, group)
        prefix = plan.blob_prefix or self._ids.blob() + "-"
        frames = self._frames.of(plan.request.command)
        given = await self._secrets.give(plan) if plan.skills else ()
        if (
            given
            and plan.request.is_cell
            and (names := [one.name for one in given if one.delivery is not Delivery.GATE])
        ):
            rule = f"the interpreter of a session holds no secrets, and the skills need {', '.join(names)}"
            raise Refused("PolicyRefused", f"session_id: {rule}; leave session_id out, or bind them to hosts")
        asked = _asked_tools(plan)
        tools = await self._tools_of(plan, asked) if asked else None
        self._tell(plan, given)
        env, gated = _delivered(given)
        mounts = (*map(_skill_mount, plan.skills), *plan.blob_mounts) if plan.skills or plan.blobs else ()
        guest = _guest(plan, prefix, env, frames, view="workspace" not in self._closed)
        if tools is not None:
            guest["tools"] = tools.names
        if self._variables:
            guest["env"] = {**self._variables, **env}
        command, tenant = plan.request.command, plan.principal.name
        made_for = "python" if command is None else command.language, plan.image
        spec = make_spec(plan.offer.demand, plan.limits, ref, mounts, group, tenant, self._closed, *made_for)
        if command is not None and command.service is not None and command.service.ports:
            spec = replace(spec, forwarding=True)
        if plan.request.stay is not None:
            able = plan.offer.probe.able
            spec = replace(spec, single=False, forwarding=able("forwarding"), terminals=able("terminals"))
        return Grant(
            spec=spec,
            environment=plan.environment if named else f"{plan.environment}+{environment.digest[:SHOWN]}",
            guest=guest,
            digests=_digests(plan, environment.ref, policy, given),
            redaction=Redaction(secret.value for secret in given) if given else NOTHING,
            blob_prefix=prefix,
            limits=frames,
            network=self._network(policy, given, gated, tools),
            needs=self._needs(plan, policy, given, environment, () if tools is None else tools.full_names),
            wish=wish,
            given=given,
        )

    async def prepare(self, plan: Plan) -> Environment:
        """Makes the packages of a run ready. An interpreter with them is made ready as a hint.

        Raises Refused; InvalidInput for an environment that does not exist."""
        environment = await self._packages.give(plan)
        named = environment.built is None or self._environments.is_named(environment)
        group = plan.principal.name if self._rules.policy.separate_principals else ""
        modules = consented(plan, environment, self._environments.definitions[plan.environment], named=named)
        ref, _ = self._ahead.chosen(plan.offer.backend, environment.ref, modules, group)
        command, tenant = plan.request.command, plan.principal.name
        made_for = "python" if command is None else command.language, plan.image
        spec = make_spec(plan.offer.demand, plan.limits, ref, (), group, tenant, self._closed, *made_for)
        await plan.offer.backend.prepare(spec)
        return environment

    def refused_needs(self, plan: Plan) -> dict[str, Any] | None:
        """Returns the needs for the record of a run that was refused."""
        return run_needs(self._rules, plan, Given(refused=True)) if plan.skills else None

    def _needs(
        self,
        plan: Plan,
        policy: Policy | None,
        given: Sequence[GivenSecret],
        environment: Environment,
        tools: Sequence[str],
    ) -> dict[str, Any] | None:
        """Returns the needs of the run's skills with its grants, and the server's variables."""
        grants = Given(policy, given, environment.distributions, tools)
        needs = run_needs(self._rules, plan, grants) if plan.skills else None
        if not self._rules.sandbox.env_allowlist:
            return needs
        hidden = {secret.name: "a secret has this name" for secret in given if secret.name in self._variables}
        variables = {
            "given": sorted(self._variables.keys() - hidden.keys()),
            "refused": {**self._no_variables, **hidden},
        }
        return {**(needs or {"least": plan.trust.least, "skills": [], "dropped": 0}), "variables": variables}

    async def _check_inputs(self, plan: Plan) -> None:
        skill, request = plan.skill, plan.request
        if skill is None or skill.inputs_schema is None:
            return
        key, given = f"{skill.digest} in", request.args_json.encode()
        verdict = await self._schemas.check(plan.principal.name, key, skill.inputs_schema, given)
        if wrong := complaint(verdict, "args"):
            raise Refused("ValidationError", wrong)

    def _policy(self, plan: Plan) -> Policy | None:
        """Returns None for no network. Raises Refused."""
        profile = profile_layer(self._rules.profiles, plan.principal) if plan.principal.profile is not None else None
        asked, least = plan.request.network, plan.trust.least
        policy = granted(self._rules.network, plan.skill, plan.skills, asked, least, profile)
        if policy is not None:
            check_offer(plan.offer, self._gate is not None, policy)
        return policy

    def _network(
        self,
        policy: Policy | None,
        given: Sequence[GivenSecret],
        gated: tuple[GateSecret, ...],
        tools: CodeTools | None,
    ) -> NetworkGrant | None:
        if self._gate is None or (policy is None and tools is None):
            return None
        limits, budget = self._rules.network.limits.egress, None if tools is None else tools.budget
        plan = EgressPlan(policy or Policy(), limits, gated, budget)
        hidden = of_hosts(secret.value for secret in given) if given else NOTHING
        return NetworkGrant(self._gate, plan, hidden, calls=None if tools is None else tools.calls)

    async def _tools_of(self, plan: Plan, asked: Sequence[str]) -> CodeTools:
        """Returns the tools that code or its skill asks for. Raises Refused."""
        who = f"'{plan.of.name}' asks" if plan.of is not None else "the code asks"
        named = f"tools: {who} for {', '.join(asked)}"
        if plan.trust.least:
            raise Refused("PolicyRefused", f"{named}, and {plan.trust.least}; such runs get no tools")
        if plan.of is not None and not plan.request.tools and not plan.trust.standings[plan.of.name].covers_tools:
            raise Refused("PolicyRefused", f"{named}, and {BEFORE_TOOLS}")
        if plan.request.detach:
            rule = "a detached run calls none, since it may outlive its server; leave detach out"
            raise Refused("PolicyRefused", f"{named}, and {rule}")
        granted = await self._tools.grant(plan.principal, plan.run_id, asked, who)
        check_offer(plan.offer, self._gate is not None, "calls of tools")
        return granted

    def _tell(self, plan: Plan, given: Sequence[GivenSecret]) -> None:
        if given:
            skill = plan.skill.name if plan.skill else None
            names = tuple(sorted(secret.name for secret in given))
            self._emit(SecretsGiven(plan.run_id, plan.principal.name, skill, names))


def _asked_tools(plan: Plan) -> tuple[str, ...]:
    """Returns the tools that the request asks for, or those that its skill declares. Mounted skills add none."""
    return plan.request.tools or (plan.of.needs.tools if plan.of is not None else ())


def _delivered(given: Iterable[GivenSecret]) -> tuple[dict[str, str], tuple[GateSecret, ...]]:
    """Returns what stands in the sandbox's environment, and what stays at the gate."""
    env: dict[str, str] = {}
    gated = []
    for secret in given:
        env[secret.name] = secret.value
        if secret.delivery is Delivery.GATE:
            env[secret.name] = placeholder = PLACEHOLDER + token_hex(16)
            gated.append(GateSecret(secret.name, placeholder, secret.value, secret.hosts))
    return env, tuple(gated)


def _skill_mount(skill: Skill) -> Mount:
    return Mount(Content(skill.digest, skill.root), f"/skills/{skill.name}")


def _guest(plan: Plan, prefix: str, secrets: Mapping[str, str], limits: FrameLimits, *, view: bool) -> dict[str, Any]:
    """Returns the request to the guest. ``view`` says that there can be a writable view of a command's skill.

    Raises Refused for variables of a command that would hide a secret, and for files where nothing can be written."""
    call, command = _call(plan, prefix, secrets, limits), plan.request.command
    if plan.request.stay is not None:
        return stay_request(call)
    if command is None or plan.of is None:
        return call.request()
    hidden = sorted(secrets.keys() & command.env.keys())
    if hidden:
        raise Refused("PolicyRefused", f"env: {', '.join(hidden)} would hide secrets of the skill; leave them out")
    if not (view or command.can_only_read):
        rule = "/workspace is read-only here (sandbox.workspace_access): leave inputs and outputs out"
        raise Refused("PolicyRefused", f"{rule}, and use the workdir '{VIEW}', one below it, or '.'")
    return command_request(call, plan.of.import_name, command, view=view)


def _call(plan: Plan, prefix: str, secrets: Mapping[str, str], limits: FrameLimits) -> GuestCall:
    request, skill = plan.request, plan.skill
    entrypoint = skill.runtime.export if skill and skill.runtime else request.entrypoint
    return GuestCall(
        blob_prefix=prefix,
        entrypoint=entrypoint,
        code=request.code if request.command is None else "",
        skill=skill.import_name if skill else None,
        args=request.args,
        skills={s.import_name: _importable(s) for s in plan.skills},
        blobs={b.blob_id: BlobMount(b.kind, b.size) for b in plan.blobs},
        env=secrets,
        limits=limits,
    )


def _importable(skill: Skill) -> SkillMount:
    return SkillMount(f"/skills/{skill.name}", skill.runtime.entrypoint if skill.runtime else None)


def _digests(
    plan: Plan, environment: EnvironmentRef, policy: Policy | None, given: Sequence[GivenSecret]
) -> dict[str, Any]:
    """Returns what makes the run repeatable."""
    request = plan.request
    digests: dict[str, Any] = {"args": _sha256(request.args_json), "environment": environment.digest}
    if request.code is not None:
        digests["code"] = _sha256(request.code)
    if plan.skills:
        digests["skills"] = {skill.name: skill.digest for skill in plan.skills}
    if request.command is not None:
        digests["command"] = _sha256(json.dumps(request.command.stored(), sort_keys=True))
    if plan.of is not None:
        digests["skill"] = plan.of.digest
    if plan.blobs:
        digests["blobs"] = {blob.blob_id: blob.sha256 for blob in plan.blobs}
    if policy is not None:
        digests["network"] = _sha256(json.dumps(layers_of(policy)))
    if given:
        digests["secrets"] = secret_versions(given)
    return digests


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Job:
    """One program to drive.

    ``record`` is its first record, or that of an earlier server whose program is attached; ``guest`` the request to it.
    ``taken_at`` is on the monotonic clock. ``outputs`` is the schema that its result is held to. ``why_offline`` tells
    why it has no network. ``withheld`` tells why nothing of its output may be shown; empty where it may.
    """

    record: RunRecord
    guest: Mapping[str, Any]
    limits: Limits
    redaction: Redaction
    blob_prefix: str
    frames: FrameLimits
    taken_at: float
    outputs: OutputSchema | None
    why_offline: Callable[[], str]
    wish: Wish | None = None
    withheld: str = ""
    command: Command | None = None

    @property
    def at_cap(self) -> AtCap:
        """Returns the fate above the limit of the log: a service goes on, with its latest output."""
        serves = self.command is not None and self.command.service is not None
        return AtCap.RING if serves else AtCap.END


def job_of(plan: Plan, grant: Grant, network: NetworkSettings, session: str | None = None) -> Job:
    """Returns the job of a run that begins, in a session or without one."""
    record = first_record(plan, grant.environment, grant.digests, grant.needs)
    return Job(
        record=record if session is None else replace(record, session_life=session),
        guest=grant.guest,
        limits=plan.limits,
        redaction=grant.redaction,
        blob_prefix=grant.blob_prefix,
        frames=grant.limits,
        taken_at=plan.taken_at,
        outputs=outputs_of(plan),
        why_offline=lambda: offline(plan, network),
        wish=grant.wish,
        command=plan.request.command,
    )


def outputs_of(plan: Plan) -> OutputSchema | None:
    """Returns the schema that the result of the executed skill is held to."""
    skill = plan.skill
    if skill is None or skill.outputs_schema is None:
        return None
    return OutputSchema(f"{skill.digest} out", skill.outputs_schema)


def offline(plan: Plan, network: NetworkSettings) -> str:
    """Returns why a run without a network has none."""
    return why_none(network, plan.skill, plan.skills, plan.request.network, plan.trust.least)
