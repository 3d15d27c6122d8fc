"""Runs a command as a container's engine would run it by default: without what makes namespaces, and, where we are
root, with the few capabilities that Docker leaves. ``python plain_container.py COMMAND …``"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "src"))

from skillyard.sandbox.native.linux import bpf, kernel, namespaces, seccomp
from skillyard.sandbox.native.linux.bpf import ALLOW, ARG0, refuse
from skillyard.sandbox.native.linux.call_arguments import NEW_NAMESPACES
from skillyard.sandbox.native.linux.syscall_numbers import numbers

CLOSED = (
    "unshare", "setns", "mount", "umount2", "pivot_root", "open_tree", "move_mount", "mount_setattr", "fsopen",
    "fsconfig", "fsmount", "sethostname", "setdomainname", "bpf", "keyctl", "add_key", "request_key",
    "perf_event_open", "userfaultfd", "kcmp", "process_vm_readv", "process_vm_writev", "pidfd_getfd",
)  # fmt: skip
CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
"""capabilities(7): CHOWN to SETFCAP, as Docker's default has them."""
_CAP_SYS_ADMIN = 21


def close(capabilities: tuple[int, ...] = CAPABILITIES, further: tuple[str, ...] = ()) -> None:
    """For this process and all that it makes."""
    nr = numbers(kernel.ARCH)
    program = seccomp.head(kernel.ARCH)
    program += bpf.when(nr["clone"], bpf.without(ARG0, NEW_NAMESPACES, refuse()))
    program += bpf.when(nr["clone3"], [refuse(errno.ENOSYS)])
    for name in (*CLOSED, *further):
        if name in nr:
            program += bpf.when(nr[name], [refuse()])
    if not namespaces.capabilities() >> _CAP_SYS_ADMIN & 1:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.install_filter(bpf.assemble([*program, ALLOW]))
    if os.geteuid() == 0:
        for capability in range(64):
            if capability not in capabilities:
                try:
                    kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
                except OSError:
                    break
        kernel.hold_only(*capabilities)


if __name__ == "__main__":
    options = sys.argv[1].split(",") if sys.argv[1] else []
    kept = () if "no-capabilities" in options else CAPABILITIES
    close(kept, tuple(option for option in options if option != "no-capabilities"))
    os.execvp(sys.argv[2], sys.argv[2:])
