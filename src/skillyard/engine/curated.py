"""Well-known packages whose import takes long and changes nothing, for environments that have them.

Each stands here because ``tests/preload`` shows of the real package that its import starts no thread or process, keeps
nothing open, keeps no generator of random numbers that runs would share, and reads no variable of the environment that
is not listed beside it with a reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

CURATED: Mapping[str, tuple[str, ...]] = {
    "numpy": ("numpy",),
    "pandas": ("pandas",),
    "pillow": ("PIL.Image",),
    "matplotlib": ("matplotlib.pyplot",),
    "scipy": ("scipy.stats",),
    "scikit-learn": ("sklearn.base",),
    "openpyxl": ("openpyxl",),
    "lxml": ("lxml.etree",),
    "pyyaml": ("yaml",),
}
"""Modules by distribution (PEP 503), in the order in which they are imported: of those that would pass
``native.preload_mb`` the last are left out."""


def curated(distributions: Collection[str], modules: Collection[str]) -> tuple[str, ...]:
    """What of the table an environment has: ``modules`` are the top-level names that it can import."""
    return tuple(
        name
        for distribution, names in CURATED.items()
        if distribution in distributions
        for name in names
        if name.partition(".")[0] in modules
    )
