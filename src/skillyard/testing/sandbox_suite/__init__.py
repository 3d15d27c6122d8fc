"""The conformance suite of the sandbox port, as functions that need no test runner.

    ground = Ground(backend, scratch=empty_directory)
    for verdict in await examine_all(CHECKS, ground):
        print(verdict.check.id, verdict.status, verdict.reason)

A check is skipped, with the reason of the probe, where the backend does not claim what the check needs: a guarantee, or
a wall. A backend that attests a guarantee without walls is held to the checks of the walls that would bear it.
"""

from __future__ import annotations

from skillyard.testing.sandbox_suite import library
from skillyard.testing.sandbox_suite.check import (
    Check,
    Failed,
    NotApplicable,
    Status,
    Verdict,
    examine,
    examine_all,
)
from skillyard.testing.sandbox_suite.egress import egress
from skillyard.testing.sandbox_suite.files import files
from skillyard.testing.sandbox_suite.forwarding import forwarding
from skillyard.testing.sandbox_suite.ground import Ground
from skillyard.testing.sandbox_suite.guest import commands, guest
from skillyard.testing.sandbox_suite.lifecycle import endurance, lifecycle
from skillyard.testing.sandbox_suite.limits_and_walls import limits, walls
from skillyard.testing.sandbox_suite.mounts import content, mounts
from skillyard.testing.sandbox_suite.output import output
from skillyard.testing.sandbox_suite.programs import endings, programs
from skillyard.testing.sandbox_suite.survival import keeping, snapshots, survival
from skillyard.testing.sandbox_suite.terminals import terminals
from skillyard.testing.sandbox_suite.trees import trees

_SECTIONS = (
    lifecycle, programs, endings, output, limits, files, trees, mounts, content, guest, commands, walls, egress,
    forwarding, terminals, endurance, survival, keeping, snapshots,
)  # fmt: skip

CHECKS: list[Check] = [*(check for section in _SECTIONS for check in section.checks), *library.CHECKS]

__all__ = ["CHECKS", "Check", "Failed", "Ground", "NotApplicable", "Status", "Verdict", "examine", "examine_all"]
