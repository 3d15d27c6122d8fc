"""Plans, policies and logs as messages hold them. Rules go as they were written."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from skillyard.domain.network.policy import Layer, Policy
from skillyard.domain.network.rule import Rule, parse_rule
from skillyard.domain.network.session import Connection, EgressLimits, EgressPlan, GateSecret, NetworkLog, ToolBudget

MAX_MESSAGE = 64 * 1024 * 1024
"""Bytes of one message: a plan holds rules, secrets and the operator's certificates."""

PROTOCOL = 4
"""The version of the messages between server and gate, and of a kept session's state. A gate outlives its server, so
both may be of different releases. A server ends an older gate, and its sessions go on in a gate of this version, so
that three messages keep their form for ever: ``attach``, ``discard`` and ``held``. In version 2 a connection to an
endpoint may begin with a knock; in version 3 a plan may have a budget for calls of tools; in version 4 a secret may be
for reading alone."""

STEPS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""By version: what makes the next version's state of a session from a state of that version, where they differ."""

AHEAD = 1024
"""Names of a kept session that may be given before its server sealed them. A gate that opens the session again skips
as many addresses: those may stand for names that only the dead gate knew."""

_rule = lru_cache(4096)(parse_rule)


def policy_out(policy: Policy) -> dict[str, Any]:
    return {
        "layers": [[layer.name, layer.texts()] for layer in policy.layers],
        "hosts": {name: [str(address) for address in addresses] for name, addresses in policy.hosts.items()},
        "nat64": list(map(str, policy.nat64)),
    }


def policy_in(told: dict[str, Any]) -> Policy:
    """Returns the policy of a message. Raises InvalidInput."""
    hosts = {name: tuple(map(ipaddress.ip_address, addresses)) for name, addresses in told["hosts"].items()}
    nat64 = tuple(map(ipaddress.IPv6Network, told["nat64"]))
    return Policy(tuple(Layer(name, _rules(texts)) for name, texts in told["layers"]), hosts, nat64)


def plan_out(plan: EgressPlan) -> dict[str, Any]:
    secrets = [[s.name, s.placeholder, s.value, [rule.text for rule in s.hosts], s.reading] for s in plan.secrets]
    tools = None if plan.tools is None else asdict(plan.tools)
    return {"policy": policy_out(plan.policy), "limits": asdict(plan.limits), "secrets": secrets, "tools": tools}


def plan_in(told: dict[str, Any]) -> EgressPlan:
    """Returns the plan of a message. Raises InvalidInput."""
    secrets = tuple(
        GateSecret(name, holder, value, _rules(hosts), *reading)
        for name, holder, value, hosts, *reading in told["secrets"]
    )
    tools = None if told.get("tools") is None else ToolBudget(**told["tools"])
    return EgressPlan(policy_in(told["policy"]), EgressLimits(**told["limits"]), secrets, tools)


def state_in(told: dict[str, Any], version: int) -> dict[str, Any]:
    """Returns the state of a kept session in this version's form."""
    for number in range(version, PROTOCOL):
        if (step := STEPS.get(number)) is not None:
            told = step(told)
    return told


def log_in(told: dict[str, Any]) -> NetworkLog:
    rows = (row | {"secrets": tuple(row["secrets"])} for row in told["connections"])
    return NetworkLog(tuple(Connection(**row) for row in rows), told["dropped"])


def _rules(texts: Iterable[str]) -> tuple[Rule, ...]:
    return tuple(_rule(text) for text in texts)
