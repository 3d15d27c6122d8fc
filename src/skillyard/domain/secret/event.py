"""What is kept of each use and change of a secret."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class SecretAct(StrEnum):
    """USED: a run was given it. DENIED: a run asked for it and got none. BOUND: its delivery was changed."""

    USED = "used"
    DENIED = "denied"
    SET = "set"
    BOUND = "bound"
    DELETED = "deleted"
    ROLLED_BACK = "rolled_back"
    ROTATED = "rotated"


@dataclass(frozen=True, slots=True)
class SecretEvent:
    """``at`` is in seconds since the epoch. ``project``, ``skill`` and ``run_id`` are those of the run that asked;
    ``scope`` is the entry's (:class:`skillyard.domain.secret.entry.SecretScope`). No value ever stands here."""

    at: float
    act: SecretAct
    name: str
    principal: str
    project: str = ""
    skill: str = ""
    run_id: str = ""
    scope: str = ""
    version: str = ""
    delivery: str = ""
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"act": self.act.value}
