"""``skill needs``, ``approve``, ``revoke`` and ``approvals``, and a run's needs: what is asked, and what is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from tests.unit.client.yardserver import YardServer

Cli = Callable[..., Result]

DIGEST = "d" * 64
VIEW: dict[str, Any] = {
    "name": "acme.mail",
    "version": "1.2.0",
    "digest": DIGEST,
    "source": "published",
    "approved": False,
    "by": "nobody",
    "because": "",
    "needs": [
        {"need": "network", "asked": "api.x.com", "granted": "in part", "why": "operator rules allow some of it"},
        {"need": "secret", "asked": "KEY\x1b[2J"},
    ],
}
APPROVED = {**VIEW, "approved": True, "by": "operator", "because": "ann"}


def test_what_was_shown_is_what_is_approved(run: Cli, yard: YardServer) -> None:
    yard.methods["catalogue.needs"] = lambda params: VIEW
    yard.methods["catalogue.approve"] = lambda params: {**APPROVED, "approval": {"note": params["note"]}}
    done = run("skill", "approve", "acme.mail", "--note", "read it")
    assert [method for method, _ in yard.calls] == ["catalogue.needs", "catalogue.approve"]
    assert yard.calls[-1][1] == {"name": "acme.mail", "version": "1.2.0", "digest": DIGEST, "note": "read it"}
    lines = done.stdout.splitlines()
    assert lines[0] == f"acme.mail@1.2.0, sha256 {DIGEST}: not approved"
    assert lines[2].split() == ["network", "api.x.com", "in", "part", "operator", "rules", "allow", "some", "of", "it"]
    assert "\x1b" not in done.stdout
    assert lines[3].split() == ["secret", "KEY\\x1b[2J", "nothing"]
    assert done.stderr == "acme.mail@1.2.0 is approved by ann\n"
    answer = json.loads(run("skill", "approve", "acme.mail@1.2.0", "--json").stdout)
    assert (answer["needs"], answer["approval"]) == (VIEW["needs"], {"note": ""})
    assert run("skill", "needs", "acme.mail").stdout == done.stdout


def test_a_reader_who_goes_away_does_not_undo_an_approval(
    run: Cli, yard: YardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_view: object) -> None:
        raise BrokenPipeError

    yard.methods["catalogue.needs"] = lambda params: VIEW
    yard.methods["catalogue.approve"] = lambda params: {**APPROVED, "approval": {"note": ""}}
    monkeypatch.setattr("skillyard.faces.cli.skill.versions.show_declared", gone)
    run("skill", "approve", "acme.mail")
    assert [method for method, _ in yard.calls] == ["catalogue.needs", "catalogue.approve"]


@pytest.mark.parametrize("word", ["approve", "revoke", "needs"])
def test_a_name_that_is_none(run: Cli, yard: YardServer, word: str) -> None:
    assert run("skill", word, "acme.mail@").exit_code == 2
    assert yard.calls == []


def test_what_is_revoked_may_be_approved_all_the_same(run: Cli, yard: YardServer) -> None:
    still = {"version": "1.2.0", "by": "rule", "because": "acme.*"}
    yard.methods["catalogue.revoke"] = lambda params: {**params, "revoked": 0, "still": still}
    done = run("skill", "revoke", "acme.mail")
    assert yard.calls[-1][1] == {"name": "acme.mail"}
    assert done.stderr.splitlines() == [
        "acme.mail: 0 approvals taken back",
        "acme.mail@1.2.0 is still approved by the rule acme.*",
    ]


def test_the_list(run: Cli, yard: YardServer) -> None:
    row = {"name": "acme.mail", "version": "1.2.0", "digest": DIGEST, "approved_at": 0.0, "approved_by": "ann"}
    yard.methods["catalogue.approvals"] = lambda params: {
        "approvals": [{**row, "note": "a\x1bb", "served": False}],
        "next_cursor": None,
    }
    lines = run("skill", "approvals", "acme.mail").stdout.splitlines()
    assert yard.calls[-1][1] == {"name": "acme.mail", "limit": 500}
    assert lines[1].split() == ["acme.mail", "1.2.0", "d" * 16, "1970-01-01T00:00:00Z", "ann", "no", "a\\x1bb"]


def test_the_needs_of_a_run(run: Cli, yard: YardServer) -> None:
    skill = {"skill": "acme.mail", "version": "1.2.0", **{key: VIEW[key] for key in ("approved", "by", "because")}}
    needs = {"least": "'acme.mail' is not approved", "skills": [{**skill, "needs": VIEW["needs"]}], "dropped": 3}
    record: dict[str, Any] = {"run_id": "run_1", "status": "completed", "needs": needs}
    yard.methods["runs.show"] = lambda params: {"run": record}
    lines = run("runs", "show", "run_1").stdout.splitlines()
    assert "acme.mail@1.2.0: not approved" in lines
    assert "the run got the least policy: 'acme.mail' is not approved" in lines
    assert ["acme.mail", "secret", "KEY\\x1b[2J", "nothing"] in [line.split() for line in lines]
    assert lines[-1] == "3 more rows had no room in the record"
    for without in ({"needs": None}, {}):
        record.clear()
        record.update({"run_id": "run_1", "status": "completed", **without})
        assert "NEED" not in run("runs", "show", "run_1").stdout
