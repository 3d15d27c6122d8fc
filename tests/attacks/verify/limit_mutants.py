"""Mutants of the limits. A limit is made wide rather than taken away where the attack would harm the host."""

from __future__ import annotations

from tests.attacks.verify.inside_mutants import HOST, RULES, WALLS
from tests.attacks.verify.mutants import Mutant

CGROUPS, WATCH, SANDBOX = (
    "sandbox/native/groups/groups.py", "sandbox/native/keeper/watch/memory.py", "sandbox/native/keeper/sandbox.py"
)  # fmt: skip
PROGRAM = "sandbox/native/keeper/program.py"

OBJECTS = (
    "objects-locks",
    "objects-watches",
    "objects-in-flight",
    "objects-tcp",
    "objects-tcp-unaccepted",
    "objects-udp",
    "objects-unix",
    "objects-tcp-ended",
)
WIDE_MEMORY = {
    CGROUPS: """
_plain_make = Cgroups.make
def _wide(self, name, limits):
    from dataclasses import replace
    return _plain_make(self, name, replace(limits, memory_bytes=limits.memory_bytes * 16))
Cgroups.make = _wide
""",
    WATCH: "def check(box, objects):\n    return None",
    WALLS: """
_plain_limit = _limit
def _limit(spec):
    _plain_limit(spec._replace(data_bytes=1 << 40))
""",
    RULES: "UNCOUNTED_RULES = ()",
}
MANY_PIDS = {
    CGROUPS: """
_plain_make = Cgroups.make
def _wide(self, name, limits):
    from dataclasses import replace
    return _plain_make(self, name, replace(limits, pids=limits.pids * 8))
Cgroups.make = _wide
""",
    WALLS: """
_plain_limit = _limit
def _limit(spec):
    _plain_limit(spec._replace(processes=spec.processes * 8))
""",
}
WIDE_DISK = """
_plain_box = _mount_box
def _mount_box(spec):
    _plain_box(spec._replace(disk_bytes=spec.disk_bytes * 64, inodes=1 << 20))
_disk_limit = _limit
def _limit(spec):
    _disk_limit(spec._replace(disk_bytes=1 << 50))
"""
WIDE_LIMITS = """
def _limit(spec):
    resource.setrlimit(resource.RLIMIT_NPROC, (spec.processes, spec.processes))
"""

MUTANTS = (
    Mutant(
        "memory", ("memory",), "sixteen times the memory, nobody watches, and what nobody counts is there",
        (
            "memory-anonymous", "memory-private-mappings", "memory-copies-of-files", "memory-many-processes",
            "memory-memfd", "memory-let-go", "memory-zero-device", "memory-kernel-memory", *OBJECTS,
        ),
        WIDE_MEMORY, who="root",
    ),
    Mutant(
        "memory (watched)", ("memory",), "nobody watches, and no process is bounded",
        ("memory-anonymous", "memory-private-mappings", "memory-copies-of-files", "memory-many-processes", *OBJECTS),
        WIDE_MEMORY, who="ordinary",
    ),
    Mutant(
        "memory+disk", ("memory", "disk"), "wide memory and a wide tmpfs: files are memory",
        (
            "memory-tmpfs", "disk-bytes-workspace", "disk-bytes-tmp", "disk-bytes-dev-shm", "disk-three-places",
            "disk-deleted", "disk-reserved", "disk-mapped", "disk-sparse", "disk-inodes", "disk-directories",
            "disk-hard-links",
        ),
        {**WIDE_MEMORY, WALLS: WIDE_MEMORY[WALLS] + WIDE_DISK},
    ),
    Mutant(
        "pids", ("pids",), "eight times the processes",
        ("limits-fork", "limits-threads", "limits-fork-bomb"), MANY_PIDS, short=True,
    ),
    Mutant(
        "cpus", ("cpus",), "no quota, and every processor",
        ("limits-cpu",),
        {
            CGROUPS: """
_plain_make = Cgroups.make
def _wide(self, name, limits):
    from dataclasses import replace
    return _plain_make(self, name, replace(limits, cpus=8.0))
Cgroups.make = _wide
""",
            HOST: "Processors.take = lambda self, cpus: ()",
        },
    ),
    Mutant(
        "timeout", ("timeout",), "no program is ended for its time",
        ("limits-time-loop", "limits-time-sleep", "limits-time-handover", "limits-time-stop"),
        {SANDBOX: "Sandbox.give_time = lambda self, program, asked_ms: None"}, at_once=True,
    ),
    Mutant(
        "output", ("output",), "no program is ended for what it writes",
        ("limits-flood-stdout", "limits-flood-stderr"),
        {PROGRAM: "_plain_caps = Caps\ndef Caps(*_, **more):\n    return _plain_caps(1 << 40, 1 << 40)"},
    ),
    Mutant(
        "rlimits", ("user_namespace",), "queued signals, locked memory are not limited",
        ("limits-pending-signals", "privileges-higher-limits"), {WALLS: WIDE_LIMITS},
    ),
    Mutant(
        "descriptors", ("user_namespace",), "a sandbox may open as many descriptors as its keeper",
        ("limits-descriptors",), {WALLS: WIDE_LIMITS},
    ),
)  # fmt: skip
