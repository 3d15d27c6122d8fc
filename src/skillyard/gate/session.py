"""One run's session, in the gate's process: what it may reach, what it reached, and what is under way."""

from __future__ import annotations

import time

from skillyard.domain.network.address import Address, closed
from skillyard.domain.network.policy import Decision, Policy
from skillyard.domain.network.session import Connection, EgressPlan, NetworkLog
from skillyard.gate.dial import Dialer
from skillyard.gate.failures import Ended, Refused, Trouble, Unreachable
from skillyard.gate.log import Log
from skillyard.gate.synthetic import Synthetic
from skillyard.gate.tls.intercept import Interception
from skillyard.gate.upstream import Upstream
from skillyard.gate.usage import Usage
from skillyard.gate.visit import Visit, current_visit


class Session:
    """``policy`` is replaced by :meth:`change`. ``interception`` is there when there are secrets at the gate."""

    def __init__(self, id: str, plan: EgressPlan, dialer: Dialer, interception: Interception | None = None) -> None:
        self.id = id
        self.policy = plan.policy
        self.limits = plan.limits
        self.interception = interception
        self.log = Log()
        self.names = Synthetic()
        self.usage = Usage(plan.limits)
        self.visits: set[Visit] = set()
        self.closed = False
        self._dialer = dialer
        self._live: set[Upstream] = set()
        self._tried: dict[int, Connection] = {}
        """What is being looked up and dialled."""
        self._began = time.monotonic()

    def address_of(self, name: str) -> Address | None:
        """The synthetic address that stands for ``name``, a canonical one; None when there are too many."""
        return self.names.address_of(name)

    def name_of(self, address: Address) -> str | None:
        """The name that a synthetic address stands for."""
        return self.names.name_of(address)

    async def reach(self, via: str, host: str | Address, port: int) -> Upstream:
        """A connection to ``host``, a canonical name (:func:`canonical_name`) or a literal address that is not
        synthetic. It is in the log however this ends. Raises Refused, Unreachable and Ended."""
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
        except (Refused, Unreachable, Ended) as trouble:
            self.note(via, str(host), port, decision, reason=trouble.reason)
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
        upstream = Upstream(sock, self, name, address, port, note)
        upstream.visit = current_visit()
        self._live.add(upstream)
        self.log.changed = True
        return upstream

    def refuse(self, via: str, host: str, port: int, reason: str, layer: str = "held", rule: str = "") -> Refused:
        """Log what is refused before it could be reached, such as a request that is malformed; to be raised."""
        self.note(via, host, port, Decision(False, layer, rule, reason))
        return Refused(reason)

    def note(self, via: str, host: str, port: int, decision: Decision, *, reason: str = "") -> None:
        """Log a connection that is over, or was none. ``reason`` replaces the decision's."""
        one = self._connection(via, host, port, decision)
        one.reason = reason or decision.reason
        self.log.add(one)

    def change(self, policy: Policy) -> None:
        """For what is reached from here on; what is under way and no longer allowed is ended."""
        self.policy = policy
        own = self._dialer.own()
        for upstream in list(self._live):
            decision = policy.check(upstream.name, upstream.address, upstream.port, own, self._dialer.nat64)
            if not decision.allowed:
                upstream.stop(f"ended by a change: {decision.reason}")

    def gone(self, upstream: Upstream) -> None:
        """An upstream was closed."""
        self._live.discard(upstream)
        upstream.note.last_ms = self.elapsed_ms()
        self.log.add(upstream.note)

    def report(self) -> NetworkLog:
        """What was decided so far."""
        return self.log.snapshot([*(upstream.note for upstream in self._live), *self._tried.values()])

    def close(self) -> NetworkLog:
        """End everything, forget every secret; the whole log."""
        self.closed = True
        for visit in list(self.visits):
            visit.end(Ended("the session is over"))
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


class _Judged(Trouble):
    """No address of the target may be dialled."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.reason)
        self.decision = decision
