"""``[admission]``: how many runs work and wait, and how they share the host."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from skillyard.config.section import MIB, Section, host_memory_mb


class AdmissionSettings(Section):
    """How many runs work and wait. Several principals that want everything get equal shares."""

    model_config = ConfigDict(title="admission")

    running: int = Field(default=64, ge=1, description="Runs that work at a time. Lower it on a small host.")
    queued: int = Field(
        default=256,
        ge=0,
        description="Runs that may wait for a place; more are refused with `Busy`.",
    )
    queued_each: int = Field(default=128, ge=0, description="Runs of one principal that may wait.")
    overcommit: float = Field(
        default=4.0,
        gt=0,
        description="Times the memory of the host that running sandboxes may be promised together, memory and disk "
        "limits added. Lower it to 1 where runs really use their limits.",
    )
    reserve: float = Field(
        default=0.25,
        ge=0,
        lt=1,
        description="Part of the places, of the memory and of the queue that one principal alone leaves free for "
        "others. Set it to 0 where there is one principal only.",
    )
    requests_mb: int = Field(
        default=256,
        ge=1,
        description="Memory of the server that the requests of all runs that wait or work may hold.",
    )

    @property
    def memory_mb(self) -> int:
        """The most that running sandboxes may be promised together, in MiB."""
        return int(host_memory_mb() * self.overcommit)

    @property
    def request_bytes(self) -> int:
        """``requests_mb`` in bytes."""
        return self.requests_mb * MIB
