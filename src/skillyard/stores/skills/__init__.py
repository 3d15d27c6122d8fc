"""Skills on the local disk: validation, immutable snapshots and the catalogue."""

from skillyard.stores.skills.catalogue import DirectorySkills
from skillyard.stores.skills.layout import ScanLimits
from skillyard.stores.skills.scaffold import new_skill
from skillyard.stores.skills.tree import Caps
from skillyard.stores.skills.validate import validate

__all__ = ["Caps", "DirectorySkills", "ScanLimits", "new_skill", "validate"]
