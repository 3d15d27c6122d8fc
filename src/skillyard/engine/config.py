"""The engine's settings as plain values; :mod:`skillyard.runtime` makes them from the user's settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Network
from typing import Literal

from skillyard.domain.network.address import Address
from skillyard.domain.network.rule import Rule, parse_rule
from skillyard.domain.network.session import EgressLimits
from skillyard.domain.sandbox.frames import FrameLimits
from skillyard.domain.sandbox.guarantees import AUTO
from skillyard.domain.skill.trust import Trust
from skillyard.domain.work.limits import LimitFamily
from skillyard.engine.packages.config import PackagesConfig

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class EnvironmentDefinition:
    """A named set of packages: PEP 508 requirements to install, and modules to import ahead, beside those of the table
    (:mod:`skillyard.engine.packages.curated`); empty for none at all, None for the table's alone."""

    packages: tuple[str, ...] = ()
    preload: tuple[str, ...] | None = None


BUNDLED: Mapping[str, EnvironmentDefinition] = {
    "base": EnvironmentDefinition(),
    "data": EnvironmentDefinition(packages=("numpy", "pandas")),
}


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """``memory_mb`` bounds the sum of what running sandboxes may use at most (memory and disk, which is
    memory too); None leaves that to the limits of each run. ``queued_each`` bounds one principal's share
    of the queue; ``reserve`` is the part of places, memory and queue that one principal alone leaves free.
    ``request_bytes`` is what the requests of all runs that wait or work may hold of our own memory."""

    running: int = 64
    queued: int = 256
    queued_each: int = 128
    memory_mb: int | None = None
    reserve: float = 0.25
    request_bytes: int = 256 * MIB


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """What runs may reach at all. ``rules`` are the operator's layer; ``open`` is the consent to every host;
    ``run_code`` is what code gets, ``mounted`` for what its mounted skills declare; ``hosts`` are addresses of names
    that are asked before any name server; ``nat64`` are prefixes of translators on the way out."""

    rules: tuple[Rule, ...] = (parse_rule("*"),)
    open: bool = False
    run_code: Literal["mounted"] | tuple[Rule, ...] = ()
    hosts: Mapping[str, tuple[Address, ...]] = field(default_factory=dict)
    nat64: tuple[IPv6Network, ...] = ()
    limits: EgressLimits = field(default_factory=EgressLimits)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything the use cases need to know. Times are seconds unless the name says otherwise.

    ``isolation`` is what a run gets that names none, ``isolations`` what it may name
    (the names of backends, or ``auto``). ``kernel_only`` and ``allow_degraded`` are policy on guarantees
    (design §4); ``run_code_secrets`` says whether code may have the secrets that its mounted skills declare
    (skills-protocol §10).
    """

    limits: LimitFamily = field(default_factory=LimitFamily)
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    environments: Mapping[str, EnvironmentDefinition] = field(default_factory=lambda: BUNDLED)
    strict_params: bool = True
    oversize_output: Literal["spill", "fail"] = "spill"
    run_code_secrets: Literal["none", "mounted"] = "none"
    isolation: str = AUTO
    isolations: frozenset[str] = frozenset()
    kernel_only: frozenset[str] = frozenset()
    allow_degraded: frozenset[str] = frozenset()
    separate_principals: bool = False
    preload: bool = True
    network: NetworkConfig = NetworkConfig()
    trust: Trust = field(default_factory=Trust)
    packages: PackagesConfig = field(default_factory=PackagesConfig)
    log_bytes: int = 64 * MIB
    json_blob_bytes: int = 32 * MIB
    run_blob_bytes: int = 4096 * MIB
    run_blobs: int = 1000
    run_files: int = 100
    run_file_bytes: int = 64 * MIB
    run_files_bytes: int = 256 * MIB
    blob_ttl_s: float | None = 7 * 86400.0
    record_ttl_s: float | None = 30 * 86400.0
    owner_records: int | None = 100_000
    """Records of one principal; with more, the oldest of its ended runs go at the next sweep."""
    secret_audit_ttl_s: float | None = 365 * 86400.0
    sweep_every_s: float = 300.0
    cursor_key: bytes = field(default_factory=lambda: os.urandom(32), repr=False)


def frame_limits(config: EngineConfig) -> FrameLimits:
    """Returns the bounds of one run's frames."""
    return FrameLimits(
        blobs=config.run_blobs,
        blob_bytes=config.run_blob_bytes,
        files=config.run_files,
        file_bytes=config.run_file_bytes,
        files_bytes=config.run_files_bytes,
    )
