"""The stores of skills, made from the settings: what directories hold and what was published."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from skillyard.config.settings import Settings
from skillyard.data_dir import DataDir
from skillyard.stores.skills.bundles import LocalBundles
from skillyard.stores.skills.catalogue import Catalogue
from skillyard.stores.skills.snapshots import Snapshots
from skillyard.stores.sqlite.database import Database
from skillyard.stores.sqlite.publications import SqlitePublications


@dataclass(frozen=True, slots=True)
class SkillStores:
    skills: Catalogue
    publications: SqlitePublications
    bundles: LocalBundles


async def make_skill_stores(settings: Settings, places: DataDir, database: Database) -> SkillStores:
    """Loaded, and swept of what a crash left; the skills are to be closed. Raises OSError, StoreFault."""
    publications = SqlitePublications(database, settings.skills.limits)
    snapshots = Snapshots(places.snapshots, sync=settings.records.durable)
    bundles = LocalBundles(
        snapshots,
        places.uploads,
        max_bytes=settings.skills.upload_bytes,
        lenient=settings.skills.publish == "lenient",
    )
    await asyncio.to_thread(bundles.prepare)
    roots = [*settings.skills_dirs, places.skills]
    skills = Catalogue(roots, snapshots, index=places.catalogue, publications=publications)
    try:
        await skills.start()
    except BaseException:
        await skills.close()
        raise
    return SkillStores(skills, publications, bundles)
