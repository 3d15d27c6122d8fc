"""Whether the names of a skill in a directory could stand in an archive: else it is served, and never published."""

from __future__ import annotations

from contextlib import suppress

from skillyard.domain.skill.skill import Finding
from skillyard.stores.archives import ArchiveRefused
from skillyard.stores.skills.archives.collected import Collected, Enough
from skillyard.stores.skills.archives.limits import ArchiveLimits
from skillyard.stores.skills.tree import Caps, Tree


def check_names(tree: Tree, caps: Caps) -> list[Finding]:
    """A warning for each name that would be refused, the first twenty."""
    collected = Collected(ArchiveLimits(caps))
    with suppress(ArchiveRefused, Enough):
        for path in sorted(tree.files):
            collected.claim(path.encode(), directory=False, size=0)
    return [Finding("warning", found.file, 0, "portable-name", found.message) for found in collected.findings]
