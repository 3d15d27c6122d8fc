"""Secrets on a real server: set over the API beside the command line, given by project, told by nobody."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillyard.client.errors import RpcError
from skillyard.client.sync import SyncClient
from skillyard.domain.principal import Principal, Scope
from skillyard.stores.clock import SystemClock
from skillyard.stores.files.tokens import FileTokens
from skillyard.stores.seal.secrets import SealedSecrets
from skillyard.stores.sqlite.database import Database
from skillyard.stores.sqlite.secret_audit import SqliteSecretAudit
from tests.bundles import action
from tests.faces.server.test_server import Server

VALUE = "xyzzy-0123456789-plugh"
USUAL = frozenset(Scope) - {Scope.ADMIN}
MAIN = """
import os

def main(args):
    print("the value is", os.environ["KEY"])
    return {"length": len(os.environ["KEY"]), "value": os.environ["KEY"]}
"""
MANIFEST = action(
    "demo.keys",
    "Reads a key",
    """
[permissions]
secrets = ["KEY"]
""",
)


def skillyard(data_dir: Path, *words: str, stdin: str = "") -> str:
    env = {**os.environ, "SKILLYARD_DATA_DIR": str(data_dir)}
    command = [sys.executable, "-m", "skillyard", *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert VALUE not in done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    code = tmp_path / "data" / "skills" / "demo.keys" / "code"
    code.mkdir(parents=True)
    (code / "main.py").write_text(MAIN)
    (code.parent / "skill.toml").write_text(MANIFEST)
    (code.parent / "SKILL.md").write_text("---\nname: demo.keys\ndescription: Reads a key\n---\nIt reads.\n")
    server = Server(tmp_path / "data")
    try:
        yield server
    finally:
        server.close()


def test_a_secret_from_the_api_to_the_run_of_its_project(server: Server, tmp_path: Path) -> None:
    url, data_dir = server.ready(), tmp_path / "data"
    tokens = FileTokens(data_dir / "tokens.json", SystemClock())
    principals = (Principal("root", frozenset({Scope.ADMIN})), Principal("ann", USUAL, project="crm"))
    admin, ann, bob = (asyncio.run(tokens.create(who)) for who in (*principals, Principal("bob", USUAL)))
    answers: list[Any] = []
    with SyncClient(url, admin) as root, SyncClient(url, ann) as of_crm, SyncClient(url, bob) as of_none:
        answers.append(root.set_secret("KEY", "of before", project="crm"))
        answers.append(root.set_secret("KEY", VALUE, project="crm"))
        run = of_crm.execute_skill("demo.keys")
        assert run.output == {"length": len(VALUE), "value": "[redacted]"}
        assert "the value is [redacted]" in run.logs_preview
        answers.append(record := of_crm.show_run(run.run_id)["run"])
        assert (record["project"], record["digests"]["secrets"]) == ("crm", {"KEY": "store:2"})
        failed = of_none.execute_skill("demo.keys")
        assert failed.error is not None
        assert failed.error["type"] == "MissingSecret"
        for client in (of_crm, of_none):
            for call in (client.list_secrets, client.audit_secrets):
                with pytest.raises(RpcError, match="lacks the scope"):
                    call()
        answers += [root.list_secrets(), root.audit_secrets(), root.list_runs(all=True), failed.raw]
        assert skillyard(data_dir, "secret", "rollback", "KEY", "1", "--project", "crm") == ""
        assert of_crm.execute_skill("demo.keys").output == {"length": len("of before"), "value": "[redacted]"}
        skillyard(data_dir, "secret", "set", "KEY", "--url", url, "--token", admin, stdin=VALUE)
        assert of_none.execute_skill("demo.keys").output == {"length": len(VALUE), "value": "[redacted]"}
        acts = [(event["act"], event["principal"], event["version"]) for event in root.audit_secrets()["events"]]
    assert acts[::-1] == [
        *(("set", "root", "store:1"), ("set", "root", "store:2"), ("used", "ann", "store:2"), ("denied", "bob", "")),
        *(("rolled_back", "local", "store:1"), ("used", "ann", "store:1"), ("set", "root", "store:1")),
        ("used", "bob", "store:1"),
    ]
    assert VALUE not in json.dumps(answers)
    assert server.stop() == 0
    found = [str(path) for path in tmp_path.rglob("*") if path.is_file() and holds(path.read_bytes())]
    assert found == [], "in no file: log, database, blob, sealed store"


def holds(data: bytes) -> bool:
    value = VALUE.encode()
    return any(form in data for form in (value, base64.b64encode(value)[:-4], value.hex().encode()))


WRITER = """
import asyncio, sys
from pathlib import Path
from skillyard.domain.principal import LOCAL
from skillyard.engine.secrets.service import SecretBook
from skillyard.engine.secrets.methods import call
from skillyard.stores.clock import SystemClock
from skillyard.stores.sqlite.database import Database
from skillyard.stores.sqlite.secret_audit import SqliteSecretAudit
from skillyard.stores.seal.secrets import SealedSecrets

async def main(home):
    database = await Database.open(home / "skillyard.db")
    book = SecretBook(SealedSecrets(home), SqliteSecretAudit(database), SystemClock())
    number = 0
    while True:
        number += 1
        name = f"S{number % 7}"
        shown = await call(book, LOCAL, "secrets.set", {"name": name, "value": f"value {number}"})
        print(name, shown["secret"]["version"], number, flush=True)

asyncio.run(main(Path(sys.argv[1])))
"""


def test_kills_lose_nothing_that_was_told(tmp_path: Path) -> None:
    told: dict[str, tuple[int, int]] = {}
    lines = 0
    for wanted in (3, 25, 60):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(wanted)]
        process.kill()
        rest, errors = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, errors
        for line in [*first, *rest[: rest.rfind("\n") + 1].splitlines()]:
            name, *numbers = line.split()
            told[name] = int(numbers[0]), int(numbers[1])
            lines += 1
        asyncio.run(check_told(tmp_path, told, lines))


async def check_told(home: Path, told: dict[str, tuple[int, int]], lines: int) -> None:
    store = SealedSecrets(home)
    database = await Database.open(home / "skillyard.db")
    listed = await SqliteSecretAudit(database).list(limit=1000)
    await database.close()
    events = [(event.name, event.version) for _, event in listed]
    assert len(events) == len(set(events))
    assert lines <= len(events), "what was told is in the audit"
    for name, (version, number) in told.items():
        assert (name, f"store:{version}") in events
        secret = await store.find(name, "p", "s")
        assert secret is not None
        kept = int(secret.version.removeprefix("store:"))
        assert kept >= version
        assert kept > version or secret.value == f"value {number}"
