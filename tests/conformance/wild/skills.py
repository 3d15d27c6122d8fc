"""Real third-party skills, from the checkouts that ``SKILLYARD_WILD_SKILLS`` names; never a part of this project.

Only skills under the Apache licence are read, each asked for by its name. To have them, fetch the repositories
(anthropics/skills, openai/skills) and check them out side by side below one directory.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "SKILLYARD_WILD_SKILLS"
KNOWN = frozenset(
    {
        *("algorithmic-art", "brand-guidelines", "canvas-design", "frontend-design", "internal-comms", "mcp-builder"),
        *("skill-creator", "slack-gif-creator", "theme-factory", "webapp-testing"),
    }
)
LICENSE = "Apache License"


def checkouts() -> list[Path]:
    """The directories beside each other in the one that the variable names; none when it is not set."""
    home = os.environ.get(VARIABLE)
    return sorted(path for path in Path(home).iterdir() if path.is_dir()) if home else []


def skills_of(checkout: Path) -> list[Path]:
    """The directories of the known skills in a checkout, also below folders that begin with a dot."""
    found = (manifest.parent for manifest in checkout.rglob("SKILL.md"))
    return sorted(path for path in found if path.name in KNOWN and is_apache(path))


def is_apache(skill: Path) -> bool:
    license_file = skill / "LICENSE.txt"
    return license_file.is_file() and LICENSE in license_file.read_text(errors="replace")[:200]
