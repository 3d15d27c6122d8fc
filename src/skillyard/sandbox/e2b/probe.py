"""The probe of the e2b backend: a machine tells of itself, and a program looks round."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from skillyard.domain.sandbox import guarantees
from skillyard.domain.sandbox.guarantees import OWN_KERNEL, WALLS, Level, Probe, Protection
from skillyard.sandbox.oci.probe import LOOK, spaces_of_host, walls_of

__all__ = ["LOOK", "WITHOUT", "absent", "judge"]

NAME = "e2b"
absent = partial(guarantees.absent, NAME)
WITHOUT = frozenset({"user_namespace", "landlock"})
"""Walls that the stage does not make: the machine itself is another, and the guarantees rest on the others."""
_ONLY = "the machine has no other sandbox"
_NOT_SEEN = "it was not in force in a test machine"
_WHY = {
    "user_namespace": ("root of the machine makes the sandbox", "use the isolation 'native'"),
    "landlock": ("the stage does not use it", "use the isolation 'native'"),
}
_OWN_SIZE = "without root nothing in a machine is smaller than the machine, which has a size of its own"
_SEEN = "the machine has one user: programs see the agent and can end it"
ONE_USER = "one: programs can end their agent, and are lost with it"
_ROOT_MEND = "choose a provider whose machines have root"
_BOUNDS_MEND = "give the template root, and control groups: a kernel with memory, pids and cpu controllers"


def judge(seen: Mapping[str, Any], machine: Mapping[str, Any], facts: Mapping[str, str], egress: Protection) -> Probe:
    """Returns the probe from the accounts of :data:`LOOK` and of the stage.

    They are the provider's word, since both came through its machine. Where its one user is not root, the walls are the
    machine's own.
    """
    outer = machine["spaces"] if machine["root"] else spaces_of_host()
    held = walls_of(seen, outer) | {"seccomp": "Seccomp:\t2" in str(seen["status"])}
    walls = {name: _wall(name, held.get(name, False)) for name in WALLS}
    walls["own_uid"] = Protection(Level.PROVIDER, by=_ONLY)
    if not machine["root"]:
        walls["private_proc"] = Protection(Level.MISSING, why=_SEEN, mend=_ROOT_MEND)
    own = machine["boot"] != _boot() and bool(machine["boot"])
    kernel = Protection(Level.PROVIDER, by="the kernel of the provider's virtual machine")
    told = dict(facts) | {
        "guest_kernel": str(machine["release"])[:100],
        "python": ".".join(map(str, machine["python"])),
        "machine_memory_mb": str(machine["memory_mb"]),
        "machine_processors": str(machine["processors"]),
        "users": "the agent's and the programs'" if machine["root"] else ONE_USER,
        "own_kernel": "yes" if own else "no: it shares this server's kernel",
    }
    abilities = {"egress": egress, "forwarding": Protection(Level.PROVIDER, by="the agent connects inside")}
    if machine.get("terminals"):
        abilities["terminals"] = Protection(Level.PROVIDER, by="the machine has terminals of its own")
    return Probe(NAME, True, walls | ({OWN_KERNEL: kernel} if own else {}) | _limits(machine), told, abilities)


def _wall(name: str, stands: bool) -> Protection:
    if stands:
        return Protection(Level.PROVIDER, by="found in a test machine")
    why, mend = _WHY.get(name, (_NOT_SEEN, "build the template anew: skillyard image e2b-template"))
    return Protection(Level.MISSING, why=why, mend=mend)


def _limits(machine: Mapping[str, Any]) -> dict[str, Protection]:
    groups = machine["groups"]
    found = {
        name: Protection(Level.PROVIDER, by="a control group in the machine")
        if name in groups
        else Protection(Level.MISSING, why=_NOT_SEEN, mend=_BOUNDS_MEND)
        for name in ("memory", "cpus", "pids")
    }
    found["disk"] = Protection(Level.PROVIDER, by="the size of one tmpfs in the machine")
    if not machine["root"]:
        found |= dict.fromkeys(("memory", "cpus", "disk"), Protection(Level.MISSING, why=_OWN_SIZE, mend=_BOUNDS_MEND))
        found["pids"] = Protection(Level.PROVIDER, by="a resource limit of the machine's user")
    for name in ("timeout", "output"):
        found[name] = Protection(Level.PROVIDER, by="the agent watches and kills")
    return found


def _boot() -> str:
    """Returns the name of this server's boot, by which its kernel is told from others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
