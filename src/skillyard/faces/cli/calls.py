"""Commands that call one method and show its answer: each of them is one row.

The answer is shown as a table, as text or as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, Protocol

import click

from skillyard.client.errors import BadReply
from skillyard.faces.cli.options import Named, json_option, server_options
from skillyard.faces.cli.render import calm, emit_json, emit_table
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.faces.cli.target import Target, Where

Given = Mapping[str, Any]
"""The options of a command line by name."""
Column = str | Callable[[Mapping[str, Any]], object]
"""The member of an item that a table shows, or a function of the item."""

_PAGE = 500
_PAGES = 2000
"""The most pages of one list: a server that always has one more is not one of ours."""


class Caller(Protocol):
    """Calls methods: a client, a runtime, or a part of one."""

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]: ...


def params_of(given: Given) -> dict[str, Any]:
    """Returns the given options as parameters of the same names; NAME@VERSION becomes two."""
    params: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, Named):
            params |= value
        elif value is not None and value is not False and value not in ("", (), {}):
            params[name] = list(value) if isinstance(value, tuple) else value
    return params


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A command as a row. ``help`` is its help text, ``options`` are click's decorators.

    ``ask`` makes the parameters from the options, ``find`` does so where it needs to look something up. ``key`` is the
    member of the answer that matters; a ``paged`` one is a list that is fetched page by page. For people the answer is
    a table of ``columns``, or ``show`` prints it, or ``said`` words a line for standard error. ``ends`` gives the exit
    code. ``place`` adds the options that say where the work is done; ``changes`` is as in ``Where.open``.
    """

    method: str
    help: str
    options: Sequence[Callable[[Any], Any]] = ()
    ask: Callable[[Given], dict[str, Any]] = params_of
    find: Callable[[Target, Given], dict[str, Any]] | None = None
    key: str = ""
    paged: bool = False
    columns: Mapping[str, Column] = field(default_factory=dict)
    cut: bool = False
    show: Callable[[Any, Given], None] | None = None
    said: Callable[[Any, Given], str] | None = None
    ends: Callable[[Any], int] | None = None
    changes: bool = False
    json: bool = True
    place: Callable[[Any], Any] = server_options

    def command(self, name: str) -> click.Command:
        """Returns the row as a command of click."""

        def perform(where: Where, as_json: bool = False, **given: Any) -> None:
            self._perform(where, given, as_json=as_json)

        decorated: Any = self.place(perform)
        for decorate in reversed((*self.options, *([json_option] if self.json else []))):
            decorated = decorate(decorated)
        return click.command(name, help=cleandoc(self.help))(decorated)

    def _perform(self, where: Where, given: dict[str, Any], *, as_json: bool) -> None:
        limit = given.pop("limit", None) if self.paged else None
        params = {} if self.find else self.ask(given)
        with where.open(changes=self.changes) as target:
            if self.find:
                params = self.find(target, given)
            if self.paged:
                found: Any = collect(target, self.method, self.key, limit, params)
            else:
                answer = target.call(self.method, params)
                found = answer[self.key] if self.key else answer
        if as_json:
            emit_json(found)
        else:
            self._show(found, given)
        if self.ends and (code := self.ends(found)):
            click.get_current_context().exit(code)

    def _show(self, found: Any, given: Given) -> None:
        if self.columns:
            rows = [[_cell(item, column) for column in self.columns.values()] for item in found]
            emit_table(tuple(self.columns), rows, cut=self.cut)
        if self.said:
            click.echo(calm(self.said(found, given)), err=True)
        if self.show:
            self.show(found, given)


def add_calls(group: click.Group, calls: Mapping[str, Call]) -> None:
    """Adds each row to the group under its name."""
    for name, call in calls.items():
        group.add_command(call.command(name))


def collect(
    target: Caller, method: str, key: str, limit: int | None, params: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns the first ``limit`` items (None: all), page by page. Raises BadReply for pages that lead nowhere."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        wanted = _PAGE if limit is None else min(_PAGE, limit - len(found))
        page = target.call(method, {**params, "limit": wanted} | ({"cursor": cursor} if cursor else {}))
        items, cursor = page.get(key), page.get("next_cursor")
        if not isinstance(items, list) or len(items) > wanted or not all(isinstance(item, dict) for item in items):
            raise BadReply(f"the server's page of {method} is not valid")
        found += items
        if cursor is None or (limit is not None and len(found) >= limit):
            return found
        if not items:
            break
    raise BadReply(f"the server's pages of {method} come to no end")


def _cell(item: Mapping[str, Any], column: Column) -> object:
    return item.get(column) if isinstance(column, str) else column(item)
