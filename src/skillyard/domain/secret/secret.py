"""What a secret may be called and hold, and how it reaches the run that declares it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

from skillyard.domain.errors import InvalidInput, shape
from skillyard.domain.network.rule import Rule, parse_rule
from skillyard.domain.unicode import check_unicode

MAX_VALUE_BYTES = 64 * 1024
MAX_HOSTS = 32

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED = frozenset(
    {
        "BASH_ENV",
        "CDPATH",
        "ENV",
        "GLOBIGNORE",
        "HOME",
        "HOSTALIASES",
        "HOSTNAME",
        "IFS",
        "LANG",
        "LANGUAGE",
        "LOCPATH",
        "LOGNAME",
        "NLSPATH",
        "NODE_OPTIONS",
        "NODE_PATH",
        "OLDPWD",
        "OPENSSL_CONF",
        "OPENSSL_ENGINES",
        "OPENSSL_MODULES",
        "PATH",
        "PERL5LIB",
        "PERL5OPT",
        "PERLLIB",
        "PROMPT_COMMAND",
        "PS4",
        "PWD",
        "RESOLV_HOST_CONF",
        "RES_OPTIONS",
        "RUBYLIB",
        "RUBYOPT",
        "SHELL",
        "SHELLOPTS",
        "SHLVL",
        "TEMP",
        "TMP",
        "TMPDIR",
        "TZ",
        "USER",
        "_",
    }
)
_RESERVED_PREFIXES = ("BASH_FUNC_", "GCONV_", "GLIBC_", "LC_", "LD_", "MALLOC_", "PYTHON", "SKILLYARD_")


class Delivery(StrEnum):
    """ENV: the value is an environment variable of the sandbox. GATE: a placeholder is, and the gate puts the value
    into header fields of requests to the bound hosts."""

    ENV = "env"
    GATE = "gate"


def bound_hosts(texts: Iterable[str], field: str = "hosts") -> tuple[Rule, ...]:
    """Hosts that a secret is bound to: ``api.x.com``, ``*.x.com``, either with ``:PORTS``, else port 443.
    Raises InvalidInput for whatever names no host: addresses, ``*``, deny rules."""
    hosts = list(texts)
    if len(hosts) > MAX_HOSTS:
        raise InvalidInput(field, f"must be at most {MAX_HOSTS} hosts", shape(hosts))
    return tuple(_bound_host(text, f"{field}[{index}]") for index, text in enumerate(hosts))


def _bound_host(text: str, field: str) -> Rule:
    rule = parse_rule(text, field)
    if rule.deny or rule.everything or rule.network is not None:
        raise InvalidInput(field, "must be a host name or '*.host.name', with an optional :PORTS", shape(text))
    return rule if ":" in text else parse_rule(f"{text}:443", field)


def check_secret_name(field: str, name: str) -> str:
    """``name``, fit for an environment variable and none that steers an interpreter, the loader, a shell or
    us. Raises InvalidInput."""
    if not _NAME.fullmatch(name):
        rule = "must be a letter or _, then letters, digits or _, at most 128 in all"
        raise InvalidInput(field, rule, shape(name))
    if name.upper() in _RESERVED or name.upper().startswith(_RESERVED_PREFIXES):
        raise InvalidInput(field, f"'{name}' is reserved: it steers how programs run")
    return name


def check_secret_value(field: str, value: str) -> str:
    """``value``, not empty, without NUL, at most 64 KiB of UTF-8. Raises InvalidInput, never with the value."""
    size = len(check_unicode(field, value))
    if not value or "\0" in value or size > MAX_VALUE_BYTES:
        rule = f"must not be empty, hold NUL or pass {MAX_VALUE_BYTES} bytes of UTF-8"
        raise InvalidInput(field, rule, shape(value))
    return value
