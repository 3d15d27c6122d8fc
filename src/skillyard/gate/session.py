"""One run's session in the gate's process: its policy, its connections and its log."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from skillyard.domain.network.address import Address, closed
from skillyard.domain.network.policy import Decision, Policy
from skillyard.domain.network.session import ENDPOINT_USER, MOST_REASON, Connection, EgressPlan, NetworkLog
from skillyard.gate.addresses import Host
from skillyard.gate.dial import Dialer
from skillyard.gate.relay.guard import Ended, Failure, Refused, Unreachable
from skillyard.gate.tls.intercept import Interception
from skillyard.gate.upstream import SandboxConnection, Upstream, Usage
from skillyard.gate.wire import AHEAD, log_in

POOL = ipaddress.IPv4Network("198.18.0.0/15")
"""Addresses that stand for names inside one session; no network routes them (RFC 2544)."""
OWN = POOL[1]
"""The sandbox's own, on lo: with it, resolvers that look for a configured family (AI_ADDRCONFIG) ask for IPv4."""
_FIRST = 2
MOST_NAMES = 8192
MOST_KINDS = 200
_MOST_ALONE = 180
"""Kinds with a place of their own; further connections that reached something are put together."""
_MOST_REFUSED = 150
"""Kinds of refusals: they cost a program nothing and must not push out connections that were made."""
TOGETHER = "of kinds beyond what a record holds one by one"

_Key = tuple[str, str, int, bool, str, str, str, tuple[str, ...]]


