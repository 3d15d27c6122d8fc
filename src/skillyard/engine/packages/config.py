"""What runs may have of packages, and where those come from, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from skillyard.domain.errors import InvalidInput, shape
from skillyard.domain.network.rule import Rule, parse_rule

_PYPI_HOST = "pypi.org"
PYPI = f"https://{_PYPI_HOST}/simple"
PYPI_RULES = tuple(parse_rule(host) for host in (_PYPI_HOST, "files.pythonhosted.org"))
_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class PackagesConfig:
    """``index`` is asked by builds, which may reach what ``network`` allows; ``secret`` names the one that the index
    wants, ``user:password`` or a token. ``wheels`` is a directory of wheels; ``offline`` builds see nothing else.
    ``source`` are packages that are built from source. A build has ``memory_mb``, ``disk_mb`` and ``timeout_s``, and
    ``at_once`` of them work. Unused environments go after ``max_age_s`` seconds, and the longest unused when all
    together have more than ``max_bytes``. ``allow`` and ``run_code`` are name patterns (``!`` denies): of all packages,
    and of those that code and unapproved skills may have."""

    index: str = PYPI
    network: tuple[Rule, ...] = PYPI_RULES
    secret: str = ""
    wheels: Path | None = None
    offline: bool = False
    source: tuple[str, ...] = ()
    memory_mb: int = 2048
    disk_mb: int = 6144
    timeout_s: float = 900.0
    at_once: int = 2
    max_bytes: int = 20 << 30
    max_age_s: float | None = 30 * 86400.0
    allow: tuple[str, ...] = ("*",)
    run_code: tuple[str, ...] = ()


def check_secret_index(url: str) -> None:
    """Credentials go to a named host by TLS alone. Raises InvalidInput."""
    if not url.startswith("https://") or index_rule(url).network is not None:
        raise InvalidInput("packages.secret", "needs an index with an https URL whose host is a name")


def index_rule(url: str) -> Rule:
    """The rule that allows the host of ``url`` and nothing else. Raises InvalidInput for what is no index."""
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
