"""System calls that reach the kernel's more dangerous parts are refused; their harmless neighbours work."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest

from tests.attacks.conftest import Attack
from tests.attacks.programs import Row

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")

NO = ("EPERM", "ENOSYS")
PID = ("os.getpid()", "getpid")
CALLS = {
    "ptrace": "101, 0, 0, 0, 0",
    "process_vm_readv": "310, 1, 0, 0, 0, 0, 0",
    "process_vm_writev": "311, 1, 0, 0, 0, 0, 0",
    "kcmp": "312, 1, 2, 0, 0, 0",
    "pidfd_getfd": "438, 0, 0, 0",
    "add_key": "248, b'user', b'n', b'p', 1, -3",
    "request_key": "249, b'user', b'n', 0, -3",
    "keyctl": "250, 0, -3, 1",
    "bpf": "321, 0, 0, 0",
    "perf_event_open": "298, 0, 0, -1, -1, 0",
    "userfaultfd": "323, 1",
    "io_uring_setup": "425, 1, ctypes.create_string_buffer(256)",
    "io_uring_enter": "426, 0, 0, 0, 0, 0, 0",
    "io_setup": "206, 1, ctypes.create_string_buffer(8)",
    "unshare user": "272, 0x10000000",
    "unshare net": "272, 0x40000000",
    "setns": "308, 0, 0",
    "mount": "165, b'none', b'/tmp', b'tmpfs', 0, 0",
    "umount2": "166, b'/proc', 2",
    "pivot_root": "155, b'/', b'/'",
    "chroot": "161, b'/tmp'",
    "open_tree": "428, -100, b'/', 1",
    "move_mount": "429, -100, b'/', -100, b'/', 0",
    "fsopen": "430, b'tmpfs', 0",
    "fsmount": "432, 0, 0, 0",
    "mount_setattr": "442, -100, b'/', 0, 0, 0",
    "statmount": "457, 0, 0, 0, 0",
    "listmount": "458, 0, 0, 0, 0",
    "name_to_handle_at": "303, -100, b'/', 0, 0, 0",
    "open_by_handle_at": "304, -100, 0, 0",
    "fanotify_init": "300, 0, 0",
    "quotactl": "179, 0, 0, 0, 0",
    "init_module": "175, 0, 0, b''",
    "finit_module": "313, 0, b'', 0",
    "kexec_load": "246, 0, 0, 0, 0",
    "reboot": "169, 0xfee1dead, 672274793, 0, 0",
    "swapon": "167, b'/tmp/x', 0",
    "syslog": "103, 3, 0, 0",
    "sethostname": "170, b'x', 1",
    "settimeofday": "164, 0, 0",
    "clock_settime": "227, 0, 0",
    "iopl": "172, 3",
    "acct": "163, 0",
    "seccomp": "317, 0, 0, 0",
    "sched_setaffinity": "203, 0, 8, b'\\1\\0\\0\\0\\0\\0\\0\\0'",
    "set_mempolicy": "238, 0, 0, 0",
    "mbind": "237, 0, 0, 0, 0, 0, 0",
    "move_pages": "279, 0, 0, 0, 0, 0, 0",
    "shmget": "29, 0, 4096, 0o1600",
    "msgget": "68, 0, 0o1600",
    "semget": "64, 0, 1, 0o1600",
    "mq_open": "240, b'x', 66, 0o600, 0",
    "memfd_secret": "447, 0",
    "modify_ldt": "154, 0, 0, 0",
    "vmsplice": "278, 1, 0, 0, 0",
    "setxattr": "188, b'/tmp', b'user.x', b'1', 1, 0",
    "clone3": "435, ctypes.create_string_buffer(88), 88",
    "clone with a user namespace": "56, 0x10000000 | 17, 0, 0, 0, 0",
    "clone with a net namespace": "56, 0x40000000 | 17, 0, 0, 0, 0",
    "personality READ_IMPLIES_EXEC": "135, 0x0400000",
    "personality ADDR_NO_RANDOMIZE": "135, 0x0040000",
    "PR_SET_MM": "157, 35, 1, 0, 0, 0",
    "PR_SET_SECCOMP": "157, 22, 1, 0, 0, 0",
    "PR_CAP_AMBIENT": "157, 47, 2, 21, 0, 0",
    "PR_SET_SECUREBITS": "157, 28, 0, 0, 0, 0",
    "a number that does not exist yet": "1000",
}


COMMANDS = {
    "TIOCSTI": "16, 0, 0x5412, b'x'",
    "TIOCSTI with high bits": "16, 0, 0x100005412, b'x'",
    "TIOCLINUX": "16, 0, 0x541C, b'x'",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_not_listed_is_refused(name: str, hold: Callable[[Row], None]) -> None:
    hold(Row(name, f"sys_call({COMMANDS[name]})", ("ENOTTY",), "refusal(os.get_blocking, 0)", ""))


@pytest.mark.parametrize("name", CALLS)
def test_refused(name: str, hold: Callable[[Row], None]) -> None:
    hold(Row(name, f"sys_call({CALLS[name]})", NO, "sys_call(39) == os.getpid()", True))


ENTRIES = {
    "x32": "libc.syscall(ctypes.c_long(0x40000000 + 39))",
    "int 0x80": "int80()",
}


@pytest.mark.parametrize("name", ENTRIES)
def test_another_entry_into_the_kernel_is_the_end(name: str, attack: Attack) -> None:
    run = attack(f"""
        def int80():
            code = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
            code.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))  # mov eax, 20 (getpid); int 0x80; ret
            ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()

        return {{"attack": status_of(lambda: {ENTRIES[name]}), "twin": status_of(lambda: sys_call(39))}}
    """)
    assert run.output == {"attack": 31, "twin": 0}  # SIGSYS
