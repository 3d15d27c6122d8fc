"""Reads the corpus under limits and prints the rule and the seconds of each attack. Run with ``python -m``."""

from __future__ import annotations

import io
import json
import os
import resource
import sys
import time

from skillyard.stores.skills.archives import read_archive
from tests.unit.stores.archives.corpus import ATTACKS, Attack
from tests.unit.stores.archives.zips import Entry, make_zip

MIB = 1024 * 1024
ROOM = 80 * MIB


def _addresses() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _tried(attack: Attack) -> tuple[str, float]:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    archive = io.BytesIO(attack.make())
    resource.setrlimit(resource.RLIMIT_AS, (_addresses() + ROOM, resource.RLIM_INFINITY))
    started = time.process_time()
    unpacked, findings = read_archive(archive)
    seconds = time.process_time() - started
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return ("taken" if unpacked else findings[-1].rule), seconds


def main() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    largest = make_zip(Entry(b"x", bytes(range(256)) * 65_000, method=0))
    honest = Attack("the largest bundle", "taken", lambda: largest)
    json.dump({attack.name: _tried(attack) for attack in (*ATTACKS, honest)}, sys.stdout)


if __name__ == "__main__":
    main()
