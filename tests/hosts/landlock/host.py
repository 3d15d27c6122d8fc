"""Whether this host must be able to hold sandboxes by Landlock: only then may a test of the level be left out."""

from __future__ import annotations

import os

import pytest

from skillyard.domain.sandbox.guarantees import Probe
from skillyard.sandbox.native.grounds.landlock.inside.walls import SCOPES
from skillyard.sandbox.native.linux import landlock

TOO_OLD = landlock.abi() == 0 or (landlock.abi() < SCOPES and os.geteuid() != 0)


def need(probe: Probe) -> None:
    """Skips where the kernel is too old; fails where it is not and the level does not stand."""
    if TOO_OLD:
        pytest.skip(probe.facts.get("why", "this kernel's Landlock is too old for the level"))
    assert probe.ready, probe.facts["why"]
