"""Rules by which an operator approves: what they match, and above all what they do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.config.policy import TrustSettings
from skillyard.config.settings import load_settings
from skillyard.domain.errors import InvalidInput
from skillyard.domain.skill.trust import MOST_RULES, TrustRule, parse_trust_rules


@pytest.mark.parametrize(
    ("rule", "name", "version", "covers"),
    [
        ("pdf", "pdf", "1.0.0", True),
        ("pdf", "pdf.x", "1.0.0", False),
        ("pdf >=1,<2", "pdf", "1.9.0", True),
        ("pdf >=1,<2", "pdf", "2.0.0", False),
        ("pdf >=1,<2", "pdf", "2.0.0-rc.1", False),
        ("pdf >=1,<2", "pdf", "no version", False),
        ("acme.*", "acme.mail", "0.1.0", True),
        ("acme.*", "acme.mail.send", "0.1.0", True),
        ("acme.* <2", "acme.mail.send", "2.1.0", False),
        ("acme.*", "acme", "0.1.0", False),
        ("acme.*", "acmecorp.mail", "0.1.0", False),
        ("acme.*", "x.acme.mail", "0.1.0", False),
        ("acme.*", "ACME.mail", "0.1.0", False),
        ("acme.*", "\u0430cme.mail", "0.1.0", False),  # CYRILLIC SMALL LETTER A
        ("acme.*", "acme.m\u0430il", "0.1.0", False),
        ("acme.*", "acme\u2024mail", "0.1.0", False),  # ONE DOT LEADER
        ("acme.*", "acme.mail\n", "0.1.0", False),
        ("acme.*", "acme.", "0.1.0", False),
        ("acme.*", "acme..x", "0.1.0", False),
        ("*", "anything-at.all", "1.0.0", True),
        ("*", "\u0430ny", "1.0.0", False),
    ],
)
def test_what_a_rule_covers(rule: str, name: str, version: str, covers: bool) -> None:
    assert TrustRule.parse(rule).covers(name, version) is covers


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "*.mail", "ac*", "acme*", "acme.*.x", "acme.**", "Acme.x", "acme._x", "acme.", ".acme", "a..b"),
        *("\u0430cme.*", "acme.*\n", " acme", "acme >=", "acme 1.0", "acme ~1", "acme>=1", "[ac]me", "a?", "!acme"),
        *("acme." * 200 + "x", 7, None, ["acme"]),
    ],
)
def test_what_is_no_rule(text: object) -> None:
    with pytest.raises(InvalidInput, match=r"trust\.approve\[1\]"):
        parse_trust_rules(["pdf", text])


@given(st.text(max_size=12))
def test_a_rule_of_any_text_covers_only_plain_names(text: str) -> None:
    try:
        rule = TrustRule.parse(f"{text}.*")
    except InvalidInput:
        return
    assert rule.prefix == f"{text}."
    assert text.isascii()
    assert rule.covers(f"{text}.x", "1.0.0")
    assert not rule.covers(text, "1.0.0")


def test_how_many_rules() -> None:
    assert len(parse_trust_rules(["a"] * MOST_RULES)) == MOST_RULES
    for wrong in (["a"] * (MOST_RULES + 1), "acme.*", {"a": 1}, None):
        with pytest.raises(InvalidInput, match="must be a list"):
            parse_trust_rules(wrong)


def test_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().trust == TrustSettings(directories=True, approve=())
    monkeypatch.setenv("SKILLYARD_TRUST__APPROVE", '["acme.*", "pdf >=1,<2"]')
    monkeypatch.setenv("SKILLYARD_TRUST__DIRECTORIES", "false")
    trust = load_settings().trust
    assert not trust.directories
    assert [rule.text for rule in trust.approve] == ["acme.*", "pdf >=1,<2"]
    found = trust.rule_for("pdf", "1.2.0")
    assert found is not None
    assert found.text == "pdf >=1,<2"
    assert trust.rule_for("pdf", "2.0.0") is None
    monkeypatch.setenv("SKILLYARD_TRUST__APPROVE", '["acme*"]')
    with pytest.raises(InvalidInput, match=r"trust\.approve\[0\]: must be a skill's name"):
        load_settings()
