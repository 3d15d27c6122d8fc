"""Publishing and exporting in this process, with what the client gives back for it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from skillyard.client.bundles import LATEST, TYPES, ArchiveFormat, ExportedSkill, PublishedSkill, packed
from skillyard.client.sources import Download, Upload
from skillyard.domain.errors import InvalidInput
from skillyard.engine.skills.export import export, find_exported
from skillyard.engine.skills.publishing import publish
from skillyard.ports.bundles import ArchiveForm

if TYPE_CHECKING:
    from skillyard.client.exchange import Offloading
    from skillyard.client.sources import Progress, Sink, Source
    from skillyard.domain.principal import Principal
    from skillyard.engine.engine import Engine


async def publish_source(
    engine: Engine, principal: Principal, worker: Offloading, source: Source, progress: Progress | None
) -> PublishedSkill:
    with Upload(await packed(source, worker), worker, progress) as upload:
        done = await publish(engine, principal, upload.chunks())
    told = done.publication
    findings = tuple(asdict(finding) for finding in done.findings)
    return PublishedSkill(told.name, told.version, told.digest, told.size, told.files, done.created, findings)


async def export_to(
    engine: Engine,
    principal: Principal,
    worker: Offloading,
    asked: tuple[str, str | None, ArchiveFormat],
    sink: Sink,
    progress: Progress | None,
) -> ExportedSkill:
    name, version, form = asked
    if form not in TYPES:
        raise InvalidInput("form", "must be 'tar.gz' or 'zip'")
    skill = await find_exported(engine, principal, name, version or LATEST)
    target, done = Download(sink, worker), 0
    try:
        async with export(engine, principal, skill, ArchiveForm(form)) as archive:
            async for chunk in archive.chunks:
                await target.write(chunk)
                done += len(chunk)
                if progress:
                    progress(done, archive.size)
        target.keep()
    finally:
        target.discard()
    return ExportedSkill(skill.name, skill.version, skill.digest, done)
