"""``[skills]``, ``[schemas]``, ``[output]``, ``[blobs]``, ``[records]``: stored data."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import ConfigDict, Field

from skillyard.config.section import MIB, Bound, Lifetime, Section
from skillyard.domain.blob import GIB, BlobLimits
from skillyard.domain.sandbox.frames import FrameLimits
from skillyard.domain.skill.publication import PublicationLimits

_USUAL = PublicationLimits()


class SkillsSettings(Section):
    """The bounds of publishing."""

    model_config = ConfigDict(title="skills")

    upload_bytes: int = Field(default=32 * MIB, ge=1024, description="Largest archive of a skill.")
    publish: Literal["strict", "lenient"] = Field(
        default="strict",
        description="Rules for bundles: `strict` is the specification, `lenient` takes every bundle that would be "
        "served from a directory.",
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
    processes: int = Field(
        default=4, ge=2, le=64, description="Most processes that check at a time; one more reads Python for reviews."
    )


_STORED = BlobLimits()
_SENT = FrameLimits()


class OutputSettings(Section):
    """The handling of a run's result and log."""

    model_config = ConfigDict(title="output")

    oversize: Literal["spill", "fail"] = Field(
        default="spill",
        description="Handling of a result beyond 4,096 bytes: `spill` stores it as a blob, `fail` fails the run.",
    )
    log_bytes: int = Field(default=64 * MIB, ge=1024, description="Most bytes of a run's log that are kept.")


class BlobSettings(Section):
    """Sizes, quotas and lifetime of blobs."""

    model_config = ConfigDict(title="blobs")

    json_bytes: int = Field(
        default=32 * MIB,
        ge=1,
        description="Largest blob that comes in a JSON request; larger ones are streamed.",
    )
    max_bytes: int = Field(
        default=_STORED.blob_bytes, ge=1, description="Largest blob, and most bytes of all blobs of one run."
    )
    owner_bytes: int = Field(
        default=_STORED.owner_bytes,
        ge=1,
        description="Most bytes of all blobs of one principal.",
    )
    made_bytes: Bound = Field(
        default=48 * GIB,
        description="Bytes of the blobs that runs of one principal made: at each sweep the oldest beyond that go, but "
        "for those of unfinished runs and jobs; 0 for no bound. Keep it below `blobs.owner_bytes`, where work fails.",
    )
    owner_count: int = Field(default=_STORED.owner_count, ge=1, description="Most blobs of one principal.")
    per_run: int = Field(default=_SENT.blobs, ge=0, description="Most blobs that one run may write.")
    files_per_run: int = Field(
        default=_SENT.files,
        ge=0,
        description="Most files of `/workspace/out` that one run brings out; 0 brings none out.",
    )
    file_bytes: int = Field(
        default=_SENT.file_bytes, ge=1, description="Largest file that a run brings out of `/workspace/out`."
    )
    files_bytes: int = Field(
        default=_SENT.files_bytes, ge=1, description="Most bytes of all files that a run brings out."
    )
    ttl_s: Lifetime = Field(
        default=7 * 86400.0,
        description="Time after which a blob goes; 0 keeps it for ever. Lower it where disk is short.",
    )

    @property
    def limits(self) -> BlobLimits:
        """The bounds of what is stored, as the store takes them."""
        return BlobLimits(self.max_bytes, self.owner_bytes, self.owner_count)

    @cached_property
    def frames(self) -> FrameLimits:
        """The bounds of what one run sends out."""
        return FrameLimits(
            blobs=self.per_run,
            blob_bytes=self.max_bytes,
            files=self.files_per_run,
            file_bytes=self.file_bytes,
            files_bytes=self.files_bytes,
        )


class RecordSettings(Section):
    """Records of runs."""

    model_config = ConfigDict(title="records")

    ttl_s: Lifetime = Field(
        default=30 * 86400.0, description="Time after which a run's record goes; 0 keeps it for ever."
    )
    owner_count: Bound = Field(
        default=100_000,
        description="Most records of one principal: at each sweep the oldest of its ended runs beyond that go; 0 for "
        "no bound.",
    )
    durable: bool = Field(
        default=False,
        description="Whether each record is synced to the disk, so that it survives the loss of power. Runs take "
        "longer by one sync.",
    )
