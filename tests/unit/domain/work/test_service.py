"""Requests for services: the sign that one is ready."""

from __future__ import annotations

import pytest

from skillyard.domain.errors import InvalidInput
from skillyard.domain.work.service import from_params


@pytest.mark.parametrize("pattern", ["(", r"\u1234", r"\N{DIGIT ONE}", "(?u)ready", "a{9,1}", "(" * 150, "\ud800"])
def test_a_sign_that_no_output_can_have_is_refused(pattern: str) -> None:
    """The output is bytes, and what only texts know would end the service when it starts."""
    with pytest.raises(InvalidInput) as caught:
        from_params({"ready_pattern": pattern})
    assert caught.value.data["field"] == "ready_pattern"


@pytest.mark.parametrize("pattern", ["(?i)[\0-\U0010ffff]x", "é+", r"listening on \d+"])
def test_a_sign_is_kept_as_it_is(pattern: str) -> None:
    assert from_params({"ready_pattern": pattern}).ready_pattern == pattern
