"""Principals, and the agents that they act for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import Forbidden, InvalidInput
from skillyard.domain.principal import LOCAL, AgentScope, Principal, Scope, agent_scope

USUAL = frozenset({Scope.EXECUTE})
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}", fullmatch=True)


def test_a_principal_is_its_own_agent_unless_another_is_given() -> None:
    assert (Principal("ann").agent, Principal("ann", agent="crawler").agent) == ("ann", "crawler")
    assert Principal("ann") == Principal("ann", agent="ann")


def test_a_call_is_of_the_tokens_agent_unless_it_names_another() -> None:
    ann = Principal("ann", USUAL, project="crm", agent="crawler", agents=("crawler-*", "x"))
    assert agent_scope(ann) == agent_scope(ann, "crawler") == AgentScope("crm", "crawler")
    assert agent_scope(ann, "crawler-7") == AgentScope("crm", "crawler-7")
    for other in ("ann", "Crawler-7", "crawlers", "xx"):
        with pytest.raises(Forbidden, match="acts for the agent 'crawler'") as refused:
            agent_scope(ann, other)
        assert refused.value.details["agent"] == other


@pytest.mark.parametrize("named", ["", "a b", "*", "crawler-*", "a/b", "a\n", "ä", "a" * 65])
def test_a_text_that_cannot_name_an_agent_is_refused(named: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        agent_scope(Principal("ann", USUAL, agents=("*",)), named)
    assert refused.value.field == "agent"


def test_an_admin_names_every_agent_of_its_project() -> None:
    assert agent_scope(Principal("root", frozenset({Scope.ADMIN}), project="crm"), "bob") == AgentScope("crm", "bob")
    assert agent_scope(LOCAL, "bob") == AgentScope("default", "bob")


@given(own=NAMES, named=NAMES)
def test_a_token_without_further_agents_is_of_one_scope_alone(own: str, named: str) -> None:
    try:
        found = agent_scope(Principal("ann", USUAL, agent=own), named)
    except Forbidden:
        assert named != own
    else:
        assert found == AgentScope("default", own)
        assert named == own
