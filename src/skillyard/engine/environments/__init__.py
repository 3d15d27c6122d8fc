"""Packages for runs: what is wanted is resolved once, built in a sandbox, kept read-only and shared."""

from __future__ import annotations

from skillyard.engine.environments.build import Build
from skillyard.engine.environments.builder import Builder, SandboxBuilder
from skillyard.engine.environments.building import Building
from skillyard.engine.environments.environment import BuildFailed, Environment
from skillyard.engine.environments.environments import Environments
from skillyard.engine.environments.interpreter import base_interpreter

__all__ = [
    "Build",
    "BuildFailed",
    "Builder",
    "Building",
    "Environment",
    "Environments",
    "SandboxBuilder",
    "base_interpreter",
]
