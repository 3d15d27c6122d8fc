"""``[trust]`` of the settings: which skills get what they declare without an operator's word for each version."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from skillyard.domain.skill.trust import Trust, parse_trust_rules


class TrustSettings(BaseModel):
    """``directories``: skills in ``skills_dirs`` and in the data directory are approved by being there. ``approve`` are
    names of published skills: one, all below a prefix, each with an optional range of versions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    directories: bool = True
    approve: tuple[str, ...] = ()

    @field_validator("approve", mode="before")
    @classmethod
    def _check_approve(cls, value: Any) -> Any:
        parse_trust_rules(value)
        return value

    def config(self) -> Trust:
        return Trust(self.directories, parse_trust_rules(self.approve))
