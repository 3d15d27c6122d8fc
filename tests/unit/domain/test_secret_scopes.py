"""Which of several entries of one name a run gets, by properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.secret import Delivery, SecretEntry, SecretScope, choose

WORDS = st.text("ab.", min_size=1, max_size=4).map(lambda text: "a" + text)
PROJECTS = st.sampled_from(["p", "q"])
SCOPES = st.builds(SecretScope, st.just("") | PROJECTS, st.just("") | WORDS | WORDS.map(lambda text: text + "*"))


def admits(scope: SecretScope, project: str, skill: str) -> bool:
    """Said once more, in other words."""
    pattern = scope.skills
    mine = not pattern or pattern == skill or (pattern[-1:] == "*" and skill[: len(pattern) - 1] == pattern[:-1])
    return mine and scope.project in ("", project)


@given(st.sets(SCOPES, max_size=12), PROJECTS, WORDS)
def test_the_one_that_is_chosen_is_the_narrowest(scopes: set[SecretScope], project: str, skill: str) -> None:
    entries = [SecretEntry("A", scope.check(), Delivery.ENV, (), 1, ()) for scope in scopes]
    found = choose(entries, project, skill)
    fit = [scope for scope in scopes if admits(scope, project, skill)]
    assert (found is None) == (not fit)
    if found is None:
        return
    assert found.scope in fit
    assert len({scope.rank for scope in fit}) == len(fit), "no two that admit one run are alike"
    for other in fit:
        if other.project == found.scope.project and other != found.scope:
            assert len(other.skills.rstrip("*")) <= len(found.scope.skills.rstrip("*"))
        assert found.scope.project or not other.project, "a project's own goes first"
