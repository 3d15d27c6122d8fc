"""``[network]``: what runs may reach. The rules' language is :mod:`skillyard.domain.network`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from ipaddress import IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    field_validator,
    model_validator,
)

from skillyard.config.section import Section, place, rules_of, texts_of
from skillyard.domain.errors import InvalidInput, shown
from skillyard.domain.network.address import NAT64_LENGTHS, Address, parse_address
from skillyard.domain.network.policy import NONE_WORD, OPEN_WORD, is_open
from skillyard.domain.network.rule import Rule, canonical_name, parse_rule
from skillyard.domain.network.session import EgressLimits

MOUNTED: Literal["mounted"] = "mounted"
AS_RULES = "rules"
_USUAL = EgressLimits()
_MOST_ADDRESSES = 64


def _rules(value: Any, info: ValidationInfo) -> tuple[Rule, ...]:
    return rules_of(place(info), value)


def _code_rules(value: Any, info: ValidationInfo) -> Literal["mounted"] | tuple[Rule, ...]:
    if value == MOUNTED:
        return MOUNTED
    if isinstance(value, str) and value != NONE_WORD:
        raise InvalidInput(
            place(info), f"must be '{NONE_WORD}', '{MOUNTED}', '{AS_RULES}' or a list of rules", shown(value)
        )
    return rules_of(place(info), value)


def _hosts(value: Any, info: ValidationInfo) -> dict[str, tuple[Address, ...]]:
    path = place(info)
    if not isinstance(value, Mapping):
        raise InvalidInput(path, "must be a table of names and their addresses", shown(value))
    return {_host_name(path, name): _addresses(f"{path}.{name}", given) for name, given in value.items()}


def _host_name(path: str, text: Any) -> str:
    name = canonical_name(text) if isinstance(text, str) else None
    if name is None:
        raise InvalidInput(path, "names must be host names in ASCII, such as 'db.internal'", shown(text))
    return name


def _addresses(path: str, given: Any) -> tuple[Address, ...]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or not 1 <= len(texts) <= _MOST_ADDRESSES:
        raise InvalidInput(path, f"must be an address or a list of 1 to {_MOST_ADDRESSES}", shown(given))
    return tuple(_address(path, text) for text in texts)


def _address(path: str, given: Any) -> Address:
    address = parse_address(str(given)) if isinstance(given, str | Address) else None
    if address is None:
        raise InvalidInput(path, "must be IPv4 or IPv6 addresses in their usual form", shown(given))
    return address


def _prefixes(value: Any, info: ValidationInfo) -> tuple[IPv6Network, ...]:
    """Returns IPv6 prefixes of the lengths of RFC 6052. Raises InvalidInput."""
    listed = isinstance(value, list | tuple) and len(value) <= _MOST_ADDRESSES
    found = tuple(map(_prefix, value)) if listed else (None,)
    prefixes = tuple(prefix for prefix in found if prefix is not None)
    if len(prefixes) < len(found):
        lengths = ", ".join(f"/{length}" for length in NAT64_LENGTHS)
        rule = f"must be at most {_MOST_ADDRESSES} IPv6 prefixes of {lengths}, such as '2001:db8:64::/96'"
        raise InvalidInput(place(info), rule, shown(value))
    return prefixes


def _prefix(given: Any) -> IPv6Network | None:
    try:
        prefix = IPv6Network(given) if isinstance(given, str | IPv6Network) else None
    except ValueError:
        return None
    return prefix if prefix is not None and prefix.prefixlen in NAT64_LENGTHS and "%" not in str(given) else None


Rules = Annotated[tuple[Rule, ...], PlainValidator(_rules), PlainSerializer(texts_of)]
CodeRules = Annotated[
    Literal["mounted"] | tuple[Rule, ...],
    PlainValidator(_code_rules),
    PlainSerializer(lambda value: value if value == MOUNTED else texts_of(value) or NONE_WORD),
]
Hosts = Annotated[
    dict[str, tuple[Address, ...]],
    PlainValidator(_hosts),
    PlainSerializer(lambda hosts: {name: list(map(str, found)) for name, found in hosts.items()}),
]
Prefixes = Annotated[
    tuple[IPv6Network, ...], PlainValidator(_prefixes), PlainSerializer(lambda value: list(map(str, value)))
]


class NetworkLimits(Section):
    """The bounds of one run's use of the network."""

    model_config = ConfigDict(title="network.limits")

    connections: int = Field(default=_USUAL.connections, ge=1, le=4096, description="Connections at a time.")
    connections_total: int = Field(default=_USUAL.connections_total, ge=1, description="Connections in all.")
    sent_bytes: int = Field(default=_USUAL.sent_bytes, ge=0, description="Bytes that a run may send in all.")
    received_bytes: int = Field(
        default=_USUAL.received_bytes,
        ge=0,
        description="Bytes that a run may receive in all.",
    )
    connect_s: float = Field(
        default=_USUAL.connect_s,
        gt=0,
        description="Time that a connection may take to be made.",
    )
    header_s: float = Field(
        default=_USUAL.header_s,
        gt=0,
        description="Time that a program or a server may take for its first words.",
    )
    idle_s: float = Field(
        default=_USUAL.idle_s,
        gt=0,
        description="Time after which a connection without a byte either way is closed. Raise it for long polls.",
    )

    @cached_property
    def egress(self) -> EgressLimits:
        """The limits as the gate is told them."""
        return EgressLimits(**self.model_dump())


