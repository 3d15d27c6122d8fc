"""One run's session in the gate's process: its policy, its connections and its log."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable
from dataclasses import replace

from skillyard.domain.network.address import Address, closed
from skillyard.domain.network.policy import Decision, Policy
from skillyard.domain.network.session import MOST_REASON, Connection, EgressPlan, NetworkLog
from skillyard.gate.addresses import Host
from skillyard.gate.dial import Dialer
from skillyard.gate.relay.guard import Ended, Failure, Refused, Unreachable
from skillyard.gate.tls.intercept import Interception
from skillyard.gate.upstream import SandboxConnection, Upstream, Usage

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

    :meth:`change` replaces ``policy``. ``interception`` is there when there are secrets at the gate."""

    def __init__(self, id: str, plan: EgressPlan, dialer: Dialer, interception: Interception | None = None) -> None:
        self.id = id
        self.policy = plan.policy
        self.limits = plan.limits
        self.interception = interception
        self.log = Log()
        self.names = SyntheticAddresses()
        self.usage = Usage(plan.limits)
        self.connections: set[SandboxConnection] = set()
        self.closed = False
        self._dialer = dialer
        self._live: set[Upstream] = set()
        self._tried: dict[int, Connection] = {}
        """Connections that are being looked up or dialled."""
        self._began = time.monotonic()

    def address_of(self, name: str) -> Address | None:
        """Returns the synthetic address of a canonical name; None when there are too many."""
        return self.names.address_of(name)

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


class _Judged(Failure):
    """The policy allows none of the target's addresses."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.reason)
        self.decision = decision


class SyntheticAddresses:
    """Gives each name one address for the life of a session.

    Programs keep addresses beyond any time to live."""

    def __init__(self) -> None:
        self._by_name: dict[str, ipaddress.IPv4Address] = {}
        self._names: list[str] = []

    def address_of(self, name: str) -> ipaddress.IPv4Address | None:
        """Returns None when the session has asked for too many names."""
        found = self._by_name.get(name)
        if found is None and len(self._names) < MOST_NAMES:
            found = ipaddress.IPv4Address(int(POOL.network_address) + _FIRST + len(self._names))
            self._by_name[name] = found
            self._names.append(name)
        return found

    def name_of(self, address: Address) -> str | None:
        if address not in POOL:
            return None
        at = int(address) - int(POOL.network_address) - _FIRST
        return self._names[at] if 0 <= at < len(self._names) else None


class Log:
    """Connections counted by kind; no flood makes it long or hides a connection that was made."""

    def __init__(self) -> None:
        self._kinds: dict[_Key, Connection] = {}
        self._dropped = 0
        self.changed = False

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
