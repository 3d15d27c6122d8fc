"""``[policy]`` and ``[trust]``: the boundary of runs, and the approval of skills."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer, PlainValidator, ValidationInfo

from skillyard.config.section import Section, place
from skillyard.domain.sandbox.guarantees import GUARANTEES, KERNEL_CAN, PROTECTIONS
from skillyard.domain.skill.trust import TrustRule, parse_trust_rules


def _known_protections(names: frozenset[str]) -> frozenset[str]:
    known = dict.fromkeys((*GUARANTEES, *PROTECTIONS))
    if unknown := sorted(names - known.keys()):
        raise ValueError(f"unknown protections {', '.join(unknown)}; known are {', '.join(known)}")
    return names


def _trust_rules(value: Any, info: ValidationInfo) -> tuple[TrustRule, ...]:
    texts = [item.text if isinstance(item, TrustRule) else item for item in value] if _is_list(value) else value
    return parse_trust_rules(texts, place(info))


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


Protections = Annotated[frozenset[str], AfterValidator(_known_protections)]
TrustRules = Annotated[
    tuple[TrustRule, ...],
    PlainValidator(_trust_rules),
    PlainSerializer(lambda rules: [rule.text for rule in rules]),
]


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

    @property
    def kernel_only(self) -> frozenset[str]:
        """The guarantees that the kernel must attest."""
        return KERNEL_CAN if self.require == "kernel" else frozenset()


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
