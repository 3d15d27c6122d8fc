"""The probe of the microvm backend: a program looks round in a machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from skillyard.domain.sandbox import guarantees
from skillyard.domain.sandbox.guarantees import OWN_KERNEL, WALLS, Level, Probe, Protection
from skillyard.domain.work.limits import Limits
from skillyard.sandbox.oci import container
from skillyard.sandbox.oci.probe import LOOK, walls_of

__all__ = ["LOOK", "WITHOUT", "absent", "judge"]

NAME = "microvm"
absent = partial(guarantees.absent, NAME)
WITHOUT = frozenset({"user_namespace", "landlock"})
"""Walls that are not made inside of a machine: the machine is another, and the guarantees rest on the others."""
_WHY = {
    "user_namespace": ("root of the machine makes the sandbox", "use the isolation 'native'"),
    "landlock": ("nothing inside uses it", "use the isolation 'native'"),
}
_NOT_SEEN = "it was not in force in a test machine"
_MEND = "build the image anew: skillyard image build --microvm"
_AROUND = "; one of the host round QEMU"
_ACCEL = {"tcg": "QEMU's emulation of a processor", "kvm": "QEMU with KVM"}


def judge(
    seen: Mapping[str, Any],
    machine: Mapping[str, Any],
    limits: Limits,
    spare_pids: int,
    facts: Mapping[str, str],
    egress: Protection,
    around: Collection[str],
) -> Probe:
    """Returns the probe from the accounts of :data:`LOOK` and of the machine.

    They are of a sandbox with ``limits``. A control group of the host holds QEMU to the limits ``around``.
    """
    held = walls_of(seen, machine["spaces"]) | {"seccomp": "Seccomp:\t2" in str(seen["status"]), "own_uid": True}
    walls = {name: _wall(name, held.get(name, False)) for name in WALLS}
    walls["own_uid"] = Protection(Level.KERNEL, by="the machine has no other sandbox")
    own = bool(seen["boot"]) and seen["boot"] != _boot()
    by = f"a kernel of the machine's own; {_ACCEL[facts['accel']]}"
    kernel = Protection(Level.KERNEL, by=by) if own else Protection(Level.MISSING, why=_NOT_SEEN)
    told = dict(facts) | {"guest_kernel": str(seen["release"])[:100], "python": ".".join(map(str, seen["python"]))}
    abilities = {"forwarding": Protection(Level.SUPERVISED, by="the agent connects inside"), "egress": egress}
    own_kernel = {OWN_KERNEL: kernel, "kernel_surface": kernel}  # so that records tell the accelerator as evidence
    return Probe(NAME, True, walls | own_kernel | _limits(seen, limits, spare_pids, around), told, abilities)


def _wall(name: str, stands: bool) -> Protection:
    if stands:
        return Protection(Level.KERNEL, by="found in a test machine, kept by its kernel")
    why, mend = _WHY.get(name, (_NOT_SEEN, _MEND))
    return Protection(Level.MISSING, why=why, mend=mend)


def _limits(seen: Mapping[str, Any], limits: Limits, spare_pids: int, around: Collection[str]) -> dict[str, Protection]:
    sizes = set(seen["sizes"].values())
    in_force = {
        "memory": (seen["memory"] == str(container.memory(limits)), "the machine's memory, and a control group in it"),
        "pids": (seen["pids"] == str(limits.pids + spare_pids), "a control group in the machine"),
        "cpus": (bool(seen["cpus"].split()), "the machine's processors, and a control group in it"),
        "disk": (sizes == {limits.disk_mb << 20}, "the size of one tmpfs in the machine"),
    }
    found = {
        name: Protection(Level.KERNEL, by=by + (_AROUND if name in around else ""))
        if stands
        else Protection(Level.MISSING, why=_NOT_SEEN, mend=_MEND)
        for name, (stands, by) in in_force.items()
    }
    for name in ("timeout", "output"):
        found[name] = Protection(Level.SUPERVISED, by="the agent watches and kills")
    return found


def _boot() -> str:
    """Returns the name of this host's boot, by which its kernel is told from others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
