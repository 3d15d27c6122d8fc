"""``[packages]`` and ``[environments]``: the index, the bounds of builds, allowed packages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    field_validator,
    model_validator,
)

from skillyard.config.section import Lifetime, Section, host_memory_mb, place, rules_of, texts_of
from skillyard.domain.errors import InvalidInput, shape, shown
from skillyard.domain.network.policy import is_open
from skillyard.domain.network.rule import Rule, parse_rule
from skillyard.domain.package.names import parse_patterns
from skillyard.domain.sandbox.content import HostDirectory
from skillyard.domain.skill.requirement import is_requirement
from skillyard.domain.work.limits import MINIMUM

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_SECRET = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_ENVIRONMENT_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_PORTS = {"https": 443, "http": 80}
_PYPI_HOST = "pypi.org"
PYPI_WORD = "pypi"
PYPI = f"https://{_PYPI_HOST}/simple"
PYPI_RULES = tuple(parse_rule(host) for host in (_PYPI_HOST, "files.pythonhosted.org"))


def index_rule(url: str) -> Rule:
    """Returns the rule that allows the host of ``url`` and nothing else. Raises InvalidInput for other URLs."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    odd = not url.isascii() or not url.isprintable() or " " in url
    if odd or not host or parts.scheme not in _PORTS or parts.query or parts.fragment:
        rule = "must be 'pypi', or an http or https URL such as 'https://packages.example/simple'"
        raise InvalidInput("packages.index", rule, shape(url))
    if parts.username is not None or parts.password is not None:
        raise InvalidInput("packages.index", "must not hold credentials: store them and name them in packages.secret")
    shown = f"[{host}]" if ":" in host else host
    return parse_rule(f"{shown}:{port or _PORTS[parts.scheme]}", "packages.index")


def _index_url(value: str) -> str:
    if value in (PYPI_WORD, PYPI):
        return PYPI
    index_rule(value)
    return value.rstrip("/")


def _hosts(value: Any, info: ValidationInfo) -> tuple[Rule, ...] | None:
    if value is None:
        return None
    rules = rules_of(place(info), value)
    if is_open(rules):
        raise InvalidInput(place(info), "must name the hosts: a build needs the index and its file hosts only")
    return rules


