"""The credentials that a private index wants: they stay at the gate, and a build holds a placeholder."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from skillyard.config.packages import PackagesSettings, index_rule
from skillyard.domain.network.session import GateSecret, new_placeholder
from skillyard.domain.principal import DEFAULT_PROJECT
from skillyard.domain.secret import Delivery, SecretAct, SecretEvent
from skillyard.engine.packages.environment import BuildFailed
from skillyard.engine.secrets.service import SecretBook

TOKEN_USER = "__token__"  # noqa: S105 - who a token belongs to, by the custom of package indexes
BUILDER = "environments"
"""Who used the secret, in the audit."""


@dataclass(frozen=True, slots=True)
class IndexAccess:
    """``address`` is what uv is told."""

    address: str
    secrets: tuple[GateSecret, ...] = ()


async def index_access(config: PackagesSettings, book: SecretBook, build: str) -> IndexAccess:
    """Its use is in the audit when this returns. Raises BuildFailed for a secret that is not stored, StoreFault."""
    if not config.secret or config.offline:
        return IndexAccess(config.index)
    found = await book.find(config.secret, DEFAULT_PROJECT, "")
    if found is None:
        raise BuildFailed(
            f"packages.secret names '{config.secret}', which is not stored: `skillyard secret set {config.secret}`"
        )
    event = SecretEvent(
        at=book.clock.now(),
        act=SecretAct.USED,
        name=config.secret,
        principal=BUILDER,
        project=DEFAULT_PROJECT,
        skill="",
        run_id=build,
        scope=str(found.scope),
        version=found.version,
        delivery=Delivery.GATE.value,
        reason="",
    )
    await book.audit.record([event])
    user, colon, password = found.value.partition(":")
    placeholder = new_placeholder()
    parts = urlsplit(config.index)
    login = f"{quote(user if colon else TOKEN_USER, safe='')}:{placeholder}"
    value = password if colon else found.value
    secret = GateSecret(config.secret, placeholder, value, (index_rule(config.index),))
    return IndexAccess(parts._replace(netloc=f"{login}@{parts.netloc}").geturl(), (secret,))
