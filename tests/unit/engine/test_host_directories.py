"""Directories of the host are shown in sandboxes by settings and the command line alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import skillyard
from skillyard.domain.errors import SkillyardError
from skillyard.domain.sandbox.content import Content, HostDirectory
from skillyard.engine.method import Method
from skillyard.engine.table import METHODS
from tests.unit.engine.conftest import Rig
from tests.unit.engine.fakes import a_skill

pytestmark = pytest.mark.anyio

PACKAGE = Path(skillyard.__file__).parent
MAY_MAKE = ("config", "faces/cli")
KINDS = {"HostDirectory", "JailDirectory"}
PLACES = ("/etc", "file:///etc", "../../../../etc", "~")


def test_only_settings_and_the_command_line_make_one() -> None:
    found = []
    texts = ((path, path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py"))
    for path, text in ((path, text) for path, text in texts if any(kind in text for kind in KINDS)):
        calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        if any(_name(call.func) in KINDS for call in calls):
            found.append(path.relative_to(PACKAGE))
    assert found
    assert [str(path) for path in found if not any(path.is_relative_to(place) for place in MAY_MAKE)] == []


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
async def test_no_parameter_of_a_method_leads_to_one(
    method: Method[Any], rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each parameter in turn names places of the host, in a text, a list and an object."""
    made: list[object] = []
    monkeypatch.setattr(HostDirectory, "__init__", lambda self, *args, **named: made.append((args, named)))
    rig.skills.add(a_skill("a.b"))
    for name in method.params["properties"]:
        for value in _places():
            with suppress(SkillyardError):
                await rig.call(method.name, **{**method.example, name: value})
    assert made == []
    assert [mount for spec, _, _ in rig.backend.started for mount in spec.mounts if not _is_content(mount.source)] == []


async def test_a_run_shows_content_of_stores(rig: Rig) -> None:
    rig.skills.add(a_skill("a.b"))
    await rig.call("execute_skill", name="a.b", args={})
    [(spec, _, _)] = rig.backend.started
    assert [type(mount.source) for mount in spec.mounts] == [Content]


def _places() -> Iterator[Any]:
    for place in PLACES:
        yield from (place, [place], {"path": place, "source": place, "mounts": [place]})


def _is_content(source: object) -> bool:
    return isinstance(source, Content)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
