"""``[policy]``, ``[sandbox]``, ``[trust]``: the boundary of runs, and approvals of skills."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer, PlainValidator, ValidationInfo, model_validator

from skillyard.config.section import Section, place
from skillyard.domain.errors import InvalidInput
from skillyard.domain.sandbox.guarantees import GUARANTEES, KERNEL_CAN, OWN_KERNEL, PROTECTIONS
from skillyard.domain.sandbox.image import check_image
from skillyard.domain.skill.trust import TrustRule, parse_trust_rules


def _known_protections(names: frozenset[str]) -> frozenset[str]:
    return _known(names, (*GUARANTEES, *PROTECTIONS))


def _demandable(names: frozenset[str]) -> frozenset[str]:
    return _known(names, (*GUARANTEES, *PROTECTIONS, OWN_KERNEL))


def _known(names: frozenset[str], known_names: Iterable[str]) -> frozenset[str]:
    known = dict.fromkeys(known_names)
    if unknown := sorted(names - known.keys()):
        raise ValueError(f"unknown protections {', '.join(unknown)}; known are {', '.join(known)}")
    return names


def _trust_rules(value: Any, info: ValidationInfo) -> tuple[TrustRule, ...]:
    texts = [item.text if isinstance(item, TrustRule) else item for item in value] if _is_list(value) else value
    return parse_trust_rules(texts, place(info))


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


Protections = Annotated[frozenset[str], AfterValidator(_known_protections)]
Demanded = Annotated[frozenset[str], AfterValidator(_demandable)]
TrustRules = Annotated[
    tuple[TrustRule, ...],
    PlainValidator(_trust_rules),
    PlainSerializer(lambda rules: [rule.text for rule in rules]),
]


Images = Annotated[
    tuple[Annotated[str, AfterValidator(lambda name, info: check_image(place(info), name))], ...],
    Field(max_length=1000),
]


class BoundaryRule(Section):
    """A boundary for the runs of some skills."""

    model_config = ConfigDict(title="policy.rules")

    skills: TrustRules = Field(
        default=(),
        description="The skills it is about, each by a rule as in `trust.approve`; empty is every skill. A run counts "
        "when one of its skills does, mounted ones included.",
    )
    unapproved: bool = Field(
        default=False, description="Whether it is only about skills whose declared needs nobody approved."
    )
    isolation: str = Field(
        default="",
        description="Boundary of such runs. It must be ready, or they are refused; a request that names another one is "
        "refused.",
    )
    demand: Demanded = Field(
        default=frozenset(),
        description="Guarantees and walls that such runs must have, by name. Without `isolation` they get the "
        "strongest boundary of `policy.isolation` and `policy.isolations` that has them.",
    )

    @model_validator(mode="after")
    def _check_effect(self) -> Self:
        """Raises InvalidInput for a rule without an effect."""
        if not self.isolation and not self.demand:
            raise InvalidInput("policy.rules", "must each name an isolation or a demand")
        return self

    def is_about(self, skills: Sequence[tuple[str, str, bool]]) -> bool:
        """Returns whether it is about a run with these skills.

        Each is a name, a version, and whether it is approved.
        """
        return any(
            not self.skills or any(rule.covers(name, version) for rule in self.skills)
            for name, version, approved in skills
            if not (self.unapproved and approved)
        )


class PolicySettings(Section):
    """The boundary around runs."""

    model_config = ConfigDict(title="policy")

    # Any text here: names are checked when settings are loaded, and a runtime may bring a backend of its own.
    isolation: str = Field(
        default="native",
        description="Boundary of a run that names none; `auto` is the strongest that stands on this host.",
    )
    isolations: frozenset[str] = Field(
        default=frozenset(),
        description="Further boundaries that a run may name.",
    )
    images: Images = Field(
        default=(),
        description="Images that skills (`image` in `[runtime]`) and requests may name, each by digest as they do. "
        "Everybody whose runs get there can read what is in them. The isolation must make sandboxes of images.",
    )
    demand: Demanded = Field(
        default=frozenset(),
        description="Guarantees and walls that every run must have, by name, also where its boundary is without them "
        'by nature. `own_kernel` stands for a kernel that is not the host\'s. With `isolation = "auto"` the strongest '
        "boundary that has them is chosen.",
    )
    rules: tuple[BoundaryRule, ...] = Field(
        default=(), description="Boundaries by skill. The first rule that is about a run counts."
    )
    allow_degraded: Protections = Field(
        default=frozenset(),
        description="Guarantees and walls that may be missing, by name. For development alone: it is shown at "
        "`/readyz` and in each record.",
    )
    require: Literal["supervised", "kernel"] = Field(
        default="supervised",
        description="The enforcer that limits need; `kernel` refuses limits that are only watched, and guarantees that "
        "only a provider attests. Set it where runs may be hostile and the host has control groups.",
    )
    run_code_secrets: Literal["none", "mounted"] = Field(
        default="none", description="Secrets that code gets: none, or those that its mounted skills declare."
    )
    separate_principals: bool = Field(
        default=False,
        description="Whether no warm interpreter is shared between principals. Set it where principals do not trust "
        "each other; it costs memory for each of them.",
    )

    @model_validator(mode="after")
    def _check_demand(self) -> Self:
        """Raises InvalidInput for a name that is demanded and may be missing."""
        if both := sorted(self.demand & self.allow_degraded):
            raise InvalidInput("policy.demand", f"must not name what allow_degraded lets be missing: {', '.join(both)}")
        return self

    @property
    def kernel_only(self) -> frozenset[str]:
        """The guarantees that the kernel must attest."""
        return KERNEL_CAN if self.require == "kernel" else frozenset()


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_OURS = re.compile(
    r"(SKILLYARD|SKILLFLAW|LD|BASH|NODE)_.*|PYTHON.*|BASHOPTS|PATH|HOME|PWD|OLDPWD|SHELL|USER|LOGNAME|TMPDIR|ENV|IFS|SHELLOPTS"
    r"|SKILL_DIR|GCONV_PATH|GLIBC_TUNABLES|LOCPATH|NLSPATH|MALLOC_.*"
)
_MOST_VALUE = 32 * 1024


class SandboxSettings(Section):
    """The writable places of a run, and the variables of the server's that it gets."""

    model_config = ConfigDict(title="sandbox")

    workspace_access: Literal["rw", "ro"] = Field(
        default="rw",
        description="Access to `/workspace`: with `ro` nothing can be written there, so that commands take no inputs "
        "and keep no outputs, and code has no `/workspace/out`. The isolation must be `native`.",
    )
    tmpfs: bool = Field(
        default=True,
        description="Whether runs may write to `/tmp` and `/dev/shm`. Without it `TMPDIR` is `/workspace`. The "
        "isolation must be `native`.",
    )
    env_allowlist: tuple[str, ...] = Field(
        default=(),
        description="Variables of the server that every run gets. Everybody whose code runs can read them. A run's "
        "record names those that it did not get, with the reason.",
    )
    read_only_root: bool = Field(
        default=True, description="Always `true`: sandboxes share one root, so that `false` is refused."
    )

    @property
    def read_only(self) -> tuple[str, ...]:
        """The places that runs may not write to: ``workspace``, ``tmp`` and ``shm``."""
        return (*(("workspace",) if self.workspace_access == "ro" else ()), *(() if self.tmpfs else ("tmp", "shm")))

    def variables(self, environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the variables of ``environ`` for runs, and a reason for each other name."""
        refused = {name: why for name in self.env_allowlist if (why := _refusal(name, environ))}
        return {name: environ[name] for name in self.env_allowlist if name not in refused}, refused

    @model_validator(mode="after")
    def _check_root(self) -> Self:
        """Raises InvalidInput for a root that could be written."""
        if not self.read_only_root:
            rule = "must be true: the root is shared by sandboxes and read-only on every backend; write to /workspace"
            raise InvalidInput("sandbox.read_only_root", rule)
        return self


def _refusal(name: str, environ: Mapping[str, str]) -> str:
    if not _NAME.fullmatch(name):
        return "it is not the name of a variable"
    if _OURS.fullmatch(name):
        return "it steers skillyard or programs in the sandbox"
    value = environ.get(name)
    if value is None:
        return "the server has no such variable"
    if len(value) > _MOST_VALUE or not value.isprintable():
        return f"its value is longer than {_MOST_VALUE} characters, or not printable"
    return ""


class TrustSettings(Section):
    """The skills whose needs are granted without an operator's approval of each version.

    The skills that come with skillyard are always among them.
    """

    model_config = ConfigDict(title="trust")

    directories: bool = Field(
        default=True,
        description="Whether skills in `skills_dirs` and in the data directory are approved by being there. Unset it "
        "where others than the operator write to them.",
    )
    approve: TrustRules = Field(
        default=(),
        description="Names of published skills that are approved: one, or all below a prefix (`acme.*`), each with an "
        "optional range of versions (`pdf >=1,<2`).",
        json_schema_extra={"kind": "list of text"},
    )

    def rule_for(self, name: str, version: str) -> TrustRule | None:
        """Returns the first rule that approves this version of a published skill."""
        return next((rule for rule in self.approve if rule.covers(name, version)), None)
