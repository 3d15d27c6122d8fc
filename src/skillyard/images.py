"""The work of ``skillyard image``: parts of sandboxes, as each backend wants them.

Beside the composition root, no other module knows backends and stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from skillyard.data_dir import DataDir


async def write_e2b_template(
    directory: Path, base: str | None, digests: Sequence[str], places: DataDir | None
) -> list[Path]:
    """Writes the files of a template for the isolation e2b, and returns them.

    ``digests`` name built environments of ``places``. Raises InvalidInput.
    """
    from skillyard.domain.errors import InvalidInput, shown
    from skillyard.sandbox.e2b.template import BASE, write_template
    from skillyard.stores.clock import SystemClock
    from skillyard.stores.files.environments import LocalEnvironments

    packages: dict[str, Path] = {}
    if places is not None:
        built = LocalEnvironments(places.environments, SystemClock())
        for digest in digests:
            found = [each for each in await built.list() if digest and each.digest.startswith(digest)]
            if len(found) != 1:
                rule = "must be the digest of one built environment; `skillyard environment list` shows them"
                raise InvalidInput("--packages", rule, shown(digest))
            packages[found[0].digest] = built.packages(found[0].digest)
    return write_template(directory, base or BASE, packages)
