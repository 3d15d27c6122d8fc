"""The conformance suite of bundles as they travel."""

from __future__ import annotations

import asyncio
import io
import tarfile
import zipfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager

from skillyard.domain.errors import BundleRefused, QuotaExceeded
from skillyard.domain.skill.skill import Skill, SkillFormat, SkillSource
from skillyard.ports.skills import ArchiveForm, BundleStore
from skillyard.testing.store_check import Checks, expect, refused

Maker = Callable[[int], AbstractAsyncContextManager[BundleStore]]
"""Takes how many bytes one archive may have."""
check = Checks[Maker]()
CHECKS = check.all

ROOMY = 4 * 1024 * 1024
NOTE = (
    b"---\nname: some-note\ndescription: Something that was written down.\nmetadata:\n  version: '1.2.0'\n---\nText\n"
)
FILES: Mapping[str, bytes] = {"SKILL.md": NOTE, "data/all.bin": bytes(range(256)) * 500, "data/empty": b""}


def tarred(files: Mapping[str, bytes] = FILES, mode: str = "w:gz", prefix: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for path, data in files.items():
            info = tarfile.TarInfo(prefix + path)
            info.size, info.mode = len(data), 0o755 if path.endswith(".sh") else 0o644
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zipped(files: Mapping[str, bytes] = FILES) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return out.getvalue()


async def pieces(data: bytes, size: int = 65536) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


@check
async def what_comes_in_is_described(make: Maker) -> None:
    async with make(ROOMY) as bundles:
        skill = (await bundles.receive(pieces(tarred()))).skill
        told = (skill.name, skill.version, skill.format, skill.source)
        expected = ("some-note", "1.2.0", SkillFormat.AGENT_SKILLS, SkillSource.PUBLISHED)
        expect(told == expected, "name, version, format and source", told)
        expect({file.path: file.size for file in skill.files} == {p: len(d) for p, d in FILES.items()}, "its files")


@check
async def packing_does_not_count(make: Maker) -> None:
    async with make(ROOMY) as bundles:
        ways = [
            tarred(),
            tarred(mode="w"),
            tarred(prefix="any/"),
            zipped(),
            tarred(dict(reversed(list(FILES.items())))),
        ]
        digests = {(await bundles.receive(pieces(way))).skill.digest for way in ways}
        expect(len(digests) == 1, "one digest", digests)
        other = (await bundles.receive(pieces(tarred({**FILES, "data/empty": b"x"})))).skill.digest
        executable = (await bundles.receive(pieces(tarred({**FILES, "run.sh": b""})))).skill.digest
        expect(len(digests | {other, executable}) == 3, "other content has another")


@check
async def pieces_of_any_size_are_taken(make: Maker) -> None:
    async with make(ROOMY) as bundles:
        data = tarred({"SKILL.md": NOTE})
        digests = {(await bundles.receive(pieces(data, size))).skill.digest for size in (1, 7, len(data))}
        expect(len(digests) == 1, "the same", digests)


@check
async def nothing_is_stored_until_it_is_kept(make: Maker) -> None:
    async with make(ROOMY) as bundles:
        arrived = await bundles.receive(pieces(tarred()))
        expect(not arrived.skill.root.exists(), "nothing yet")
        await asyncio.gather(*(arrived.keep() for _ in range(4)))
        found = {p: (arrived.skill.root / p).read_bytes() for p in FILES}
        expect(found == FILES, "every file is there when keep returns", found.keys())


@check
async def what_goes_out_is_what_came_in(make: Maker) -> None:
    async with make(ROOMY) as bundles:
        arrived = await bundles.receive(pieces(tarred({**FILES, "run.sh": b"#!/bin/sh\n"})))
        await arrived.keep()
        for form in ArchiveForm:
            sent = await exported(bundles, arrived.skill, form)
            expect(sent == await exported(bundles, arrived.skill, form), f"the same {form} each time")
            again = (await bundles.receive(pieces(sent))).skill
            expect(again.digest == arrived.skill.digest, f"the digest of a {form} is the same", again.digest)


@check
async def what_is_no_skill_is_refused_with_findings(make: Maker) -> None:
    async with make(ROOMY) as bundles:
        bad = {**FILES, "SKILL.md": b"---\nname: Bad_Name\ndescription: x\n---\n"}
        for what in (b"", b"no archive", tarred()[:-100], tarred({"x": b"x"}), tarred({"../x": b"x"}), tarred(bad)):
            error = await refused(BundleRefused, bundles.receive(pieces(what)), "no skill")
            findings = error.details["findings"]
            expect(any(finding["level"] == "error" for finding in findings), "it says what is wrong", findings)


@check
async def what_is_too_large_is_not_read_to_its_end(make: Maker) -> None:
    async with make(10_000) as bundles:
        given = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal given
            while True:
                given += 1000
                yield bytes(1000)

        await refused(QuotaExceeded, bundles.receive(endless()), "too large")
        expect(given <= 12_000, "reading ends there", given)
        await bundles.receive(pieces(tarred({"SKILL.md": NOTE})))


@check
async def a_source_that_fails_is_told_as_it_is(make: Maker) -> None:
    async with make(ROOMY) as bundles:

        async def broken() -> AsyncIterator[bytes]:
            yield tarred()[:50]
            raise ConnectionResetError("gone")

        try:
            await bundles.receive(broken())
        except ConnectionResetError:
            pass
        else:
            expect(False, "the source's own error")
        await bundles.receive(pieces(tarred()))


async def exported(bundles: BundleStore, skill: Skill, form: ArchiveForm) -> bytes:
    async with bundles.export(skill, form) as archive:
        data = b"".join([chunk async for chunk in archive.chunks])
    expect(len(data) == archive.size, "its size is known before", archive.size)
    return data
