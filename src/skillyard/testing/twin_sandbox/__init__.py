"""The twin of the sandbox port: everything in memory, with callables for programs. It is not a boundary."""

from __future__ import annotations

from skillyard.testing.twin_sandbox.backend import TwinBackend, TwinHost, TwinSandbox
from skillyard.testing.twin_sandbox.process import Script, TwinProcess

__all__ = ["Script", "TwinBackend", "TwinHost", "TwinProcess", "TwinSandbox"]
