"""How many examples hypothesis makes of a property: few in every run, many with ``--hypothesis-profile long``."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

SHORT, LONG = 25, 4000


def register() -> None:
    """Makes both profiles and takes the short one. No example has a deadline: other work may share the machine.

    Hypothesis would read every module of ours for constants to try. That takes each process seconds, and examples
    would depend on what other tests have imported.
    """
    health = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
    for name, count in (("short", SHORT), ("long", LONG)):
        settings.register_profile(name, max_examples=count, deadline=None, suppress_health_check=health)
    settings.load_profile("short")
    providers._get_local_constants = Constants


def fewer(share: int) -> settings:
    """Returns the settings of a property whose every example is dear: one in ``share`` of the usual examples."""
    return settings(max_examples=settings().max_examples // share)