class NetworkSettings(Section):
    """The targets that runs may reach."""

    model_config = ConfigDict(title="network")

    rules: Rules = Field(
        default=(parse_rule("*"),),
        description="Bound of every run, whatever its skill declares: rules, `none`, or `open`. Narrow it to the hosts "
        "that your skills may ever need.",
        json_schema_extra={"kind": "`none` or `open` or list of text"},
    )
    open: bool = Field(
        default=False,
        description="Consent to skills and requests that ask for every host. Without it they are refused.",
    )
    run_code: CodeRules = Field(
        default=(),
        description="Targets that code may reach: none, those that its mounted skills declare (`mounted`), all that "
        "`network.rules` allow (`rules`), or rules of its own.",
        json_schema_extra={"kind": "`none` or `mounted` or `rules` or list of text"},
    )
    hosts: Hosts = Field(
        default_factory=dict,
        description="Addresses of names, asked before any name server. A name that stands here may have a private "
        "address: name internal services so.",
        json_schema_extra={"kind": "table of list of text"},
    )
    nat64: Prefixes = Field(
        default=(),
        description="IPv6 prefixes behind which a translator of yours leads to IPv4 addresses, beside the one that "
        "your name servers tell of (RFC 7050).",
        json_schema_extra={"kind": "list of text"},
    )
    ca_file: Path | None = Field(
        default=None,
        description="Further certificates to trust where the gate speaks TLS itself. Set it for internal authorities.",
    )
    limits: NetworkLimits = NetworkLimits()

    @field_validator("ca_file")
    @classmethod
    def _check_ca_file(cls, value: Path | None) -> Path | None:
        if value is None:
            return None
        file = value.expanduser().absolute()
        if not file.is_file():
            raise InvalidInput("network.ca_file", f"there is no file {file}")
        return file

    @model_validator(mode="before")
    @classmethod
    def _as_rules(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("run_code") != AS_RULES:
            return given
        rules = given.get("rules", cls.model_fields["rules"].default)
        return {**given, "run_code": ["*"] if rules == OPEN_WORD else rules}

    @model_validator(mode="after")
    def _check_consent(self) -> Self:
        """Raises InvalidInput where code is given every host without consent."""
        if not isinstance(self.run_code, str) and is_open(self.run_code) and not self.open:
            raise InvalidInput("network.run_code", "asks for every host: that needs network.open = true as well")
        return self
