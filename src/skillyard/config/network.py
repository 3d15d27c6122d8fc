"""``[network]`` of the settings: what runs may reach at all. The rules' language is :mod:`skillyard.domain.network`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv6Network
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.network.address import NAT64_LENGTHS, Address, parse_address
from skillyard.domain.network.policy import NONE_WORD, is_open, parse_rules
from skillyard.domain.network.rule import canonical_name
from skillyard.domain.network.session import EgressLimits
from skillyard.engine.config import NetworkConfig

MOUNTED = "mounted"
_USUAL = EgressLimits()
_MOST_ADDRESSES = 64


class NetworkLimits(BaseModel):
    """Of one run: connections at once and in all, bytes each way in all, seconds to connect, to say the first words,
    and without a byte either way."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    connections: int = Field(default=_USUAL.connections, ge=1, le=4096)
    connections_total: int = Field(default=_USUAL.connections_total, ge=1)
    sent_bytes: int = Field(default=_USUAL.sent_bytes, ge=0)
    received_bytes: int = Field(default=_USUAL.received_bytes, ge=0)
    connect_s: float = Field(default=_USUAL.connect_s, gt=0)
    header_s: float = Field(default=_USUAL.header_s, gt=0)
    idle_s: float = Field(default=_USUAL.idle_s, gt=0)


class NetworkSettings(BaseModel):
    """``rules`` bound every run; ``open`` consents to skills and requests that ask for every host; ``run_code`` is what
    code gets: nothing, what its mounted skills declare, or rules. ``hosts`` are addresses of names, asked before any
    name server. ``nat64``: prefixes of IPv6 behind which a translator of yours leads to IPv4 addresses, beside the one
    that your name servers tell of (RFC 7050). ``ca_file``: further certificates to trust where the gate speaks TLS
    itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: Literal["none", "open"] | tuple[str, ...] = ("*",)
    open: bool = False
    run_code: Literal["none", "mounted"] | tuple[str, ...] = "none"
    hosts: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    nat64: tuple[str, ...] = ()
    ca_file: Path | None = None
    limits: NetworkLimits = NetworkLimits()

    @field_validator("rules", mode="before")
    @classmethod
    def _check_rules(cls, value: Any) -> Any:
        parse_rules(value, "network.rules")
        return value

    @field_validator("run_code", mode="before")
    @classmethod
    def _check_run_code(cls, value: Any) -> Any:
        if isinstance(value, str) and value not in (NONE_WORD, MOUNTED):
            rule = f"must be '{NONE_WORD}', '{MOUNTED}' or a list of rules"
            raise InvalidInput("network.run_code", rule, shown(value))
        if value != MOUNTED:
            parse_rules(value, "network.run_code")
        return value

    @field_validator("hosts", mode="before")
    @classmethod
    def _check_hosts(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise InvalidInput("network.hosts", "must be a table of names and their addresses", shown(value))
        return {_host_name(name): _texts(f"network.hosts.{name}", given) for name, given in value.items()}

    @field_validator("nat64")
    @classmethod
    def _check_nat64(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > _MOST_ADDRESSES or not all(map(_is_prefix, value)):
            lengths = ", ".join(f"/{length}" for length in NAT64_LENGTHS)
            rule = f"must be at most {_MOST_ADDRESSES} IPv6 prefixes of {lengths}, such as '2001:db8:64::/96'"
            raise InvalidInput("network.nat64", rule, shown(value))
        return value

    @field_validator("ca_file")
    @classmethod
    def _check_ca_file(cls, value: Path | None) -> Path | None:
        if value is None:
            return None
        file = value.expanduser().absolute()
        if not file.is_file():
            raise InvalidInput("network.ca_file", f"there is no file {file}")
        return file

    def config(self) -> NetworkConfig:
        """Raises InvalidInput where code is given every host without consent."""
        code = self.run_code if self.run_code == "mounted" else parse_rules(self.run_code, "network.run_code")
        if not isinstance(code, str) and is_open(code) and not self.open:
            raise InvalidInput("network.run_code", "asks for every host: that needs network.open = true as well")
        return NetworkConfig(
            rules=parse_rules(self.rules, "network.rules"),
            open=self.open,
            run_code=code,
            nat64=tuple(map(IPv6Network, self.nat64)),
            hosts={name: tuple(map(_address, texts)) for name, texts in self.hosts.items()},
            limits=EgressLimits(**self.limits.model_dump()),
        )


def _host_name(text: Any) -> str:
    name = canonical_name(text) if isinstance(text, str) else None
    if name is None:
        raise InvalidInput("network.hosts", "names must be host names in ASCII, such as 'db.internal'", shown(text))
    return name


def _is_prefix(text: str) -> bool:
    try:
        return IPv6Network(text).prefixlen in NAT64_LENGTHS and "%" not in text
    except ValueError:
        return False


def _texts(field: str, given: Any) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or not 1 <= len(texts) <= _MOST_ADDRESSES:
        raise InvalidInput(field, f"must be an address or a list of 1 to {_MOST_ADDRESSES}", shown(given))
    for text in texts:
        if not isinstance(text, str) or parse_address(text) is None:
            raise InvalidInput(field, "must be IPv4 or IPv6 addresses in their usual form", shown(text))
    return tuple(texts)


def _address(text: str) -> Address:
    address = parse_address(text)
    assert address is not None, "checked when it was read"
    return address
