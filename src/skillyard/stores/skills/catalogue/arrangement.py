"""What is served of each name, kept true to the bundles in the index. All of it blocks, for one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from skillyard.stores.skills.catalogue.index.index import Index
from skillyard.stores.skills.catalogue.shelf import arrange, weight

_SUM = 1 << 128


Tell = Callable[[Collection[str] | None], None]
"""Called with the names whose skills may have changed, None for all, in the thread that changed them."""


class Arrangement:
    """``tell`` is called after each transaction. ``bundles`` of directories are
    known, and ``paths`` watched for them; ``revision`` is the catalogue's."""

    def __init__(self, index: Index, tell: Tell) -> None:
        self._index = index
        self._tell = tell
        self.load()

    def load(self) -> None:
        self.revision = int(self._index.reads.fact("revision") or "0", 16)
        self.bundles, self.paths = self._index.reads.sizes()

    def arrange(self, names: Iterable[str]) -> int:
        """Decide anew what is served of ``names``, within a transaction; the revision that there will be."""
        reads, writes, revision = self._index.reads, self._index.writes, self.revision
        for name in names:
            before = reads.name(name)
            shelf = arrange(writes.of_name(name), writes.withdrawn(name), reads.pin(name))
            for bundle, refusal in shelf.refusals.items():
                writes.refuse(bundle, refusal)
            if shelf.name is None:
                writes.drop_name(name)
            elif shelf.name != before:
                writes.put_name(shelf.name)
            revision = (revision + weight(shelf.name) - weight(before)) % _SUM
        writes.put_fact("revision", f"{revision:x}")
        return revision

    def committed(self, names: Collection[str], revision: int) -> None:
        """After the transaction."""
        self.revision = revision
        self.bundles, self.paths = self._index.reads.sizes()
        self._tell(names)
