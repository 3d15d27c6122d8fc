"""The name server of a sandbox. It knows the names that the policy allows, each by an address that stands for it, and
asks nobody: a question goes nowhere, whatever it carries."""

from __future__ import annotations

import ipaddress

from skillyard.domain.network.policy import Decision
from skillyard.domain.network.session import DNS_PORT
from skillyard.gate.dns.message import ANY, NOERROR, NXDOMAIN, REFUSED, SERVFAIL, A, read_question, write_answer
from skillyard.gate.session import Session

VIA = "dns"
_MOST_LOGGED = 50
"""Refused names that a session's log has one by one, so that questions leave room for connections."""
_OTHERS = "other names"
_MOST_REMEMBERED = 1024


class Names:
    """Answers questions of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._policy = session.policy
        self._known: dict[str, bool] = {}
        self._refused: set[str] = set()

    def answer(self, message: bytes) -> bytes | None:
        """None for what is no question."""
        question = read_question(message)
        if question is None:
            return None
        if question.error:
            return write_answer(question, question.error)
        if not question.ours:
            return write_answer(question, REFUSED)
        if question.name is None or not self._allowed(question.name):
            self._refuse(question.name)
            return write_answer(question, NXDOMAIN)
        if question.kind not in (A, ANY):
            return write_answer(question, NOERROR)
        address = self._session.address_of(question.name)
        if not isinstance(address, ipaddress.IPv4Address):
            return write_answer(question, SERVFAIL)
        return write_answer(question, NOERROR, address)

    def _allowed(self, name: str) -> bool:
        """As the policy says; it is asked once, because questions come in floods and policies have many rules."""
        if self._policy is not self._session.policy or len(self._known) >= _MOST_REMEMBERED:
            self._policy = self._session.policy
            self._known.clear()
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._policy.answers(name)
        return known

    def _refuse(self, name: str | None) -> None:
        shown, reason = name or _OTHERS, "this is no host name"
        if name is not None:
            if name not in self._refused and len(self._refused) >= _MOST_LOGGED:
                shown, reason = _OTHERS, "no rule allows them"  # without the policy: questions come in floods
            else:
                self._refused.add(name)
                reason = self._policy.ask(name, None, 443).reason
        self._session.note(VIA, shown, DNS_PORT, Decision(False, "names", "", reason))
