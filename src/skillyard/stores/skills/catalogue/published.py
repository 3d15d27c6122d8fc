"""Published versions in the index. All of it blocks, for one thread at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from skillyard.domain.skill.publication import Publication, place_of
from skillyard.stores.skills.catalogue.arrangement import Arrangement
from skillyard.stores.skills.catalogue.index.index import Index
from skillyard.stores.skills.catalogue.index.reads import Withdrawal
from skillyard.stores.skills.catalogue.index.rows import PUBLISHED, key_of
from skillyard.stores.skills.catalogue.loading import Loader

_NUMBER = "publications"


@dataclass(frozen=True, slots=True)
class Said:
    """Everything that the store of publications says of one name."""

    name: str
    publications: Sequence[Publication]
    pinned: str | None


class Published:
    def __init__(self, index: Index, loader: Loader, arrangement: Arrangement) -> None:
        self._index = index
        self._loader = loader
        self._arrangement = arrangement

    @property
    def number(self) -> int:
        """The newest line of the histories of publications whose change is served."""
        return int(self._index.reads.fact(_NUMBER) or "0")

    def names(self) -> set[str]:
        """Of which anything was said."""
        return self._index.writes.published_names()

    def broken(self) -> set[str]:
        """Names with versions whose snapshots could not be served."""
        return self._index.writes.broken_names()

    def serve(self, said: Sequence[Said], number: int | None, *, again: bool = False) -> None:
        """Serve what was said. ``number`` is remembered with it, None for the one that is. ``again``: snapshots that
        were fine are read too."""
        names = {one.name for one in said}
        with self._index.writes.transaction():
            for one in said:
                self._put(one, again)
            if number is not None:
                self._index.writes.put_fact(_NUMBER, str(number))
            revision = self._arrangement.arrange(names)
        self._arrangement.committed(names, revision)

    def _put(self, said: Said, again: bool) -> None:
        writes = self._index.writes
        writes.put_withdrawn(said.name, _withdrawals(said.publications))
        writes.put_pin(said.name, said.pinned)
        wanted = {key_of(p.name, p.version): p for p in said.publications if not p.withdrawn}
        for key in writes.published_keys(said.name):
            if key not in wanted:
                writes.drop(key, PUBLISHED)
        for key, publication in wanted.items():
            before = self._index.reads.at(key)
            if again or before is None or before.errors or before.digest != publication.digest:
                writes.put(self._loader.read_published(publication).entry)


def _withdrawals(publications: Sequence[Publication]) -> Iterator[tuple[str, Withdrawal]]:
    for publication in publications:
        if publication.withdrawn_at is not None:
            withdrawal = Withdrawal(publication.version, publication.withdrawn_at, publication.reason)
            yield place_of(publication.version), withdrawal
