"""``policy``: why a target is allowed or refused, as people and programs read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.unit.client.yardserver import YardServer

Cli = Callable[..., Result]

EXPLAINED: dict[str, Any] = {
    "layers": [{"name": "operator", "rules": ["*"]}, {"name": "skill", "rules": ["x.com"]}],
    "targets": [
        {
            "target": "x.com:443",
            "allowed": True,
            "layer": "skill",
            "rule": "x.com",
            "reason": "",
            "layers": [
                {"name": "operator", "says": "allows", "allowed": True, "layer": "operator", "rule": "*", "reason": ""},
                {"name": "skill", "says": "allows", "allowed": True, "layer": "skill", "rule": "x.com", "reason": ""},
            ],
            "addresses": [
                {"address": "10.0.0.5", "allowed": False, "layer": "floor", "rule": "", "reason": "10.0.0.5 is private"}
            ],
        }
    ],
}


def test_explain_asks_for_what_the_options_say(run: Cli, yard: YardServer) -> None:
    yard.methods["policy.explain"] = lambda params: EXPLAINED
    result = run("policy", "explain", "x.com", "y.com:80", "--skill", "a.b", "--version", "1.0.0", "--network", "x.com")
    asked = yard.calls[-1][1]
    assert asked == {
        "targets": ["x.com", "y.com:80"],
        "skill": "a.b",
        "version": "1.0.0",
        "network": ["x.com"],
    }
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["skill", "x.com"] in lines
    assert ["skill", "allows", "x.com"] in lines
    assert ["10.0.0.5", "denies", "10.0.0.5", "is", "private"] in lines
    assert "x.com:443: allowed by skill rule 'x.com'" in result.stdout
    run("policy", "explain", "x.com", "--mount-skill", "a.b", "--resolve")
    assert yard.calls[-1][1] == {"targets": ["x.com"], "mount_skills": ["a.b"], "code": True, "resolve": True}


def _told(answer: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    return answer


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_what_is_refused_exits_with_1(run: Cli, yard: YardServer, flags: tuple[str, ...]) -> None:
    refused = EXPLAINED["targets"][0] | {"allowed": False, "reason": "no skill rule allows x.com"}
    for answer in (EXPLAINED | {"targets": [refused]}, EXPLAINED | {"refused": "it asks for every host"}):
        yard.methods["policy.explain"] = partial(_told, answer)
        result = run("policy", "explain", "x.com", *flags)
        assert result.exit_code == 1
        if flags:
            assert json.loads(result.stdout) == answer
    if not flags:
        assert "such a run is refused: it asks for every host" in result.stdout


def test_a_version_is_a_skills(run: Cli, yard: YardServer) -> None:
    assert run("policy", "explain", "x.com", "--version", "1.0.0").exit_code == 2
    assert run("policy", "explain").exit_code == 2
    assert yard.calls == []


def test_it_works_on_the_settings_where_no_server_runs(bare: Cli, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "config.toml").write_text(
        '[network]\nrules = ["*", "!evil.com"]\nrun_code = ["*.x.com"]\nhosts = {"db.x.com" = "10.0.0.5"}\n'
    )
    result = bare("policy", "explain", "db.x.com:443", "--code", "--json")
    [target] = json.loads(result.stdout)["targets"]
    assert (target["allowed"], target["rule"]) == (True, "*.x.com")
    assert [a["allowed"] for a in target["addresses"]] == [True]
    shown = bare("policy", "show").stdout
    assert "rules                    * !evil.com" in shown
    assert "host db.x.com            10.0.0.5" in shown
    assert "native" in shown
