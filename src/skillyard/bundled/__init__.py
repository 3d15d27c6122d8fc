"""Skills of the package: the guide that every runtime has, examples, and templates of new ones."""

from pathlib import Path

GUIDE = Path(__file__).parent / "guide" / "skills.protocol.guide"
"""The bundle of ``skills.protocol.guide``."""

EXAMPLES = Path(__file__).parent / "examples"
"""A directory of skills, fit for ``--skills-dir``."""

NEW = Path(__file__).parent / "new"
"""Templates of a new skill, a directory for each sort."""
