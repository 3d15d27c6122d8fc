"""What a secret may be called and hold: it becomes an environment variable of the run that declares it."""

from __future__ import annotations

import re

from skillyard.domain.errors import InvalidInput, shape
from skillyard.domain.unicode import check_unicode

MAX_VALUE_BYTES = 64 * 1024

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
