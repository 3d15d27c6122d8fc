"""Packages for runs: what is wanted is resolved once, built in a sandbox, kept read-only and shared."""

from __future__ import annotations

from skillyard.engine.packages.build import Build
from skillyard.engine.packages.builder import Builder, SandboxBuilder
from skillyard.engine.packages.building import Building
from skillyard.engine.packages.environment import BuildFailed, Environment
from skillyard.engine.packages.environments import Environments
from skillyard.engine.packages.interpreter import base_interpreter

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
