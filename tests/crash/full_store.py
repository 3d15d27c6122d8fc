"""Tasks whose output is stored on a disk that is full for a while: ``python -m tests.crash.full_store DATA_DIR``.

Its directory ``blobs`` is a file system of its own, of a few megabytes.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from skillyard.client.sync import SyncClient
from tests.crash.full_disk import fill
from tests.crash.leftovers import until
from tests.crash.server import Server
from tests.faces.server.test_task_events import events, stream

SKILL = "skills.protocol.guide"
LINE, LINES = "%07d" + "." * 248 + "\n", 8192
"""256 bytes a line, two megabytes in all."""
CHATTER = f"""
import sys, time

for first in range(0, {LINES}, 128):
    for n in range(first, first + 128):
        print({LINE!r} % n, end="")
    sys.stdout.flush()
    time.sleep(0.1)
"""
WAIT = "import time\ntime.sleep(600)\n"
KEPT = str(3 * 1024 * 1024)
WHOLE = "".join(LINE % n for n in range(LINES))


def main(data_dir: Path) -> None:
    with Server(data_dir, SKILLYARD_OUTPUT__LOG_BYTES=KEPT) as server, server.client() as client:
        asked = {"skill_name": SKILL, "language": "python"}
        task = client.call("skills.run_cmd_async", {**asked, "command": CHATTER})["task_id"]
        service = client.call("skills.run_service", {**asked, "command": CHATTER + WAIT})["task_id"]
        until(lambda: min(_taken(client, each) for each in (task, service)) > 10_000, 30, "both are heard")
        fill(ballast := data_dir / "blobs" / "ballast")
        for each in (task, service):
            until(partial(_stalls, client, each), 30, "a part has no room")
            told = _told(client, each)
            assert "the blob store's disk is full" in told["log_problem"], told["log_problem"]
            assert told["status"] == "running", told
        with stream(server, f"/tasks/{service}/events") as response:
            said = next(data for name, _, data in events(response) if name == "log")
            assert said == {"problem": told["log_problem"]}, said
            ballast.unlink()
            assert next(data for name, _, data in events(response) if name == "log") == {"problem": ""}
        for each in (task, service):
            until(partial(_goes_on, client, each), 60, "its output is taken again")
        ended = client.call("skills.task_watch", {"task_id": task, "timeout_sec": 60})
        assert (ended["status"], ended["log_problem"]) == ("succeeded", ""), ended
        assert _log(client, task) == (0, WHOLE), "a task loses nothing"
        until(
            lambda: _log(client, service)[1].endswith(LINE % (LINES - 1)), 60, "the service is heard to its last line"
        )
        dropped, kept = _log(client, service)
        assert WHOLE.endswith(kept), "the end is kept, without a hole"
        client.call("skills.task_cancel", {"task_id": service})
        assert server.stop() == 0, server.log()
    print(json.dumps({"dropped": dropped, "kept": len(kept)}))


def _told(client: SyncClient, task_id: str) -> dict[str, Any]:
    return client.call("skills.task_status", {"task_id": task_id, "tail_bytes": 0})


def _stalls(client: SyncClient, task_id: str) -> bool:
    return bool(_told(client, task_id)["log_problem"])


def _goes_on(client: SyncClient, task_id: str) -> bool:
    return not _stalls(client, task_id)


def _taken(client: SyncClient, task_id: str) -> int:
    return int(client.call("skills.task_logs", {"task_id": task_id, "max_bytes": 65536})["next_offset"])


def _log(client: SyncClient, task_id: str) -> tuple[int, str]:
    offset, dropped, text = 0, 0, ""
    while True:
        page = client.call("skills.task_logs", {"task_id": task_id, "offset": offset, "max_bytes": 1048576})
        dropped += page["dropped"]
        text += "".join(chunk["text"] for chunk in page["chunks"])
        if page["next_offset"] == offset:
            return dropped, text
        offset = page["next_offset"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