class Session:
    """Reaches servers within a policy and logs each connection.

    :meth:`change` replaces ``policy``. ``interception`` is there when there are secrets at the gate. ``before`` is the
    :attr:`state` of a session that goes on here."""

    def __init__(
        self,
        id: str,
        plan: EgressPlan,
        dialer: Dialer,
        interception: Interception | None = None,
        before: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = id
        self.policy = plan.policy
        self.limits = plan.limits
        self.interception = interception
        self.log = Log()
        self.names = SyntheticAddresses()
        self.usage = Usage(plan.limits)
        self.connections: set[SandboxConnection] = set()
        self.closed = False
        self.tools: Any = None
        """Its :class:`skillyard.gate.tools.ToolDesk`; None for a run that may call no tools."""
        self._dialer = dialer
        self._live: set[Upstream] = set()
        self._tried: dict[int, Connection] = {}
        """Connections that are being looked up or dialled."""
        self._began = time.monotonic()
        if before is not None:
            self._began = before["began"]
            self.names.restore(before["names"], before["next"])
            self.usage.sent_bytes, self.usage.received_bytes, self.usage.connections_total = before["usage"]
            self.log.restore(log_in(before["log"]))

    @property
    def state(self) -> dict[str, Any]:
        """Returns all that another process needs to go on, beside the plan and the authority."""
        usage = self.usage
        return {
            "began": self._began,
            "names": self.names.given,
            "next": self.names.next,
            "usage": [usage.sent_bytes, usage.received_bytes, usage.connections_total],
            "log": self.report().as_dict(),
        }

    def renew(self, plan: EgressPlan, interception: Interception | None) -> None:
        """Goes on under a new plan."""
        self.limits = self.usage.limits = plan.limits
        self.interception = interception
        self.change(plan.policy)

    def address_of(self, name: str) -> Address | None:
        """Returns the synthetic address of a canonical name; None when there are too many."""
        next = self.names.next
        found = self.names.address_of(name)
        self.log.changed |= self.names.next != next
        return found

    def name_of(self, address: Address) -> str | None:
        """Returns the name that a synthetic address stands for."""
        return self.names.name_of(address)

    async def reach(self, via: str, host: Host, port: int) -> Upstream:
        """Returns a connection to ``host``, a canonical name (:func:`canonical_name`) or an address.

        A synthetic address means its name. The log has it however this ends. Raises Refused, Unreachable and Ended."""
        if not isinstance(host, str) and host in POOL:
            named = self.name_of(host)
            if named is None:
                reason = f"{host} stands for no name that was asked for"
                raise self.refuse(via, str(host), port, reason, layer="floor")
            host = named
        name, literal = (host, None) if isinstance(host, str) else (None, host)
        decision = self.policy.ask(name, literal, port)
        tried = self._connection(via, str(host), port, decision)
        self._tried[id(tried)] = tried
        try:
            if self.closed:
                raise Ended("the session is over")
            if not decision.allowed:
                raise Refused(decision.reason)
            return await self._dial(via, name, literal, port)
        except _Judged as judged:
            decision = judged.decision
            self.note(via, str(host), port, decision)
            raise Refused(decision.reason) from None
        except (Refused, Unreachable, Ended) as failure:
            self.note(via, str(host), port, decision, reason=failure.reason)
            raise
        finally:
            del self._tried[id(tried)]

    async def _dial(self, via: str, name: str | None, literal: Address | None, port: int) -> Upstream:
        policy = self.policy
        known = policy.hosts.get(name) if name is not None else (literal,)
        addresses = known or await self._dialer.resolve(self.id, name or "", self.limits.connect_s)
        if not policy.hosts.get(name or "") and any(
            a is not None and a.version == 6 and not closed(a) for a in addresses
        ):
            await self._dialer.learn_nat64(self.limits.connect_s)
        own, nat64 = self._dialer.own(), self._dialer.nat64
        judged = [(a, policy.check(name, a, port, own, nat64)) for a in addresses if a is not None]
        allowed = [address for address, decision in judged if decision.allowed]
        if not allowed:
            raise _Judged(judged[0][1])
        sock, address = await self._dialer.dial(allowed, port, self.limits.connect_s)
        # The policy may have been replaced while it was dialled.
        decision = self.policy.check(name, address, port, own, nat64)
        if self.closed or not decision.allowed:
            sock.close()
            raise Ended("the session is over") if self.closed else _Judged(decision)
        note = self._connection(via, name or str(address), port, decision)
        upstream = Upstream(sock, self.usage, name, address, port, note, self._gone)
        self._live.add(upstream)
        self.log.changed = True
        return upstream

    def refuse(self, via: str, host: str, port: int, reason: str, layer: str = "held", rule: str = "") -> Refused:
        """Logs a refusal before anything was reached, such as of a malformed request.

        Returns the error to raise."""
        self.note(via, host, port, Decision(False, layer, rule, reason))
        return Refused(reason)

    def note(self, via: str, host: str, port: int, decision: Decision, *, reason: str = "") -> None:
        """Logs a connection that is over or was never made. ``reason`` replaces the decision's."""
        one = self._connection(via, host, port, decision)
        one.reason = reason or decision.reason
        self.log.add(one)

    def change(self, policy: Policy) -> None:
        """Applies ``policy`` from now on, and ends connections that it does not allow."""
        self.policy = policy
        own = self._dialer.own()
        for upstream in list(self._live):
            decision = policy.check(upstream.name, upstream.address, upstream.port, own, self._dialer.nat64)
            if not decision.allowed:
                upstream.stop(f"ended by a change: {decision.reason}")

    def _gone(self, upstream: Upstream) -> None:
        self._live.discard(upstream)
        upstream.note.last_ms = self.elapsed_ms()
        self.log.add(upstream.note)

    def report(self) -> NetworkLog:
        """Returns the log with the connections that are under way."""
        return self.log.snapshot([*(upstream.note for upstream in self._live), *self._tried.values()])

    def close(self) -> NetworkLog:
        """Ends every connection, forgets every secret and returns the whole log."""
        self.closed = True
        if self.tools is not None:
            self.tools.close()
        for connection in list(self.connections):
            connection.end(Ended("the session is over"))
        for upstream in list(self._live):
            upstream.abort(ConnectionAbortedError("closed"))
        if self.interception is not None:
            self.interception.forget()
            self.interception = None
        self._dialer.forget(self.id)
        return self.report()

    def elapsed_ms(self) -> float:
        return round((time.monotonic() - self._began) * 1000, 1)

    def _connection(self, via: str, host: str, port: int, decision: Decision) -> Connection:
        at = self.elapsed_ms()
        return Connection(
            via, host, port, decision.allowed, decision.layer, decision.rule, "", 1, first_ms=at, last_ms=at
        )


class Door:
    """Lets one client of an endpoint in that shows the session's credential. ``enter`` counts it then."""

    def __init__(self, session: Session, credential: str, enter: Callable[[], str | None]) -> None:
        self._session = session
        self._wanted = f"{ENDPOINT_USER}:{credential}".encode()
        self._enter = enter
        self.passed = False

    def knows(self, shown: bytes | None) -> bool:
        """Returns whether this is ``USER:CREDENTIAL``."""
        return shown is not None and hmac.compare_digest(shown, self._wanted)

    def check(self, via: str, shown: bytes | None) -> None:
        """Checks the words that each request shows. Raises Refused, which is logged."""
        if not self.knows(shown):
            raise self._session.refuse(via, "", 0, "the credential of the endpoint is missing or wrong")
        if not self.passed:
            if (why := self._enter()) is not None:
                raise self._session.refuse(via, "", 0, why, layer="limits")
            self.passed = True


class _Judged(Failure):
    """The policy allows none of the target's addresses."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.reason)
        self.decision = decision


class SyntheticAddresses:
    """Gives each name one address for the life of a session.

    Programs keep addresses beyond any time to live. ``next`` is the place of the next name; ``sealed`` is how far a
    server has sealed them, None where nobody does."""

    def __init__(self) -> None:
        self._by_name: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self.next = 0
        self.sealed: int | None = None

    @property
    def given(self) -> dict[str, int]:
        """Returns the place of each name."""
        return self._by_name

    def restore(self, given: Mapping[str, int], next: int) -> None:
        """Takes the names of a session that goes on. Raises ValueError for places that are not below ``next``."""
        if not all(0 <= place < next for place in given.values()):
            raise ValueError("a name has a place that nobody gave")
        self._by_name = dict(given)
        self._names = {place: name for name, place in given.items()}
        self.next = self.sealed = next

    def address_of(self, name: str) -> ipaddress.IPv4Address | None:
        """Returns None when the session has asked for too many names."""
        place = self._by_name.get(name)
        if place is None and self._has_room():
            place, self.next = self.next, self.next + 1
            self._by_name[name] = place
            self._names[place] = name
        return None if place is None else POOL[_FIRST + place]

    def name_of(self, address: Address) -> str | None:
        if address not in POOL:
            return None
        return self._names.get(int(address) - int(POOL.network_address) - _FIRST)

    def _has_room(self) -> bool:
        if len(self._names) >= MOST_NAMES or _FIRST + self.next >= POOL.num_addresses:
            return False
        return self.sealed is None or self.next < self.sealed + AHEAD


class Log:
    """Connections counted by kind; no flood makes it long or hides a connection that was made."""

    def __init__(self) -> None:
        self._kinds: dict[_Key, Connection] = {}
        self._dropped = 0
        self.changed = False

    def restore(self, before: NetworkLog) -> None:
        """Takes over the log of a session that goes on."""
        self._dropped = before.dropped
        for one in before.connections:
            self.add(one)

    def add(self, one: Connection) -> None:
        """Counts ``one``, which is not kept."""
        self.changed = True
        if not _merge(self._kinds, one):
            self._dropped += one.count

    def snapshot(self, live: Iterable[Connection] = ()) -> NetworkLog:
        """Returns the log with ``live`` connections, which are not over."""
        kinds = {key: replace(kind) for key, kind in self._kinds.items()}
        dropped = self._dropped + sum(one.count for one in live if not _merge(kinds, one))
        return NetworkLog(tuple(kinds.values()), dropped)


def _merge(kinds: dict[_Key, Connection], one: Connection) -> bool:
    kind = kinds.get(_key(one))
    if kind is None and not _has_room(kinds, one):
        if not (one.allowed or one.sent_bytes or one.received_bytes):
            return False
        one = replace(one, host="", port=0, layer="", rule="", reason="" if one.allowed else TOGETHER)
        kind = kinds.get(_key(one))
        if kind is None and len(kinds) >= MOST_KINDS:
            return False
    if kind is None:
        kinds[_key(one)] = replace(one, reason=one.reason[:MOST_REASON])
        return True
    kind.count += one.count
    kind.sent_bytes += one.sent_bytes
    kind.received_bytes += one.received_bytes
    kind.first_ms = min(kind.first_ms, one.first_ms)
    kind.last_ms = max(kind.last_ms, one.last_ms)
    return True


def _key(one: Connection) -> _Key:
    reason = one.reason[:MOST_REASON]
    return (one.via, one.host, one.port, one.allowed, one.layer, one.rule, reason, one.secrets)


def _has_room(kinds: dict[_Key, Connection], one: Connection) -> bool:
    if len(kinds) >= _MOST_ALONE:
        return False
    return one.allowed or sum(not kind.allowed for kind in kinds.values()) < _MOST_REFUSED
