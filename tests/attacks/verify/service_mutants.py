"""Mutants of what stands between services and their callers: header fields, names, pages, connections and bounds."""

from __future__ import annotations

import re
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from skillyard.engine.services.access import PortAccess
from skillyard.faces.http.services import endpoint, exchange, fields
from skillyard.faces.http.services.endpoint import Place
from skillyard.faces.http.services.exchange import Exchange, Switched
from skillyard.faces.http.services.fields import ByHost, ByPath
from skillyard.verify.front import VISITOR
from tests.attacks.verify.mutants import Mutant


def _speaking(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fields, "_NOT_BY_PATH", frozenset())
    patch.setattr(fields, "_misleads", lambda name: False)


def _in_parts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fields, "_check_whole", lambda low: None)


def _leading(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ByPath, "_below", lambda self, location, target: location)


def _with_credentials(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fields, "_OURS", frozenset())


def _any_cookie(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ByHost, "_of_this_host", lambda self, value: value)


def _any_site(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(endpoint, "_check_site", lambda scope, own, origins: None)


def _any_name(patch: pytest.MonkeyPatch) -> None:
    def by_host(name: str, domain: str, raw_path: bytes) -> Place | None:
        found = re.search(r"([1-9][0-9]*)-([a-z0-9]+)", name)
        return Place(f"run_{found[2]}", int(found[1]), raw_path) if found and domain else None

    patch.setattr(endpoint, "by_host", by_host)
    patch.setattr(endpoint, "name_pattern", lambda domain: re.compile(rb".*-.*", re.DOTALL))


def _any_project(patch: pytest.MonkeyPatch) -> None:
    plain = PortAccess.check

    async def check(self: PortAccess, _: Any, task_id: str, port: int) -> Any:
        return await plain(self, VISITOR, task_id, port)

    patch.setattr(PortAccess, "check", check)


class _Leftover:
    """A kept connection with bytes that came behind an answer."""

    def __init__(self, stream: Any, data: bytes) -> None:
        self._stream, self._data = stream, data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def quiet(self) -> bool:
        return True

    async def read(self, most: int) -> bytes:
        data, self._data = self._data[:most], self._data[most:]
        return data or await self._stream.read(most)


def _left_over(patch: pytest.MonkeyPatch) -> None:
    plain = Exchange._pass_counted

    async def pass_counted(self: Any, left: int, send: Any) -> bool:
        rest = self._http.trailing_data[0][left:]
        await plain(self, left, send)
        self._connection.stream = _Leftover(self._connection.stream, rest)
        return True

    patch.setattr(Exchange, "_pass_counted", pass_counted)


def _any_switch(patch: pytest.MonkeyPatch) -> None:
    def switched(self: Any, answer: Any) -> Switched:
        return Switched([*answer.headers, (b"connection", b"Upgrade")], self._http.trailing_data[0])

    patch.setattr(Exchange, "_switched", switched)


def _long_heads(patch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_HEAD", "MOST_FIELDS", "MOST_INTERIM"):
        patch.setattr(exchange, name, 256 * 1024 * 1024)


def _later_deadlines(patch: pytest.MonkeyPatch) -> None:
    plain = Exchange._hear

    async def hear(self: Any) -> None:
        await plain(self)
        self._touch()

    patch.setattr(Exchange, "_hear", hear)


def _no_waiting(patch: pytest.MonkeyPatch) -> None:
    async def drain(self: Any) -> None:
        return

    patch.setattr(FlowControl, "drain", drain)


_FIELDS = ("rule: answers by path say nothing for the server's own host",)
_SPLIT = ("rule: one question has one answer",)
_OWN = ("rule: callers reach their own services alone",)
_BOUNDS = ("rule: answers are bounded while they are passed on",)

MUTANTS = (
    Mutant(
        "speaking", _FIELDS, "answers by path keep fields that hold for a host", ("answers-site",), outside=_speaking,
        short=True,
    ),
    Mutant("in_parts", _FIELDS, "answers in parts pass by path", ("answers-parts",), outside=_in_parts),
    Mutant("leading", _FIELDS, "redirects by path lead anywhere", ("answers-redirects",), outside=_leading),
    Mutant(
        "any_cookie", ("rule: a cookie is for its own service",), "cookies of services pass as they are",
        ("answers-cookies",), outside=_any_cookie,
    ),
    Mutant(
        "left_over", _SPLIT, "bytes behind an answer stay with a connection that is kept", ("answers-smuggling",),
        outside=_left_over, short=True,
    ),
    Mutant("any_switch", _SPLIT, "any answer to a websocket fits", ("answers-websockets",), outside=_any_switch),
    Mutant(
        "with_credentials", ("rule: no credentials reach a service",), "fields with credentials pass into the sandbox",
        ("callers-credentials",), outside=_with_credentials,
    ),
    Mutant("any_host_name", _OWN, "anything may stand round a port's name", ("callers-names",), outside=_any_name),
    Mutant("any_site", _OWN, "pages of other origins call services", ("callers-pages",), outside=_any_site),
    Mutant("any_project", _OWN, "services belong to everybody", ("callers-stealing",), outside=_any_project),
    Mutant("long_heads", _BOUNDS, "heads of answers may be long", ("floods-heads",), outside=_long_heads),
    Mutant(
        "later_deadlines", _BOUNDS, "each byte of a head gives it more time", ("floods-dripping",),
        outside=_later_deadlines,
    ),
    Mutant("no_waiting", _BOUNDS, "nobody waits for callers that read slowly", ("floods-bodies",), outside=_no_waiting),
)  # fmt: skip
