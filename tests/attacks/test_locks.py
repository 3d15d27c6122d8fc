"""Locks on what all runs are shown stop nobody: a lock is on the file, and a read-only mount does not keep one away."""

from __future__ import annotations

import ast
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skillyard
from skillyard import SyncRuntime
from skillyard.config.settings import load_settings
from skillyard.stores.files.blob_files import BlobFiles
from tests.attacks.programs import program

LOCKS = {
    "data_dir.py": "a file of the data directory that holds its lock and nothing else",
    "gate/link.py": "the gate's own lock file",
    "guest/agent/command.py": "a file beside the agent's socket, inside its sandbox; no server waits for it",
    "sandbox/microvm/channel.py": "a lock file beside a port of a machine, which sees no file of the host",
    "sandbox/microvm/snapshot.py": "the lock file beside the snapshots",
    "sandbox/native/groups/groups.py": "directories of control groups",
    "sandbox/native/grounds/host.py": "files that stand for ids",
    "sandbox/native/keeper/main.py": "the keeper's own lock file",
    "sandbox/native/launch.py": "the keeper's own lock file",
    "stores/files/blob_files.py": "contents that are being written and have no name that is shown yet",
    "stores/backup/making.py": "the directory beside the backup that is being written",
    "stores/files/state_file.py": "a lock file beside the state",
}
"""Where the server takes locks, and on what. Nothing of it is ever shown to a run: a lock that a run holds would stop
the server, and one that the server holds would tell the run of it."""

CONTENT = "x" * 500_000
"""Large enough to be a file of its own."""

HOLD = """
held = []
for top in ("/blobs", "/skills", "/opt", "/usr/lib/ssl", "/etc", "/usr/bin", sys.prefix, sys.base_prefix):
    for directory, _, files in os.walk(top):
        for name in (".", *files):
            try:
                held.append(os.open(os.path.join(directory, name), os.O_RDONLY))
                fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(held[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno == errno.EMFILE:
                    break
time.sleep(60)
"""


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[SyncRuntime]:
    skills = tmp_path / "skills" / "local"
    skills.mkdir(parents=True)
    (skills / "SKILL.md").write_text("---\nname: local\ndescription: Adds one.\n---\n# Local\n")
    with SyncRuntime(settings=load_settings(data_dir=tmp_path / "data", skills_dirs=[skills.parent])) as runtime:
        yield runtime


def test_the_server_locks_only_what_it_does_not_show() -> None:
    root = Path(skillyard.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        names = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        if names & {"flock", "lockf", "F_SETLK", "F_SETLKW", "F_OFD_SETLK", "F_SETLEASE"}:
            found.add(str(path.relative_to(root)))
    assert found == LOCKS.keys(), "see LOCKS"


def test_a_run_that_locks_all_that_it_is_shown_stops_nobody(runtime: SyncRuntime, tmp_path: Path) -> None:
    blob = runtime.create_blob(CONTENT, "text/plain")["blob_id"]
    mounted: dict[str, Any] = {"mount_skills": ["local"], "input_blobs": [blob]}
    holder = threading.Thread(
        target=lambda: runtime.run_code(program(HOLD), **mounted, limits={"timeout_ms": 10_000}), daemon=True
    )
    holder.start()
    _wait_until_locked(
        next(path for path in (tmp_path / "data").rglob("*") if path.is_file() and path.stat().st_size == len(CONTENT))
    )
    look = program('return sorted({len(open(p).read()) for p in os.listdir("/blobs") for p in ["/blobs/" + p]})')
    assert runtime.run_code(look, **mounted).output == {"result": [len(CONTENT)]}
    assert runtime.create_blob(CONTENT, "text/plain")["blob_id"] != blob
    assert runtime.delete_blob(blob)
    assert holder.is_alive(), "it held its locks all the while"
    holder.join()


def test_what_was_deleted_is_removed_whoever_locks_it(tmp_path: Path) -> None:
    files = BlobFiles(tmp_path / "blobs", sync=False)
    files.prepare()
    files.put(b"content", "aa")
    with files.path("aa").open("rb") as shown:
        fcntl.flock(shown, fcntl.LOCK_EX)
        trashed = files.trash("aa")
        assert trashed is not None
        assert files.clean() == 0
        assert not trashed.exists()


def _wait_until_locked(path: Path) -> None:
    deadline = time.monotonic() + 10
    fd = os.open(path, os.O_RDONLY)
    try:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            fcntl.flock(fd, fcntl.LOCK_UN)
            time.sleep(0.01)
    finally:
        os.close(fd)
    raise AssertionError("it was never locked")
