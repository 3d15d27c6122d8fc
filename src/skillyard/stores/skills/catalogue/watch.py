"""The paths that belong to a bundle, as the index keeps them, and whether anything at them may have changed."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from skillyard.stores.skills.catalogue.index.rows import Entry
from skillyard.stores.skills.stamps import bundle_stamps, is_settled, signature, stamp
from skillyard.stores.skills.tree import Caps


@dataclass(frozen=True, slots=True)
class Watch:
    """``paths`` as JSON: those whose links are not followed and those whose links are, relative to the bundle.
    ``stamp`` is their signature, empty when an equal one would not mean equal bytes."""

    paths: str
    count: int
    stamp: bytes


def watch(directory: str, caps: Caps) -> Watch:
    """To be taken before the files are read."""
    now = time.time_ns()
    stamps = bundle_stamps(Path(directory), caps)
    behind = len(directory)
    plain = [(path[behind:], seen) for (path, follow), seen in stamps.items() if not follow]
    followed = [(path[behind:], seen) for (path, follow), seen in stamps.items() if follow]
    seen = [stamp for _, stamp in (*plain, *followed)]
    paths = json.dumps([[path for path, _ in plain], [path for path, _ in followed]])
    return Watch(paths, len(seen), signature(seen) if is_settled(seen, now) else b"")


def is_unchanged(entry: Entry) -> bool:
    """Whether a bundle is what it was when ``entry`` was made, by stamps alone."""
    if not entry.stamp:
        return False
    directory = entry.location
    plain, followed = json.loads(entry.watched)
    stamps = [stamp(directory + path, False) for path in plain]
    stamps += [stamp(directory + path, True) for path in followed]
    return signature(stamps) == entry.stamp
