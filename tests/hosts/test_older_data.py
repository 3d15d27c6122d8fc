"""A data directory of an earlier version is taken over as it is: all of it is there, and runs work. So it is when the
directory is lost and comes back from a backup.

``older_data/data.tar.gz`` was made by that version; ``older_data/make.py`` says how.
"""

from __future__ import annotations

import hashlib
import json
import platform
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillyard.client.errors import Unauthenticated
from skillyard.client.sync import SyncClient
from skillyard.server_process import ServerProcess
from skillyard.stores.disk import remove_tree

ARCHIVE = Path(__file__).with_name("older_data") / "data.tar.gz"
TEXT = json.dumps({"text": "new"})
SAME_PYTHON = sys.version_info[:2] == (3, 11) and platform.machine() == "x86_64"
"""Environments are of one Python and one processor."""


class Taken:
    """The directory, a server of this version on it, and the answers of the version before."""

    def __init__(self, home: Path, server: ServerProcess, *, is_restored: bool) -> None:
        self.data = server.data_dir
        self.is_restored = is_restored
        self.url = server.url
        self.told: dict[str, Any] = json.loads((home / "expected.json").read_text())

    def cli(self, *words: str, stdin: bytes = b"") -> bytes:
        command = [sys.executable, "-m", "skillyard", *words, "--data-dir", str(self.data)]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def json(self, *words: str, stdin: bytes = b"") -> Any:
        return json.loads(self.cli(*words, "--json", stdin=stdin))


@pytest.fixture(scope="module", params=["as it is", "restored"])
def taken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taken]:
    home = tmp_path_factory.mktemp("older")
    home.chmod(0o755)
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)  # not in 3.11.0 to 3.11.3
        archive.extractall(home)
    index = json.loads((home / "expected.json").read_text())["index"]
    settings = {"SKILLYARD_PACKAGES__INDEX": index, "SKILLYARD_PACKAGES__RUN_CODE": '["*"]'}
    is_restored = request.param == "restored"
    if is_restored:
        lose_and_restore(home / "data", home)
    with ServerProcess(home / "data", settings=settings) as server:
        yield Taken(home, server, is_restored=is_restored)
    remove_tree(home)


def lose_and_restore(data: Path, home: Path) -> None:
    """Backs up while a server works on the directory, which is lost then."""
    backup, keys = home / "backup.tar", home / "keys"
    with ServerProcess(data) as server:
        token = (data / "token").read_text()
        command = [sys.executable, "-m", "skillyard"]
        where = ["--keys", str(keys), "--data-dir", str(server.data_dir)]
        subprocess.run([*command, "backup", str(backup), *where], check=True, timeout=100)
        key = (data / "secrets.key").read_bytes().strip()
    remove_tree(data)
    assert key not in backup.read_bytes()
    assert token.strip().encode() not in backup.read_bytes()
    assert (stat.S_IMODE(backup.stat().st_mode), stat.S_IMODE(keys.stat().st_mode)) == (0o600, 0o600)
    subprocess.run([*command, "restore", str(backup), *where], check=True, timeout=100)
    assert (data / "token").read_text() == token


def holds(old: Any, new: Any) -> bool:
    """Returns whether ``new`` has all that ``old`` has; a later version may tell more."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and holds(value, new[key]) for key, value in old.items())
    if isinstance(old, list):
        return isinstance(new, list) and len(old) == len(new) and all(map(holds, old, new))
    return bool(old == new)


def test_records_and_their_logs(taken: Taken) -> None:
    records = taken.json("runs", "list")
    assert len(records) == 4
    assert holds(taken.told["records"], records)
    for record in records:
        assert holds(record, taken.json("runs", "show", record["run_id"]))
    [logged] = [record for record in records if record["logs_preview"]]
    assert taken.cli("runs", "logs", logged["run_id"]) == b"logged\n"


def test_blobs(taken: Taken) -> None:
    for blob_id, digest in taken.told["blobs"].items():
        assert hashlib.sha256(taken.cli("blob", "get", blob_id, "--output", "-")).hexdigest() == digest


def test_versions_pins_withdrawals_and_approvals(taken: Taken) -> None:
    mine = [skill for skill in taken.told["versions"] if skill["name"].startswith("ledger.")]
    assert len(mine) == 2
    assert holds(mine, taken.json("skill", "list", "--versions", "--namespace", "ledger"))
    assert holds(taken.told["approvals"], taken.json("skill", "approvals"))


def test_secrets(taken: Taken) -> None:
    assert holds(taken.told["secrets"], taken.json("secret", "list"))


def test_environments(taken: Taken) -> None:
    if taken.is_restored:
        assert list((taken.data / "environments" / "locks").glob("*.json"))
        return
    told = taken.told["environments"]
    for built in told["environments"]:
        assert built["state"] == "ready"
        del built["used_at"]  # a time of change, which the archive rounds
    assert holds(told, taken.json("environment", "list"))


def test_tokens(taken: Taken) -> None:
    for token in taken.told["tokens"].values():
        with SyncClient(taken.url, token=token) as client:
            assert client.list_skills(namespace="ledger")["skills"]
    with SyncClient(taken.url, token="sky_" + "x" * 43) as client, pytest.raises(Unauthenticated):
        client.list_skills()
    assert {row["name"]: row["revoked"] for row in taken.json("token", "list")} == {
        "owner": False,
        "ann": False,
        "bob": False,
        "gone": True,
    }


def test_runs_work(taken: Taken) -> None:
    done = taken.json("run", "ledger.text.say", "--args", TEXT)
    assert (done["output"], done["version"]) == ({"text": "new", "secret": len("second-value-2")}, "1.0.0")
    if SAME_PYTHON and not taken.is_restored:  # from the environment that is there: nobody answers as the index
        assert taken.json("run", "ledger.alpha.ask", "--args", TEXT)["output"] == {"alpha": "1.0"}
