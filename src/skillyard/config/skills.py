"""``[skills]`` of the settings: what may be published."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from skillyard.domain.skill.publication import PublicationLimits

_USUAL = PublicationLimits()


class SkillsSettings(BaseModel):
    """``upload_bytes`` of one archive. ``publish`` is what bundles are held to: ``strict`` is the specification,
    ``lenient`` whatever would be served from a directory. ``project_versions`` and ``project_bytes`` bound what one
    project may ever publish."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    upload_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    publish: Literal["strict", "lenient"] = "strict"
    project_versions: int = Field(default=_USUAL.count, ge=1)
    project_bytes: int = Field(default=_USUAL.bytes, ge=1)

    def limits(self) -> PublicationLimits:
        return PublicationLimits(self.project_versions, self.project_bytes)
