"""Skills that come with the package: the guide that every runtime has, and examples."""

from pathlib import Path

GUIDE = Path(__file__).parent / "guide" / "skills.protocol.guide"
"""The bundle of ``skills.protocol.guide``."""

EXAMPLES = Path(__file__).parent / "examples"
"""A directory of skills, fit for ``--skills-dir``."""
