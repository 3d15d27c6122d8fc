"""Who may change what is published under a name."""

from __future__ import annotations

from skillyard.domain.errors import Forbidden
from skillyard.domain.principal import Principal, Scope
from skillyard.domain.skill.manifest_name import GUIDE
from skillyard.domain.skill.publication_rules import claim_refusal
from skillyard.engine.skills.registry import Registry


def is_admin(principal: Principal) -> bool:
    return Scope.ADMIN in principal.scopes


async def check_claim(registry: Registry, principal: Principal, name: str) -> None:
    """Raises Forbidden unless the principal may publish, withdraw and pin under ``name``: for its project, which
    published the name first or may take it. Names that the operator serves from directories are the operator's."""
    if name == GUIDE:
        raise Forbidden(f"'{GUIDE}' is built in and stays as it is", skill=name)
    if not principal.may_use(name):
        raise Forbidden(f"this token's patterns of skill names do not admit '{name}'", skill=name)
    if is_admin(principal):
        return
    owner = await registry.publications.owner(name)
    if (refusal := claim_refusal(name, owner, principal.project)) is not None:
        raise refusal
    if await registry.skills.not_published(name):
        raise Forbidden(f"'{name}' is the operator's: it is served from a directory of this server", skill=name)
