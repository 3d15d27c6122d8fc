"""``[packages]`` of the settings: where packages come from, what builds may use, who may have which."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from skillyard.domain.errors import InvalidInput, shape
from skillyard.domain.network.policy import is_open, parse_rules
from skillyard.domain.network.rule import Rule
from skillyard.domain.package.names import parse_patterns
from skillyard.domain.work.limits import MINIMUM
from skillyard.engine.packages.config import PYPI, PYPI_RULES, PackagesConfig, check_secret_index, index_rule

MIB = 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_SECRET = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_USUAL = PackagesConfig()
PYPI_WORD = "pypi"


class PackagesSettings(BaseModel):
    """``index`` is a simple index (PEP 503, PEP 691): a URL, or ``pypi``. ``network`` is what builds may reach,
    by default the index's host (and PyPI's file host for PyPI). ``secret`` names the stored secret that the
    index wants: a token, or user:password; it stays at the gate. ``wheels`` is a directory of wheels that
    builds see; ``offline`` builds see nothing else. ``source`` are packages to build from source; all others
    are taken as wheels. ``memory_mb`` (by default 2048), ``disk_mb`` (6144, each at most half of the host's
    memory) and ``timeout_s`` are a build's limits, ``at_once`` how many work at a time. ``max_bytes``,
    ``max_age_s`` (0: ever) say when unused environments go. ``allow`` are patterns of names that anybody may
    have, ``run_code`` of those that code and unapproved skills may have; ``!`` denies."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    index: str = PYPI_WORD
    network: tuple[str, ...] | None = None
    secret: str = ""
    wheels: Path | None = None
    offline: bool = False
    source: tuple[str, ...] = ()
    memory_mb: int | None = Field(default=None, ge=MINIMUM.memory_mb)
    disk_mb: int | None = Field(default=None, ge=MINIMUM.disk_mb)
    timeout_s: float = Field(default=_USUAL.timeout_s, gt=0)
    at_once: int = Field(default=_USUAL.at_once, ge=1, le=64)
    max_bytes: int = Field(default=_USUAL.max_bytes, ge=0)
    max_age_s: float = Field(default=30 * 86400.0, ge=0)
    allow: tuple[str, ...] = ("*",)
    run_code: tuple[str, ...] = ()

    @field_validator("index")
    @classmethod
    def _check_index(cls, value: str) -> str:
        if value != PYPI_WORD:
            index_rule(value)
        return value.rstrip("/")

    @field_validator("network", mode="before")
    @classmethod
    def _check_network(cls, value: Any) -> Any:
        if value is not None and is_open(parse_rules(value, "packages.network")):
            raise InvalidInput(
                "packages.network", "must name the hosts: a build needs the index and its file hosts only"
            )
        return value

    @field_validator("secret")
    @classmethod
    def _check_secret(cls, value: str) -> str:
        if value and _SECRET.fullmatch(value) is None:
            raise InvalidInput("packages.secret", "must be the name of a secret", shape(value))
        return value

    @field_validator("wheels")
    @classmethod
    def _check_wheels(cls, value: Path | None) -> Path | None:
        if value is None:
            return None
        directory = value.expanduser().absolute()
        if not directory.is_dir():
            raise InvalidInput("packages.wheels", f"there is no directory {directory}")
        return directory

    @field_validator("source")
    @classmethod
    def _check_source(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for index, name in enumerate(value):
            if len(name) > 200 or _NAME.fullmatch(name) is None:
                raise InvalidInput(f"packages.source[{index}]", "must be the name of a package", shape(name))
        return value

    @field_validator("allow", "run_code")
    @classmethod
    def _check_patterns(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        return parse_patterns(value, f"packages.{info.field_name}")

    def config(self) -> PackagesConfig:
        """Raises InvalidInput for ``offline`` without wheels, and for a secret that the gate could not deliver."""
        if self.offline and self.wheels is None:
            raise InvalidInput("packages.offline", "needs packages.wheels: a directory with the wheels to install from")
        if self.secret:
            check_secret_index(self._index_url())
        half_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB // 2
        given = self.model_dump(exclude={"index", "network", "max_age_s", "memory_mb", "disk_mb"})
        return PackagesConfig(
            **given,
            index=self._index_url(),
            network=self._rules(),
            max_age_s=self.max_age_s or None,
            memory_mb=self.memory_mb or min(_USUAL.memory_mb, half_mb),
            disk_mb=self.disk_mb or min(_USUAL.disk_mb, half_mb),
        )

    def _rules(self) -> tuple[Rule, ...]:
        if self.network is not None:
            return parse_rules(self.network, "packages.network")
        url = self._index_url()
        return PYPI_RULES if url == PYPI else (index_rule(url),)

    def _index_url(self) -> str:
        return PYPI if self.index == PYPI_WORD else self.index
