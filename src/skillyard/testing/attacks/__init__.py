"""The library of attacks: programs against the walls of a sandbox, and ordinary ones.

Each is declared once. ``skillyard verify`` runs them against an installation, the conformance suite of sandboxes runs
them over a backend; both judge what a program returns by :mod:`skillyard.testing.attacks.attack`.
"""

from __future__ import annotations

from skillyard.testing.attacks import (
    benign,
    files,
    host,
    hunts,
    leftovers,
    limits,
    memory,
    namespaces,
    network,
    privileges,
    processes,
    syscalls,
)
from skillyard.testing.attacks.attack import Attack

FAMILIES = (
    host.FILES, host.PROC, files.WRITING, files.SPECIAL, privileges.PRIVILEGES, namespaces.NAMESPACES,
    syscalls.SYSCALLS, syscalls.ENTRIES, processes.PROCESSES, network.NETWORK, memory.MEMORY, memory.OBJECTS,
    limits.LIMITS, limits.DISK, leftovers.LEFTOVERS, leftovers.POISONING, leftovers.RANDOMNESS, hunts.CANARIES,
    benign.BENIGN,
)  # fmt: skip
ATTACKS: list[Attack] = [attack for family in FAMILIES for attack in family.attacks]
