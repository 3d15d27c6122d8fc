"""Detached runs on a disk that is full for a while: ``python -m tests.crash.full_disk DIRECTORY``.

The directory is a file system of its own, of about twenty megabytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.crash.detached import begun_mark, check, ended, start, steps_of, whole_log
from tests.crash.leftovers import Footprint, gone, idle, until
from tests.crash.server import Server
from tests.crash.store import contradictions

PIECE = "%08d" + "." * 991 + "\n"
CHATTER = """
import time

def main(args):
    for n in range(10_000):
        print(PIECE % n, end="", flush=True)
        time.sleep(0.001)
""".replace("PIECE", repr(PIECE))


def main(home: Path) -> None:
    data_dir, ballast = home / "data", home / "ballast"
    footprint, quiet = Footprint(data_dir), {**steps_of(1), "steps": 40, "size": 100, "pause": 0.4}
    with Server(data_dir) as first:
        kept = start(first, quiet)
        mark = begun_mark(first, kept)
        loud = start(first, {}, code=CHATTER)
        until(lambda: _length(first, loud) > 100_000, 30, "it writes its log")
        before = len(footprint.glance().sandboxed)
        fill(ballast)
        until(lambda: len(footprint.glance().sandboxed) < before, 40, "its log has no room")
        first.kill()
        ballast.unlink()
    with Server(data_dir) as second:
        check(second, kept, mark, quiet)
        run = ended(second, loud)
        assert (run["status"], run["outcome"]) == ("failed", "output"), run
        assert "the host cannot store more output: No space left on device" in run["error"]["message"], run
        log, lines = whole_log(second, loud), "".join(PIECE % n for n in range(10_000))
        assert 100_000 < len(log) < len(lines)
        assert lines.startswith(log)
        idle(footprint)
        until(lambda: not contradictions(data_dir), 20, f"all records end: {contradictions(data_dir)}")
        assert second.stop() == 0, second.log()
    gone(footprint)
    print(json.dumps({"left": contradictions(data_dir)}))


def _length(server: Server, run_id: str) -> int:
    with server.client() as client:
        return int(client.call("runs.logs", {"run_id": run_id, "max_bytes": 200_000})["next_offset"])


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
