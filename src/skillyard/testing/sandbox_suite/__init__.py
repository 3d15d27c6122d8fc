"""The conformance suite of the sandbox port: what every backend promises, as functions that need no test runner.

    ground = Ground(backend, scratch=empty_directory)
    for verdict in await examine_all(CHECKS, ground):
        print(verdict.check.id, verdict.status, verdict.reason)

A check whose protection the backend's probe calls missing is skipped with the probe's reason.
"""

from __future__ import annotations

from skillyard.testing.sandbox_suite.check import Check, Failed, Status, Verdict, examine, examine_all
from skillyard.testing.sandbox_suite.files import files
from skillyard.testing.sandbox_suite.ground import Ground
from skillyard.testing.sandbox_suite.lifecycle import lifecycle
from skillyard.testing.sandbox_suite.output import output
from skillyard.testing.sandbox_suite.programs import programs

CHECKS: list[Check] = [check for section in (lifecycle, programs, output, files) for check in section.checks]

__all__ = ["CHECKS", "Check", "Failed", "Ground", "Status", "Verdict", "examine", "examine_all"]
