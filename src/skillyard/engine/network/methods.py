"""Methods that show which hosts runs may reach, and why: ``policy.show`` and ``policy.explain``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillyard.domain.errors import SkillNotFound
from skillyard.domain.principal import Principal, Scope
from skillyard.engine.method import (
    BOOLEAN,
    NUMBER,
    SKILL_NAME,
    STRING,
    VERSION,
    Method,
    answer,
    described,
    list_of,
    obj,
)
from skillyard.engine.network.grant import EGRESS
from skillyard.engine.network.service import PolicyService
from skillyard.engine.runs.methods import NETWORK
from skillyard.engine.shapes import DECISION, LAYER, STRINGS, shape, table_of


async def explain_policy(service: PolicyService, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:
    return await service.explain(principal, params)


async def show_policy(service: PolicyService, principal: Principal, params: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    return service.show()


_EXPLAINED = shape(
    "ExplainedTarget",
    "what decides about one target",
    {
        "target": STRING,
        **DECISION,
        "layers": list_of(answer({"name": STRING, "says": STRING, **DECISION}), "what each layer says"),
        "addresses": list_of(answer({"address": STRING, **DECISION}), "that its name has, when they were looked up"),
    },
)

TABLE = (
    Method(
        name="policy.explain",
        doc="Which rules decide whether a run may reach a host, layer by layer.",
        params=obj(
            {
                "targets": list_of(
                    {"type": "string", "minLength": 1, "maxLength": 300}, "'host:port'; 443 without a port", maxItems=64
                ),
                "skill": described(SKILL_NAME, "the skill that is executed"),
                "version": VERSION,
                "code": described(
                    BOOLEAN, "as code gets it; without it and a skill, the operator's rules", default=False
                ),
                "mount_skills": list_of(SKILL_NAME, "names of the skills that the code mounts", maxItems=64),
                "network": NETWORK,
                "resolve": described(
                    BOOLEAN,
                    "look allowed names up, and judge each address that they have; for the scope admin",
                    default=False,
                ),
            },
            "targets",
        ),
        example={"targets": ["api.example.com:443"], "code": True},
        result=answer(
            {
                "layers": list_of(LAYER, "each of them must allow a connection"),
                "targets": list_of(_EXPLAINED, "in the order of the request"),
                "least": described(STRING, "why such a run gets nothing that its skills declare"),
                "refused": described(STRING, "why such a run would not start"),
            },
            optional="least refused",
        ),
        errors=(SkillNotFound,),
        handler=explain_policy,
        service=PolicyService,
        scope=Scope.EXECUTE,
        also=frozenset({Scope.RUN_CODE}),
        repeatable=True,
    ),
    Method(
        name="policy.show",
        doc="The operator's rules: hosts that runs may reach, skills that are approved, isolations with a network.",
        params=obj({}),
        result=answer(
            {
                "rules": STRINGS,
                "open": BOOLEAN,
                "run_code": described({"type": ["string", "array"]}, "'mounted', or the list of rules"),
                "hosts": table_of(STRINGS, "addresses by name"),
                "nat64": described(STRINGS, "prefixes of translators"),
                "limits": table_of(NUMBER, "of one run's network"),
                "trust": described(
                    answer({"directories": BOOLEAN, "approve": STRINGS}),
                    "which skills are approved without a word for each version",
                ),
                "isolations": list_of(
                    answer({"isolation": STRING, EGRESS: STRING, "by": STRING, "why": STRING, "mend": STRING}),
                    "whether each can give a network",
                ),
            }
        ),
        handler=show_policy,
        service=PolicyService,
        scope=Scope.ADMIN,
        repeatable=True,
    ),
)
