"""Callbacks of tasks: told when a task has ended, until somebody takes them.

The end of a task and its callback are stored in one transaction, so a server that is killed forgets none. One that is
killed after somebody took a callback tells it once more, under the same id. A callback never changes its task.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from skillyard.config.commands import CommandSettings
from skillyard.config.profiles import ProfileSettings
from skillyard.domain.errors import InvalidInput, SkillyardError
from skillyard.domain.principal import Principal
from skillyard.domain.secret import SecretAct, SecretEvent
from skillyard.domain.work.callback import DELIVERED, Callback, Target, after, parse_url, signed
from skillyard.domain.work.record import RunRecord
from skillyard.engine.commands.courier import Courier, NotDelivered
from skillyard.engine.commands.service import status_of
from skillyard.engine.network.grant import profile_layer
from skillyard.engine.observer import Fault, Observer
from skillyard.engine.secrets.service import SecretBook
from skillyard.ports.clock import Clock
from skillyard.ports.records import CallbackStore, RecordStore

SIGNER = "Callbacks"
"""The secret's scope, as a skill: none has a capital letter, so none is given the secret."""
LOOK_S = 60.0
AT_ONCE, TO_ONE_HOST = 8, 2
"""Callbacks that are told at once: one host that does not answer keeps none of another waiting."""
_USER = "callbacks"
_GONE = 410


class Callbacks:
    """Checks callbacks ahead and delivers them. ``courier`` is None where the settings allow none."""

    def __init__(
        self,
        store: CallbackStore,
        records: RecordStore,
        book: SecretBook,
        courier: Courier | None,
        clock: Clock,
        emit: Observer,
        settings: CommandSettings,
        profiles: Mapping[str, ProfileSettings],
    ) -> None:
        self.store = store
        self._records = records
        self._book = book
        self._courier = courier
        self._clock = clock
        self._emit = emit
        self._settings = settings
        self._profiles = profiles
        self._news = asyncio.Event()
        self._trying: dict[str, tuple[asyncio.Task[None], str]] = {}

    async def check(self, principal: Principal, url: str) -> None:
        """Raises InvalidInput for a URL that no callback may go to, and where nobody could sign it."""
        target, name = parse_url(url), self._settings.callback_secret
        if self._courier is None:
            raise InvalidInput("callback_url", "this server tells no callbacks: commands.callback_hosts names no host")
        policy = self._courier.policy
        if (layer := profile_layer(self._profiles, principal)) is not None:
            policy = replace(policy, layers=(*policy.layers, layer))
        decision = policy.ask(target.name, target.address, target.port)
        if decision.allowed and target.address is not None:
            decision = policy.check(None, target.address, target.port)
        if not decision.allowed:
            rule = f"must be of a host that commands.callback_hosts allows: {decision.reason}"
            raise InvalidInput("callback_url", rule, target.authority)
        if await self._book.find(name, principal.project, SIGNER) is None:
            remedy = f"skillyard secret set {name} --skills {SIGNER} --project {principal.project}"
            raise InvalidInput("callback_url", f"the project has no key to sign callbacks with; {remedy}")

    async def told(self, record: RunRecord) -> dict[str, Any]:
        """Returns what the status of a task says of its callback; empty without one."""
        if record.callback is None:
            return {}
        found = None if record.status.live else await self.store.get(record.run_id)
        found = found or Callback(record.run_id)
        return {"callback": {"state": found.state, "tries": found.tries, "told": found.told}}

    async def deliver(self) -> None:
        """Delivers callbacks as tasks end, and those that an earlier server left."""
        if self._courier is None:
            return
        self._records.listen(self._heard)
        try:
            while True:
                self._news.clear()
                pause = LOOK_S
                try:
                    pause = await self._begin(self._courier)
                except SkillyardError as error:  # a later look goes on
                    self._emit(Fault("callback", error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._news.wait()
        finally:
            self._records.ignore(self._heard)
            trying = [task for task, _ in self._trying.values()]
            for task in trying:
                task.cancel()
            await asyncio.gather(*trying, return_exceptions=True)

    def _heard(self, record: RunRecord) -> None:
        if record.callback is not None and not record.status.live:
            self._news.set()

    async def _begin(self, courier: Courier) -> float:
        """Begins to deliver what is due, few at once to one host.

        Returns the seconds up to the next look."""
        while len(self._trying) < AT_ONCE:
            hosts = Counter(host for _, host in self._trying.values())
            busy = [host for host, count in hosts.items() if count >= TO_ONE_HOST]
            found = await self.store.pending(AT_ONCE, busy)
            one = next((callback for callback in found if callback.run_id not in self._trying), None)
            if one is None:
                return LOOK_S
            wait = (one.next_at or 0.0) - self._clock.now()
            if wait > 0:
                return min(LOOK_S, wait)
            self._trying[one.run_id] = asyncio.create_task(self._see(courier, one)), one.host
        return LOOK_S

    async def _see(self, courier: Courier, callback: Callback) -> None:
        try:
            await self._try(courier, callback)
        except Exception as error:  # noqa: BLE001 - it is due still, and others must not wait for it
            self._emit(Fault("callback", error, callback.run_id))
            await asyncio.sleep(LOOK_S)
        finally:
            del self._trying[callback.run_id]
            self._news.set()

    async def _try(self, courier: Courier, callback: Callback) -> None:
        record = await self._records.get(callback.run_id)
        if record is None or record.callback is None:  # its record went, and the callback with it
            return
        most = self._settings.callback_tries
        try:
            status = await self._posted(courier, record, parse_url(record.callback))
            if 200 <= status < 300:
                tried = replace(
                    callback, state=DELIVERED, tries=callback.tries + 1, next_at=None, told=f"HTTP {status}"
                )
            else:
                most = callback.tries + 1 if status == _GONE else most
                tried = after(callback, self._clock.now(), f"HTTP {status}", most=most)
        except SkillyardError as error:
            tried = after(callback, self._clock.now(), error.message[:300], most=most)
        await self.store.note(tried)

    async def _posted(self, courier: Courier, record: RunRecord, target: Target) -> int:
        """Returns the status of the answer. Raises NotDelivered, StoreFault."""
        name, at = self._settings.callback_secret, self._clock.now()
        secret = await self._book.find(name, record.project, SIGNER)
        if secret is None:
            raise NotDelivered(f"the secret {name} is not stored for {SIGNER} any more")
        event = SecretEvent(
            at=at, act=SecretAct.USED, name=name, principal=_USER, project=record.project, skill=SIGNER,
            run_id=record.run_id, scope=str(secret.scope), version=secret.version, delivery="", reason="",
        )  # fmt: skip
        await self._book.audit.record([event])
        body = _body(record)
        fields = {
            "content-type": "application/json",
            "user-agent": "skillyard",
            **signed(secret.value, f"msg_{record.run_id}", at, body),
        }
        return await courier.post(f"callback_{record.run_id}", target, fields, body)


def _body(record: RunRecord) -> bytes:
    """Returns what is told of a task: how it ended, and nothing that it wrote."""
    ended = record.created_at if record.ended_at is None else record.ended_at
    told = {
        "type": "task.ended",
        "timestamp": datetime.fromtimestamp(ended, UTC).isoformat().replace("+00:00", "Z"),
        "data": {
            "task_id": record.run_id,
            "status": status_of(record),
            "reason": "" if record.outcome is None else record.outcome.value,
            "attempt": len(record.attempts) + 1,
            "created_at": record.created_at,
            "started_at": record.started_at,
            "finished_at": ended,
        },
    }
    return json.dumps(told, separators=(",", ":")).encode()
