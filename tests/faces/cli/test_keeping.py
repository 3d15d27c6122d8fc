"""``token``: what is kept in the data directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Cli = Callable[..., Result]


def kept(tmp_path: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())


def test_a_new_token_is_alone_on_standard_output_and_kept_as_a_hash(bare: Cli, tmp_path: Path) -> None:
    made = bare("token", "create", "ann")
    token = made.stdout.removesuffix("\n")
    assert made.exit_code == 0
    assert len(token) >= 24
    assert "\n" not in token
    assert "ann" in made.stderr
    assert token not in made.stderr
    assert token.encode() not in kept(tmp_path)


def test_tokens_are_listed_with_what_they_allow(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLYARD_PROFILES", '{"bounded": {"allowed_tools": ["skills.*"]}}')
    value = "chosen-by-hand-0123456789abcdef"
    made = bare(
        *("token", "create", "bot", "--scopes", "discover,execute"),
        *("--skills", "sales.*", "--skills", "hr.x", "--project", "crm", "--value", "-", "--json"),
        *("--agent", "crawler", "--agents", "crawler-*", "--agents", "x", "--profile", "bounded"),
        stdin=value + "\n",
    )
    granted = {"name": "bot", "scopes": ["discover", "execute"], "skills": ["sales.*", "hr.x"], "project": "crm"}
    granted |= {"agent": "crawler", "agents": ["crawler-*", "x"], "profile": "bounded"}
    assert json.loads(made.stdout) == {**granted, "token": value}
    (row,) = json.loads(bare("token", "list", "--json").stdout)
    assert {key: row[key] for key in granted} == granted
    assert (row["revoked"], row["last_used_at"]) == (False, None)
    assert "sales.* hr.x" in bare("token", "list").stdout
    assert "crawler crawler-* x  bounded" in bare("token", "list").stdout


def test_a_token_is_revoked_once(bare: Cli) -> None:
    bare("token", "create", "ann")
    assert bare("token", "revoke", "ann").exit_code == 0
    assert json.loads(bare("token", "list", "--json").stdout)[0]["revoked"]
    assert bare("token", "revoke", "ann").exit_code == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("--scopes", "discover,root"),
            "scopes: must be some of discover, execute, run_code, blobs, publish, admin (got root)",
        ),
        (("--scopes", ","), "scopes: must be some of"),
        (("--value", "short"), "24"),
        (("--project", "a/b"), "project: must be"),
        (("--agent", "a/b"), "agent: must be"),
        (("--agents", "a b"), "agents[0]: must be"),
        (("--profile", "a b"), "profile: must be"),
        (("--profile", "nope"), "the settings lack [profiles.nope]"),
    ],
)
def test_bad_tokens_are_refused(bare: Cli, args: tuple[str, ...], message: str) -> None:
    done = bare("token", "create", "ann", *args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert "short" not in done.stderr


def test_a_name_has_one_token(bare: Cli) -> None:
    assert bare("token", "create", "ann").exit_code == 0
    assert bare("token", "create", "ann").exit_code == 2
