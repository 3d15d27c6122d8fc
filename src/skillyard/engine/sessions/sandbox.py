"""The kept sandbox of a session between two calls.

It is cleared of all but its files, which are moved where a call needs another sandbox.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from skillyard.domain.errors import SandboxFault, SandboxGone
from skillyard.domain.network.session import TRUST_FILE
from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.frames import FrameFault, FrameReader, Result, ResultFault
from skillyard.domain.sandbox.spec import (
    Guest,
    Mount,
    Owner,
    SandboxSpec,
    Start,
    Stream,
    StreamLimits,
    clear_request,
)
from skillyard.domain.work.record import Ending, Outcome
from skillyard.engine.backends import Offer
from skillyard.ports.sandbox import Backend, Following, Imaged, Remembering, Sandbox

WORKSPACE = "/workspace"
INPUTS = "/tmp/blobs"  # noqa: S108 - inside a sandbox
TRUSTED = "/tmp/trust/ca.pem"  # noqa: S108 - inside a sandbox
"""The places of a call's blobs and certificates, which a sandbox that is there already cannot get as mounts."""
CLEAR_MS = 30_000
_CLEAR_STREAMS = StreamLimits(64 * 1024, 64 * 1024)
_PIECE = 256 * 1024
_BLOBS = "/blobs/"


def kept_spec(spec: SandboxSpec) -> SandboxSpec:
    """Returns the spec of a session's sandbox for a call that would get ``spec`` alone."""
    return replace(spec, mounts=tuple(m for m in spec.mounts if not _place(m)), owner=Owner.TASK, single=False)


def fit_of(offer: Offer, spec: SandboxSpec) -> str:
    """Returns a digest of what a sandbox is made from, behind the revision of its backend.

    The ports of its network and its time limit do not count.
    """
    environment, limits, backend = spec.environment, spec.limits, offer.backend
    image = backend.image_of(spec) if isinstance(backend, Imaged) else spec.image
    told = [
        offer.name,
        [environment.name, environment.digest, environment.preload],
        sorted([mount.target, _named(mount), *mount.aliases] for mount in spec.mounts),
        [spec.group, image, spec.resource_class, spec.forwarding],
        spec.read_only,
        [sorted(spec.kernel_only), sorted(spec.allow_degraded)],
        [*astuple(replace(limits, timeout_ms=1000))],
    ]
    return f"{offer.revision}:{hashlib.sha256(json.dumps(told).encode()).hexdigest()}"


def _named(mount: Mount) -> str:
    return mount.source.digest if isinstance(mount.source, Content) else str(mount.source)


async def bring(sandbox: Sandbox, mounts: Iterable[Mount]) -> bool:
    """Writes the blobs and certificates among ``mounts``; returns whether there were blobs.

    Raises QuotaExceeded, SandboxFault.
    """
    places = {place: mount.source for mount in mounts if (place := _place(mount))}
    for place, source in places.items():
        if isinstance(source, Content):
            await sandbox.write(place, _bytes_of(source), mode=0o444)
    if places:
        await sandbox.end_files()
    return bool(places.keys() - {TRUSTED})


def trusting(guest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the request with its variables naming the certificates that :func:`bring` wrote."""
    return {**guest, "env": {name: TRUSTED if at == TRUST_FILE else at for name, at in guest["env"].items()}}


def _place(mount: Mount) -> str:
    """Returns the file that stands for a mount of one call; empty for those of the sandbox."""
    if mount.target == TRUST_FILE:
        return TRUSTED
    return f"{INPUTS}/{mount.target.removeprefix(_BLOBS)}" if mount.target.startswith(_BLOBS) else ""


def _bytes_of(content: Content) -> AsyncIterator[bytes]:
    if content.path is not None:
        return _pieces(content.path)
    assert content.open is not None, "it has one of both"
    return content.open()


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece
    finally:
        file.close()


async def move(old: Sandbox, new: Sandbox) -> None:
    """Copies the files of one sandbox to another as one tree.

    Programs that still run in the old one go on. Raises QuotaExceeded, SandboxFault.
    """
    await new.put(WORKSPACE, old.get(WORKSPACE))
    await new.end_files()


async def destroy_all(backends: Iterable[Backend], prefix: str, own: Backend | None, handle: str | None) -> None:
    """Destroys a sandbox of ``own`` by its handle, and all whose key begins with ``prefix``.

    Raises SandboxFault.
    """

    async def destroy_known() -> None:
        if own is not None and handle is not None:
            await own.destroy(handle)

    async def destroy_others() -> None:
        for backend in backends:
            if isinstance(backend, Remembering) and not backend.may_have(prefix, handle if backend is own else None):
                continue
            for held in await backend.survey():
                if held.key.startswith(prefix) and (backend is not own or held.handle != handle):
                    await backend.destroy(held.handle)

    # A sandbox that no record has is rare, and a provider's list takes as long as the end of the known one.
    for done in await asyncio.gather(destroy_known(), destroy_others(), return_exceptions=True):
        if done is not None:
            raise done


async def end_programs(sandbox: Sandbox, ids: Iterable[str]) -> None:
    """Ends programs that a call may have left at work, and waits for that. Raises SandboxGone."""
    for id in ids:
        with suppress(SandboxGone):
            process = await sandbox.process(id)
            await process.kill("the call is over")
            await process.wait()


def clear_behind(sandbox: Sandbox, run_id: str) -> None:
    """Has a sandbox cleared as soon as the next program, that of a run, has ended, if it can."""
    if isinstance(sandbox, Following):
        sandbox.follow(run_id, Start(Guest(clear_request(), alone=True), f"{run_id}-clears", CLEAR_MS, _CLEAR_STREAMS))


async def clear(sandbox: Sandbox, id: str) -> Ending:
    """Clears a sandbox of all but files and kept programs; returns the ending of what did.

    Raises SandboxFault where something is left, or nothing confirms that all is gone.
    """
    await sandbox.end_files()
    if isinstance(sandbox, Following) and (told := await sandbox.followed()) is not None:
        channel, ending = told
        if ending.outcome is Outcome.EXIT and _told(channel) == []:
            return ending  # else it is tried once more
    process = await sandbox.start(
        Guest(clear_request(), alone=True), id=id, timeout_ms=CLEAR_MS, streams=_CLEAR_STREAMS
    )
    channel = b"".join([data async for data in process.output(Stream.CHANNEL)])
    ending = await process.wait()
    if ending.outcome is Outcome.LOST:
        raise SandboxGone("the sandbox ended")
    left = _told(channel)
    if left is None:
        raise SandboxFault(f"nothing confirms that it is cleared: {ending.outcome} {ending.reason}".rstrip())
    if left:
        raise SandboxFault(f"it could not be cleared of {', '.join(left)}")
    return ending


def _told(channel: bytes) -> list[str] | None:
    """Returns what is left by the guest's word; None without a word of it."""
    reader = FrameReader()
    try:
        for _ in reader.feed(channel):
            continue
        final = reader.finish()
        left = final.value().get("left") if isinstance(final, Result) else None
    except (FrameFault, ResultFault):
        return None
    if not isinstance(left, list) or not all(isinstance(name, str) for name in left):
        return None
    return [name[:80] for name in left[:8]]
