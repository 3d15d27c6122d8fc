"""``[skills]`` and ``[schemas]``: what may be published, and the bounds of checks against skills' schemas."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from skillyard.config.section import MIB, Section
from skillyard.domain.skill.publication import PublicationLimits

_USUAL = PublicationLimits()


class SkillsSettings(Section):
    """What may be published."""

    model_config = ConfigDict(title="skills")

    upload_bytes: int = Field(default=32 * MIB, ge=1024, description="Largest archive of a skill.")
    publish: Literal["strict", "lenient"] = Field(
        default="strict",
        description="What bundles are held to: `strict` is the specification, `lenient` takes whatever would be served "
        "from a directory.",
    )
    project_versions: int = Field(
        default=_USUAL.count, ge=1, description="Most versions that one project may ever publish."
    )
    project_bytes: int = Field(
        default=_USUAL.bytes,
        ge=1,
        description="Most bytes that one project may ever publish.",
    )

    @property
    def limits(self) -> PublicationLimits:
        """The bounds of one project, as the store takes them."""
        return PublicationLimits(self.project_versions, self.project_bytes)


class SchemaSettings(Section):
    """The bounds of one check against a skill's schema. A check that needs more fails its run with
    ``ValidationError``."""

    model_config = ConfigDict(title="schemas")

    check_s: float = Field(
        default=1.0,
        gt=0,
        le=60,
        description="Processor time of one check; by the clock it may take five times that.",
    )
    memory_mb: int = Field(default=512, ge=128, description="Memory of one check.")
    processes: int = Field(default=4, ge=2, le=64, description="Most processes that check at a time.")
