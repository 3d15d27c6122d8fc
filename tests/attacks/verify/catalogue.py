"""All mutants, and the attacks that none of them lets escape."""

from __future__ import annotations

from tests.attacks.verify import (
    egress_mutants,
    host_mutants,
    inside_mutants,
    limit_mutants,
    outside_mutants,
    service_mutants,
)

MUTANTS = (
    *inside_mutants.MUTANTS,
    *host_mutants.MUTANTS,
    *limit_mutants.MUTANTS,
    *egress_mutants.MUTANTS,
    *outside_mutants.MUTANTS,
    *service_mutants.MUTANTS,
)

_OWN_PROCESS = (
    "each run is a fork of its own with memory of its own: only another design, where one interpreter serves two runs, "
    "could fail it"
)
NO_MUTANT: dict[str, str] = {
    "canaries-process-handle": "the mutant without pids lets processes-signal find the host's numbers",
    "channel-descriptors": "read(2) drops descriptors that come with bytes; what is judged is the server after it",
    "egress-datagrams": "nothing relays datagrams; what is judged is what the outside heard",
    "leftovers-settings": _OWN_PROCESS,
    "memory-locked": "RLIMIT_MEMLOCK is below it on most hosts without our doing",
    "poisoning-modules": _OWN_PROCESS,
    "poisoning-objects": _OWN_PROCESS,
    "privileges-priority": "raising a priority needs a capability of the host's own namespace",
    "proc-places": "the kernel tells a namespace its own mounts, and no mapping of a sandbox is a file of the server's",
    "processes-end-init": "init is the sandbox's own: ending it ends the run; what is judged is the server after it",
    "processes-starve-init": "as processes-end-init",
    "processes-signal-everybody": "without a pid namespace it would end everything else of its user",
    "processes-touch": "without a pid namespace ids stand; without both it would slow the host's processes",
    "results-digits": "the guest cannot write such a number; the server's own check is tried by channel-values",
    "results-evil-types": "the guest makes plain JSON of it, whatever its methods say",
    "results-exception": "the guest cuts it; the server's own check is tried by channel-lengths",
    "special-files-devices": "mknod(2) of devices needs a capability of the host's own namespace",
    "special-files-set-user-id": "it would start the host's own set-user-id programs as root",
    "syscalls-unknown-numbers": "kernels without such calls answer as the filter does",
    "writing-shared-memory": "it would write to the host's interpreter",
}
"""Attacks that nothing here lets escape, and why."""
