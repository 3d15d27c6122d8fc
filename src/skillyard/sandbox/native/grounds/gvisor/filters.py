"""The filters before gVisor's own system calls: the native backend's, and what gVisor lacks beside them."""

from __future__ import annotations

import stat

from skillyard.sandbox.native.linux import bpf, kernel, seccomp
from skillyard.sandbox.native.linux.syscall_numbers import numbers

_TYPE = 0xF000


def assembled() -> list[str]:
    """In the order in which they are installed, in hexadecimal. Behind the closing one no further one goes in."""
    made = (_no_devices(), seccomp.large_filter(), seccomp.closing_filter())
    return [bpf.assemble(program).hex() for program in made]


def _no_devices() -> list[bpf.Instruction]:
    """gVisor lets anybody make device files, and opens those that it knows, wherever they are (mknod(2))."""
    nr = numbers(kernel.ARCH)
    program = seccomp.head(kernel.ARCH)
    for name, mode in (("mknod", bpf.ARG1), ("mknodat", bpf.ARG2)):
        if name in nr:
            program += bpf.when(nr[name], _neither(mode, stat.S_IFCHR, stat.S_IFBLK))
    return [*program, bpf.ALLOW]


def _neither(mode: int, one: int, other: int) -> list[bpf.Instruction]:
    steps = [(bpf.LOAD, 0, 0, mode), (bpf.AND, 0, 0, _TYPE), (bpf.JEQ, 2, 0, one), (bpf.JEQ, 1, 0, other)]
    return [*steps, bpf.ALLOW, bpf.refuse()]
