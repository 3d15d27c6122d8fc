"""``secret``: what is kept in the data directory, and what is told of it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from skillyard.stores.seal.keys import KEY_VARIABLE, KeySource, parse_keys
from skillyard.stores.seal.secrets import SealedSecrets

Cli = Callable[..., Result]
VALUE = "s3cret value"


def kept(tmp_path: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())


def listed(bare: Cli) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(bare("secret", "list", "--json").stdout)
    return found


def stored(
    tmp_path: Path, name: str, project: str = "default", skill: str = "a.b", keys: KeySource | None = None
) -> str | None:
    found = asyncio.run(SealedSecrets(tmp_path / "data", keys).find(name, project, skill))
    return None if found is None else found.value


def test_a_secret_comes_from_standard_input_and_is_never_shown(bare: Cli, tmp_path: Path) -> None:
    done = bare("secret", "set", "CRM_TOKEN", stdin=VALUE + "\n")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "stored CRM_TOKEN, version 1\n")
    assert stored(tmp_path, "CRM_TOKEN") == VALUE
    said = [bare("secret", *words).output for words in (["list"], ["list", "--json"], ["audit"], ["audit", "--json"])]
    assert all("CRM_TOKEN" in text and "s3cret" not in text for text in said)
    assert b"s3cret" not in kept(tmp_path)
    for path in (tmp_path / "data").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_value_from_a_file(bare: Cli, tmp_path: Path) -> None:
    (tmp_path / "value").write_text("from a file\n")
    assert bare("secret", "set", "X", "--from-file", str(tmp_path / "value")).exit_code == 0
    assert stored(tmp_path, "X") == "from a file"
    assert bare("secret", "set", "X", "--from-file", str(tmp_path / "none")).exit_code == 2


@pytest.mark.parametrize("words", [("X", VALUE), ("X", "--value", VALUE)])
def test_a_value_is_never_an_argument(bare: Cli, words: tuple[str, ...]) -> None:
    assert bare("secret", "set", *words).exit_code == 2
    assert listed(bare) == []


@pytest.mark.parametrize(("typed", "value"), [("a\nb\n", "a\nb"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("é", "é")])
def test_one_line_break_at_the_end_is_left_out(bare: Cli, tmp_path: Path, typed: str, value: str) -> None:
    done = bare("secret", "set", "X", stdin=typed.encode())
    assert done.exit_code == 0, done.stderr
    assert stored(tmp_path, "X") == value


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("not a name", "v", ()),
        ("X", "", ()),
        ("X", b"\xff", ()),
        ("X", "v" * 70_000, ()),
        ("PATH", "v", ()),
        ("X", "v", ("--project", "a/b")),
        ("X", "v", ("--skills", "*.a")),
        ("X", "v", ("--host", "10.0.0.1")),
        ("X", "v", ("--delivery", "mail")),
    ],
)
def test_what_is_no_secret_is_refused(bare: Cli, name: str, value: str | bytes, words: tuple[str, ...]) -> None:
    done = bare("secret", "set", name, *words, stdin=value)
    assert done.exit_code == 2, done.output
    assert "vvv" not in done.output
    assert listed(bare) == []


def test_a_secret_is_removed(bare: Cli) -> None:
    bare("secret", "set", "X", stdin="v")
    assert bare("secret", "rm", "X").exit_code == 0
    gone = bare("secret", "rm", "X")
    assert (gone.exit_code, gone.stderr) == (2, "skillyard: no secret 'X' (`skillyard secret list` shows the names)\n")


def test_scopes_are_apart(bare: Cli, tmp_path: Path) -> None:
    scope = ("--project", "crm", "--skills", "sales.*")
    bare("secret", "set", "X", stdin="everybody's")
    done = bare("secret", "set", "X", *scope, stdin="of sales")
    assert done.stderr == "stored X for crm/sales.*, version 1\n"
    assert stored(tmp_path, "X", "crm", "sales.leads") == "of sales"
    assert stored(tmp_path, "X", "crm", "other") == "everybody's"
    shown = [(row["project"], row["skills"]) for row in listed(bare)]
    assert shown == [(None, None), ("crm", "sales.*")]
    assert "no secret 'X' for crm/*" in bare("secret", "rm", "X", "--project", "crm").stderr
    assert bare("secret", "rm", "X", *scope).exit_code == 0
    assert stored(tmp_path, "X", "crm", "sales.leads") == "everybody's"


def test_versions_and_delivery(bare: Cli, tmp_path: Path) -> None:
    bare("secret", "set", "X", "--delivery", "gate", "--host", "api.x.com", "--host", "*.y.com:8443", stdin="one")
    bare("secret", "set", "X", stdin="two")
    [row] = listed(bare)
    assert (row["version"], row["delivery"], row["hosts"]) == (2, "gate", ["api.x.com", "*.y.com:8443"])
    assert bare("secret", "rollback", "X", "1").stderr == "X is at version 1\n"
    assert stored(tmp_path, "X") == "one"
    assert bare("secret", "rollback", "X", "7").exit_code == 2
    unknown = bare("secret", "rollback", "Y", "1")
    assert unknown.exit_code == 2
    assert "(`skillyard secret list` shows the names, and for whom each is)" in unknown.stderr
    assert "1 2" in bare("secret", "list").stdout
    assert bare("secret", "bind", "X", "--delivery", "env").stderr == "X is delivered by env\n"
    assert listed(bare)[0]["delivery"] == "env"
    acts = [(event["act"], event["version"]) for event in json.loads(bare("secret", "audit", "X", "--json").stdout)]
    assert acts == [("bound", "store:1"), ("rolled_back", "store:1"), ("set", "store:2"), ("set", "store:1")]
    assert json.loads(bare("secret", "audit", "Y", "--json").stdout) == []


def test_a_secret_of_the_gate_without_hosts_is_said_to_go_where_manifests_say(bare: Cli) -> None:
    said = "X: no host is bound to it: each skill's manifest says where it goes; --host HOST binds it\n"
    assert bare("secret", "set", "X", "--delivery", "gate", stdin="long-enough").stderr.endswith(said)
    assert bare("secret", "bind", "X", "--delivery", "gate").stderr.endswith(said)
    assert "no host" not in bare("secret", "bind", "X", "--delivery", "gate", "--host", "api.x.com").stderr


@pytest.mark.parametrize(("value", "short"), [("1234567", True), ("12345678", False)])
def test_a_value_that_is_too_short_for_the_gate_is_said_to_be(bare: Cli, value: str, short: bool) -> None:
    done = bare("secret", "set", "X", "--delivery", "gate", "--host", "api.x.com", stdin=value)
    assert (done.exit_code, "X: shorter than 8 characters" in done.stderr) == (0, short)
    assert "shorter" not in bare("secret", "set", "Y", stdin=value).stderr


def test_a_server_that_the_variable_names_is_used(bare: Cli) -> None:
    away = bare("secret", "set", "X", stdin="v", env={"SKILLYARD_URL": "http://127.0.0.1:1"})
    assert away.exit_code == 3, away.output
    assert listed(bare) == []


def test_what_is_no_key_is_not_loaded(bare: Cli) -> None:
    done = bare("secret", "key", "load", "skillyard-none", stdin="no key")
    assert done.exit_code == 2
    assert "`skillyard secret key new` prints one" in done.stderr


def test_secrets_are_sealed_anew(bare: Cli, tmp_path: Path) -> None:
    bare("secret", "set", "X", stdin="v")
    before = (tmp_path / "data" / "secrets.sealed").read_bytes()
    assert bare("secret", "rotate").stderr == "sealed 1 value anew, under the current key\n"
    assert (tmp_path / "data" / "secrets.sealed").read_bytes() != before
    assert stored(tmp_path, "X") == "v"
    assert json.loads(bare("secret", "audit", "--limit", "1", "--json").stdout)[0]["act"] == "rotated"


def test_a_key_of_ones_own(bare: Cli, tmp_path: Path) -> None:
    key = bare("secret", "key", "new").stdout.strip()
    assert len(base64.urlsafe_b64decode(key)) == 32
    assert bare("secret", "set", "X", stdin="v", env={KEY_VARIABLE: key}).exit_code == 0
    assert not (tmp_path / "data" / "secrets.key").exists()
    assert "is missing" in bare("secret", "set", "Y", stdin="v").stderr
    credential = tmp_path / "credential"
    credential.write_text(key)
    (tmp_path / "data" / "config.toml").write_text(f'[secrets]\nkey_file = "{credential}"\n')
    assert bare("secret", "set", "X", stdin="w").stderr == "stored X, version 2\n"
    assert "one place holds the key" in bare("secret", "list", env={KEY_VARIABLE: key}).stderr


def test_the_settings_say_how_many_versions_stay(bare: Cli, tmp_path: Path) -> None:
    bare("secret", "list")
    (tmp_path / "data" / "config.toml").write_text("[secrets]\nversions = 2\n")
    for number in range(4):
        bare("secret", "set", "X", stdin=str(number))
    [row] = listed(bare)
    assert [version["version"] for version in row["versions"]] == [3, 4]  # type: ignore[attr-defined]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_root_writes_stays_its_owners(bare: Cli, tmp_path: Path) -> None:
    home = tmp_path / "data"
    home.mkdir(mode=0o700)
    (home / "config.toml").touch()
    os.chown(home, 12345, 12346)
    bare("secret", "set", "X", stdin="v")
    with sqlite3.connect(home / "skillyard.db") as open_elsewhere:
        open_elsewhere.execute("SELECT count(*) FROM secret_audit").fetchone()
        bare("secret", "set", "X", stdin="w")
        owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in home.iterdir()}
    open_elsewhere.close()
    assert {"skillyard.db", "skillyard.db-wal", "skillyard.db-shm", "secrets.sealed", "secrets.key"} <= set(owners)
    del owners["config.toml"]
    assert set(owners.values()) == {(12345, 12346)}


def keyring_is_here() -> bool:
    from skillyard.domain.errors import StoreFault
    from skillyard.stores.seal.keys import read_key

    try:
        read_key("skillyard-none")
    except StoreFault as fault:
        return "holds no key" in fault.message
    return False


def test_a_key_in_the_kernels_keyring(bare: Cli, tmp_path: Path) -> None:
    from skillyard.stores.seal.keys import KeyringKeys, forget_key

    if not keyring_is_here():
        pytest.skip("the kernel's keyring cannot be used here")
    name = f"skillyard-test-{os.getpid()}"
    bare("secret", "list")
    (tmp_path / "data" / "config.toml").write_text(f'[secrets]\nkeyring = "{name}"\n')
    missing = bare("secret", "set", "X", stdin="v")
    assert missing.exit_code != 0
    assert f"skillyard secret key load {name}" in missing.stderr
    key = bare("secret", "key", "new").stdout.strip()
    assert bare("secret", "key", "load", name, stdin="no key").exit_code != 0
    try:
        assert bare("secret", "key", "load", name, stdin=key).exit_code == 0
        assert bare("secret", "set", "X", stdin="v").exit_code == 0
        assert key.encode() not in kept(tmp_path)
        assert stored(tmp_path, "X", keys=KeyringKeys(name)) == "v"
        newer = bare("secret", "key", "new").stdout.strip()
        bare("secret", "key", "load", name, stdin=f"{newer}\n{key}\n")
        assert KeyringKeys(name).read() == parse_keys(f"{newer},{key}", "here")
        assert bare("secret", "rotate").exit_code == 0
        bare("secret", "key", "load", name, stdin=newer)
        assert stored(tmp_path, "X", keys=KeyringKeys(name)) == "v"
    finally:
        forget_key(name)
    assert "holds no key" in bare("secret", "set", "X", stdin="v").stderr
