"""The Run object (skills-protocol §4.3), made from a finished record."""

from __future__ import annotations

from typing import Any

from skillyard.domain.work.record import RunRecord, RunStatus
from skillyard.engine.network.refusals import counted


def run_object(record: RunRecord) -> dict[str, Any]:
    """What ``execute_skill`` and ``run_code`` answer. Fields behind ``error`` are additive."""
    completed = record.status is RunStatus.COMPLETED
    run: dict[str, Any] = {
        "status": "completed" if completed else "failed",
        "run_id": record.run_id,
        "summary": record.summary,
        "output_blobs": list(record.output_blobs),
        "files": list(record.files),
        "logs_preview": record.logs_preview,
    }
    if record.notes:
        run["notes"] = list(record.notes)
    if completed:
        run["output"] = record.output
    if record.error is not None:
        run["error"] = record.error
    if record.logs_blob is not None:
        run["logs_blob"] = record.logs_blob
    if record.skill is not None:
        run["skill"] = record.skill
        run["version"] = record.version
    run["environment"] = record.environment
    if record.isolation:
        run["isolation"] = record.isolation
    if record.outcome is not None:
        run["outcome"] = record.outcome.value
    if record.network is not None:
        run["network"] = counted(record.network)
    if record.needs is not None and record.needs["least"]:
        run["least"] = record.needs["least"]
    run["usage"] = record.usage
    run["limits"] = record.limits
    run["enforced"] = record.enforced
    return run