def _usual(most_mb: int) -> int:
    """Returns ``most_mb``, or half of the host's memory where that is less."""
    return min(most_mb, host_memory_mb() // 2)


Hosts = Annotated[
    tuple[Rule, ...] | None,
    PlainValidator(_hosts),
    PlainSerializer(lambda rules: None if rules is None else texts_of(rules)),
]


class PackagesSettings(Section):
    """Where packages come from, and the limits of a build."""

    model_config = ConfigDict(title="packages")

    index: str = Field(
        default=PYPI,
        description="Index that builds ask (PEP 503, PEP 691): a URL, or `pypi`. Name your own mirror here.",
        json_schema_extra={"default": PYPI_WORD},
    )
    network: Hosts = Field(
        default=None,
        description="Hosts that builds may reach; by default that of the index, and the file host of PyPI for PyPI. "
        "Set it where an index serves its files from another host.",
        json_schema_extra={"kind": "list of text"},
    )
    secret: str = Field(
        default="",
        description="Name of the stored secret that the index wants: a token, or `user:password`. It stays at the "
        "gate. Needs an https index whose host is a name.",
    )
    wheels: Path | None = Field(default=None, description="Directory of wheels that builds see.")
    offline: bool = Field(
        default=False, description="Whether builds see nothing but `wheels`. Set it on hosts without an index."
    )
    source: tuple[str, ...] = Field(
        default=(),
        description="Packages that are built from source; all others are taken as wheels. A build runs the package's "
        "own code, in a sandbox.",
    )
    memory_mb: int = Field(
        default_factory=lambda: _usual(2048),
        ge=MINIMUM.memory_mb,
        description="Memory of a build. By default 2048, or half of the host's memory where that is less.",
        json_schema_extra={"default": 2048},
    )
    disk_mb: int = Field(
        default_factory=lambda: _usual(6144),
        ge=MINIMUM.disk_mb,
        description="File space of a build. By default 6144, or half of the host's memory where that is less. Raise it "
        "for large packages.",
        json_schema_extra={"default": 6144},
    )
    timeout_s: float = Field(default=900.0, gt=0, description="Time of a build.")
    at_once: int = Field(default=2, ge=1, le=64, description="Builds that work at a time; others wait.")
    max_bytes: int = Field(
        default=20 << 30,
        ge=0,
        description="Bytes of all environments; those that were used longest ago go first.",
    )
    max_age_s: Lifetime = Field(
        default=30 * 86400.0, description="Time after which an unused environment goes; 0 keeps it for ever."
    )
    allow: tuple[str, ...] = Field(
        default=("*",), description="Patterns of names of the packages that anybody may have; `!` denies."
    )
    run_code: tuple[str, ...] = Field(
        default=(),
        description="Patterns of names of the packages that code and unapproved skills may ask for; `!` denies.",
    )

    @property
    def reach(self) -> tuple[Rule, ...]:
        """The rules of what builds may reach."""
        if self.network is not None:
            return self.network
        return PYPI_RULES if self.index == PYPI else (index_rule(self.index),)

    @field_validator("index")
    @classmethod
    def _check_index(cls, value: str) -> str:
        return _index_url(value)

    @field_validator("secret")
    @classmethod
    def _check_secret(cls, value: str) -> str:
        if value and _SECRET.fullmatch(value) is None:
            raise InvalidInput("packages.secret", "must be the name of a secret", shape(value))
        return value

    def wheels_directory(self) -> HostDirectory | None:
        """Returns :attr:`wheels` for the sandbox of a build."""
        return None if self.wheels is None else HostDirectory(self.wheels)

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
        return parse_patterns(value, place(info))

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        """Raises InvalidInput for ``offline`` without wheels and for a secret unfit for the gate."""
        if self.offline and self.wheels is None:
            raise InvalidInput("packages.offline", "needs packages.wheels: a directory with the wheels to install from")
        # Credentials go to a named host by TLS alone.
        if self.secret and not (self.index.startswith("https://") and index_rule(self.index).network is None):
            raise InvalidInput("packages.secret", "needs an index with an https URL whose host is a name")
        return self


class EnvironmentSettings(Section):
    """A set of packages under a name, which runs may ask for. ``preload`` is None for the modules of the table
    (:mod:`skillyard.engine.packages.ahead`) alone, and empty for none at all."""

    model_config = ConfigDict(title="environments")

    packages: tuple[str, ...] = Field(default=(), description="Requirements to install, such as `numpy>=2,<3`.")
    preload: Annotated[tuple[str, ...] | None, BeforeValidator(lambda value: () if value is False else value)] = Field(
        default=None, description="Modules to import ahead, beside those of a table; `false` for none at all."
    )

    @field_validator("packages")
    @classmethod
    def _check_packages(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if not is_requirement(text):
                rule = "must be requirements such as 'numpy>=2,<3'; no URLs, paths or options"
                raise InvalidInput("environments.packages", rule, shown(text))
        return value

    @field_validator("preload")
    @classmethod
    def _check_preload(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Refuses ``x.__main__`` and the like, whose import would run them."""
        for name in value or ():
            if not all(part.isidentifier() and not part.startswith("__") for part in name.split(".")):
                raise InvalidInput("environments.preload", "must be false or names of modules, such as 'a.b'", name)
        return value


BUNDLED: Mapping[str, EnvironmentSettings] = {
    "base": EnvironmentSettings(),
    "data": EnvironmentSettings(packages=("numpy", "pandas")),
}


def with_bundled(given: Mapping[str, EnvironmentSettings]) -> dict[str, EnvironmentSettings]:
    """Returns the bundled environments and the operator's, which may redefine them. Raises InvalidInput."""
    for name in given:
        if _ENVIRONMENT_NAME.fullmatch(name) is None:
            rule = "must be lowercase letters, digits, dots, hyphens and underscores: runs name it so"
            raise InvalidInput("environments", rule, shown(name))
    return {**BUNDLED, **given}
