"""Attacks by dangerous system calls, and by other entries into the kernel."""

from __future__ import annotations

from skillyard.testing.attacks.attack import Family

SYSCALLS = Family("syscalls", walls=("seccomp",), invariants=(2, 7))

_NO = ("EPERM", "ENOSYS")
_TWIN = 'works("a harmless call", lambda: os.getpid() > 0)\n'


def _calls(name: str, tries: str, lines: str, invariants: tuple[int, ...] = (2, 7), no: str = "") -> None:
    """Adds an attack by calls that the kernel itself would not just refuse. ``lines``: calls with their arguments, one
    a line. ``no``: further errors by which they may be refused."""
    made = "\n".join(
        f"call_refused({line.strip().rstrip(',')}, refused={(*_NO, *no.split())})"
        for line in lines.strip().splitlines()
    )
    prepared = "buffer = ctypes.create_string_buffer(4096)\n"
    SYSCALLS.program(name, tries, prepared + made + "\n" + _TWIN, invariants=invariants)


_calls("tracing", "Trace, read and write other processes, compare and copy their descriptors.", """
    "ptrace", 0, 0, 0, 0
    "ptrace", 16, os.getppid(), 0, 0
    "ptrace", 0x4206, os.getppid(), 0, 0
    "process_vm_readv", os.getpid(), 0, 0, 0, 0, 0
    "process_vm_writev", os.getpid(), 0, 0, 0, 0, 0
    "process_madvise", -1, 0, 0, 0, 0
    "process_mrelease", -1, 0
    "kcmp", os.getpid(), os.getpid(), 0, 0, 0
    "pidfd_getfd", -1, 0, 0
""", (3,))  # fmt: skip
_calls("keyrings", "Use the kernel's keyrings, which know no sandbox.", """
    "add_key", b"user", b"verify", b"payload", 7, -2
    "add_key", b"keyring", b"verify", 0, 0, -4
    "request_key", b"user", b"verify", 0, -2
    "keyctl", 0, -3, 1
    "keyctl", 1, 0
    "keyctl", 11, -3, 0, 0
""", (3, 8))  # fmt: skip
_calls("bpf-and-perf", "Load programs into the kernel and watch it with performance counters.", """
    "bpf", 0, buffer, 0
    "bpf", 5, buffer, 128
    "bpf", 17, buffer, 128
    "perf_event_open", buffer, 0, -1, -1, 0
    "perf_event_open", ctypes.create_string_buffer(struct.pack("IIQ", 1, 112, 0) + bytes(100)), 0, -1, -1, 0
""")  # fmt: skip
_calls("async-io", "Use io_uring and the old asynchronous input and output, which pass filters by.", """
    "io_uring_setup", 4, buffer
    "io_uring_enter", -1, 1, 1, 0, 0, 0
    "io_uring_register", -1, 0, 0, 0
    "io_setup", 1, ctypes.create_string_buffer(8)
    "io_submit", 0, 0, 0
    "io_getevents", 0, 0, 0, 0, 0
    "io_pgetevents", 0, 0, 0, 0, 0, 0
    "io_destroy", 0
    "io_cancel", 0, 0, 0
""")  # fmt: skip
_calls("faults", "Handle page faults in user space, map shadow stacks, hide memory from the kernel.", """
    "userfaultfd", 1
    "userfaultfd", 0
    "memfd_secret", 0
    "map_shadow_stack", 0, 4096, 0
    "remap_file_pages", 0, 4096, 0, 0, 0
    "pkey_alloc", 0, 0
""")  # fmt: skip
_calls("memory-policy", "Move pages between the memory banks of the host.", """
    "mbind", 0, 0, 0, 0, 0, 0
    "set_mempolicy", 0, 0, 0
    "get_mempolicy", 0, 0, 0, 0, 0
    "move_pages", 0, 0, 0, 0, 0, 0
    "migrate_pages", 0, 0, 0, 0
    "set_mempolicy_home_node", 0, 0, 0, 0
""")  # fmt: skip
_calls("modules", "Load kernel modules and other kernels, and restart the host.", """
    "init_module", 0, 0, b""
    "finit_module", -1, b"", 0
    "delete_module", b"verify_no_such_module", 0
    "kexec_load", 0, 0, 0, 0
    "kexec_file_load", -1, -1, 0, 0, 0
    "reboot", 0, 0, 0, 0
    "create_module", 0, 0
    "query_module", 0, 0, 0, 0, 0
""")  # fmt: skip
_calls("administration", "Swap, quotas, accounting, the console, the kernel's log.", """
    "swapon", b"/tmp/x", 0
    "swapoff", b"/tmp/x"
    "quotactl", 0, 0, 0, 0
    "quotactl_fd", -1, 0, 0, 0
    "acct", 0
    "vhangup",
    "syslog", 10, 0, 0
    "syslog", 3, buffer, 4096
    "nfsservctl", 0, 0, 0
    "lookup_dcookie", 0, 0, 0
    "uselib", b"/bin/sh"
    "ustat", 0, buffer
    "sysfs", 3
    "_sysctl", 0
""")  # fmt: skip
_calls("clocks", "Set the clocks of the host, and steer them.", """
    "settimeofday", -1, 0
    "clock_settime", 0, -1
    "clock_adjtime", 0, buffer
    "adjtimex", buffer
""", (7,))  # fmt: skip
_calls("hardware", "Reach input and output ports and the processor's descriptor tables.", """
    "iopl", 0
    "iopl", 7
    "ioperm", 0, 0, 0
    "modify_ldt", 0, buffer, 64
    "set_thread_area", buffer
    "get_thread_area", buffer
""")  # fmt: skip
_calls("system-v", "Use System V shared memory, semaphores and queues, and POSIX queues, which outlive processes.", """
    "shmget", 0, 4096, 0o1600
    "shmget", 0x5AFE, 4096, 0o1666
    "shmat", 0, 0, 0
    "shmctl", 0, 2, buffer
    "semget", 0, 1, 0o1600
    "semop", 0, buffer, 1
    "semctl", 0, 0, 2, buffer
    "msgget", 0, 0o1600
    "msgsnd", 0, buffer, 1, 0
    "msgctl", 0, 2, buffer
    "mq_open", b"verify", 66, 0o600, 0
    "mq_unlink", b"verify"
""", (3, 8))  # fmt: skip
_calls("handles", "Open files by handles instead of paths, which pass mounts by.", """
    "name_to_handle_at", -100, b"/", buffer, ctypes.create_string_buffer(8), 0
    "open_by_handle_at", -100, buffer, 0
""", (3,))  # fmt: skip
_calls("watches", "Watch files that it shares with the host and with others: inotify, fanotify, leases, notes.", """
    "inotify_init1", 0
    "inotify_init",
    "inotify_add_watch", -1, b"/usr/bin", 32
    "inotify_rm_watch", -1, 0
    "fanotify_init", 0x200, 0
    "fanotify_mark", -1, 1, 0, -100, b"/"
    "fcntl", os.open("/usr/bin/env", os.O_RDONLY), 1024, 0
    "fcntl", os.open("/usr/bin", os.O_RDONLY), 1026, 0x80000001
""", (3, 7), "EINVAL")  # fmt: skip
_calls("marks", "Change what others see of a file that all may read: write hints, flags, locks of no process.", """
    "fcntl", os.open("/usr/bin/env", os.O_RDONLY), 1036, ctypes.create_string_buffer(struct.pack("Q", 5))
    "fcntl", os.open("/usr/bin/env", os.O_RDONLY), 37, ctypes.create_string_buffer(32)
    "ioctl", os.open("/tmp/own", os.O_CREAT | os.O_RDWR), 0x40086602, ctypes.create_string_buffer(b"@" + bytes(7))
    "ioctl", os.open("/tmp/own", os.O_CREAT | os.O_RDWR), 0x401C5820, ctypes.create_string_buffer(28)
    "ioctl", os.open("/tmp/own", os.O_CREAT | os.O_RDWR), 0x40305828, ctypes.create_string_buffer(48)
""", (3, 4), "EINVAL ENOTTY")  # fmt: skip
_calls("splicing", "Move pages between pipes and files without copying, where kernels were broken before.", """
    "splice", -1, 0, -1, 0, 0, 0
    "tee", -1, -1, 0, 0
    "vmsplice", -1, 0, 0, 0
""")  # fmt: skip
_calls("terminals", "Type into terminals, take line disciplines and consoles, with and without high bits.", """
    "ioctl", 0, 0x5412, b"x"
    "ioctl", 0, 0x100005412, b"x"
    "ioctl", 0, 0x541C, b"x"
    "ioctl", 0, 0x5423, b"x"
""", no="ENOTTY")  # fmt: skip
_calls("process-options", "Set what a process may be by prctl: memory maps, filters, capabilities, speculation.", """
    "prctl", 22, 1, 0, 0, 0
    "prctl", 24, 0, 0, 0, 0
    "prctl", 28, 0, 0, 0, 0
    "prctl", 35, 1, 0, 0, 0
    "prctl", 47, 4, 0, 0, 0
    "prctl", 53, 0, 0, 0, 0
    "prctl", 0x59616D61, -1, 0, 0, 0
    "prctl", 0x100000023, 1, 0, 0, 0
    "prctl", 59, 0, 0, 0, 0
    "prctl", 62, 0, 0, 0, 0
    "prctl", 71, 0, 0, 0, 0
    "prctl", 0x1000, 0, 0, 0, 0
""")  # fmt: skip
_calls("personalities", "Turn off address randomisation and page protection by another personality.", """
    "personality", 0x0040000
    "personality", 0x0400000
    "personality", 8
    "personality", 0x0100000
""")  # fmt: skip
_calls("own-walls", "Add filters and rules of its own, which may be wrong, and change processors.", """
    "seccomp", 0, 0, 0
    "seccomp", 1, 0, 0
    "seccomp", 2, 0, buffer
    "landlock_create_ruleset", 0, 0, 1
    "landlock_add_rule", -1, 1, buffer, 0
    "landlock_restrict_self", -1, 0
    "sched_setaffinity", 0, 128, ctypes.create_string_buffer(b"\\xff" * 128, 128)
""")  # fmt: skip
_calls("security-modules", "Ask and tell the kernel's security modules.", """
    "lsm_get_self_attr", 0, 0, 0, 0
    "lsm_set_self_attr", 0, 0, 0, 0
    "lsm_list_modules", buffer, buffer, 0
    "setxattr", b"/tmp", b"user.x", b"1", 1, 0
    "setxattrat", -100, b"/tmp", 0, b"user.x", 0, 0
    "fsetxattr", 1, b"user.x", b"1", 1, 0
    "removexattr", b"/tmp", b"user.x"
    "file_setattr", -100, b"/tmp", 0, 0, 0
""")  # fmt: skip
_calls("peers", "Get a handle on the process at the other end of its channel, which lives outside.", """
    "getsockopt", 3, 1, 77, buffer, ctypes.create_string_buffer(struct.pack("I", 4))
    "setsockopt", 3, 1, 76, ctypes.create_string_buffer(struct.pack("I", 1)), 4
""", (3,))  # fmt: skip

SYSCALLS.program(
    "huge-pages",
    "Take the huge pages that the host keeps for others, which no memory limit counts.",
    """
    private, shared, anonymous, huge, unreserved = 2, 1, 0x20, 0x40000, 0x4000
    for kind, how in ((private, "private"), (shared, "shared")):
        for size, what in ((0, "default"), (21 << 26, "2 MiB"), (30 << 26, "1 GiB")):
            for extra in (0, unreserved):
                tried.append(f"{how} {what}")
                at = libc.mmap(None, ctypes.c_size_t(1 << 30 if size >> 26 == 30 else 1 << 21), 3,
                               ctypes.c_int(kind | anonymous | huge | size | extra), -1, ctypes.c_long(0))
                if at != 2**64 - 1:
                    got.append(f"mapped {how} huge pages, {what}")
    call_refused("memfd_create", b"huge", 4, refused=("EPERM", "ENOSYS", "EINVAL"))
    call_refused("memfd_create", b"huge", 4 | 21 << 26, refused=("EPERM", "ENOSYS", "EINVAL"))
    works("map a page", lambda: mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close())
    """,
    walls=("seccomp", "memory"),
    invariants=(7,),
)

SYSCALLS.program(
    "unknown-numbers",
    "Make every system call that the filter's table does not know, so that newer kernels offer nothing more.",
    """
    last = 469
    for number in (*range(last + 1, last + 60), 511, 512, 547, 1000, 4095, 0x3FFFFFFF):
        tried.append(str(number))
        answer = in_child(lambda: str(raw(number, 0, 0, 0, 0, 0, 0)))
        if answer not in ("ENOSYS", "EPERM", "signal SIGSYS"):
            got.append(f"{number}: {answer}")
    works("a known number", lambda: raw(NR["getpid"]) == os.getpid())
    """,
)

ENTRIES = Family("entries", walls=("seccomp",), invariants=(2, 7))

_STUBS = """
if platform.machine() != "x86_64":
    return {"got": [], "wrong": [], "tried": 1, "note": "the processor has no other entry"}
def stub(code):
    at = libc.mmap(None, ctypes.c_size_t(4096), 7, 0x22 | 0x40, -1, ctypes.c_long(0))
    assert at != 2**64 - 1 and at < 2**32
    ctypes.memmove(at, code, len(code))
    return at
def run(code):
    at = stub(code)
    return in_child(lambda: str(ctypes.CFUNCTYPE(ctypes.c_int)(at)()))
works("machine code runs", lambda: run(bytes([0xB8, 42, 0, 0, 0, 0xC3])) == "42")
"""

ENTRIES.program(
    "int-0x80",
    "Enter by int 0x80, where each number means another call: getpid, ptrace, mount, unshare, socketcall, keyctl.",
    _STUBS
    + """
for name, number in (("getpid", 20), ("ptrace", 26), ("mount", 21), ("unshare", 310), ("socketcall", 102),
                     ("keyctl", 288), ("execve", 11), ("clone", 120)):
    tried.append(name)
    code = bytes([0x53, 0x31, 0xDB, 0x31, 0xC9, 0x31, 0xD2, 0xB8]) + struct.pack("I", number)
    code += bytes([0xCD, 0x80, 0x5B, 0xC3])
    answer = run(code)
    if answer != "signal SIGSYS":
        got.append(f"{name}: {answer}")
""",
)

ENTRIES.program(
    "compatibility-mode",
    "Switch the processor to its 32-bit code segment, enter the kernel from there, and come back.",
    _STUBS
    + """
def through(entry):
    at, stack = stub(b"\\xf4"), stub(b"\\0") + 2048
    narrow, back, there = at + 64, at + 128, at + 192
    # save registers; r15 = rsp; esp = stack. By far jumps: QEMU's emulation dies of far returns (its kernel has SMAP)
    wide = bytes([0x53, 0x55, 0x41, 0x57, 0x49, 0x89, 0xE7, 0xBC]) + struct.pack("I", stack)
    wide += bytes([0xFF, 0x2C, 0x25]) + struct.pack("I", there)  # to 0x23:narrow
    slim = bytes([0xB8, 20, 0, 0, 0]) + entry + b"\\xEA" + struct.pack("<IH", back, 0x33)
    home = bytes([0x4C, 0x89, 0xFC, 0x41, 0x5F, 0x5D, 0x5B, 0xC3])  # rsp = r15; restore; return
    for place, code in ((at, wide), (narrow, slim), (back, home), (there, struct.pack("<IH", narrow, 0x23))):
        ctypes.memmove(place, code, len(code))
    return in_child(lambda: str(ctypes.CFUNCTYPE(ctypes.c_int)(at)()))
works("32-bit code runs", lambda: through(b"") == "20")
for name, entry in (("int 0x80", bytes([0xCD, 0x80])), ("syscall", bytes([0x0F, 0x05]))):
    tried.append(name)
    answer = through(entry)
    if answer not in ("signal SIGSYS", "signal SIGILL", "signal SIGSEGV"):
        got.append(f"{name} from 32-bit code: {answer}")
""",
)

ENTRIES.program(
    "x32",
    "Enter with the numbers of the x32 interface, those of its own calls among them.",
    _STUBS
    + """
for number in (39, 101, 165, 272, 310, 41, 250, *range(512, 548)):
    tried.append(str(number))
    answer = in_child(lambda: str(raw(0x40000000 + number, 0, 0, 0, 0, 0, 0)))
    if answer != "signal SIGSYS" and not (OWN_KERNEL and answer in ("ENOSYS", "EPERM")):
        got.append(f"x32 {number}: {answer}")
""",
)

ENTRIES.program(
    "high-bits",
    "Set the upper halves of numbers and arguments, which a filter may compare and the kernel ignore.",
    """
    high = 1 << 32
    numbers = {"ptrace": NR["ptrace"], "unshare": NR["unshare"], "mount": NR["mount"]}
    for name, number_args in (("ptrace", (0, 0, 0, 0)), ("unshare", (0x10000000,)),
                              ("mount", (b"none", b"/tmp", b"tmpfs", 0, 0))):
        tried.append(name)
        answer = in_child(lambda: str(raw(numbers[name] + high, *number_args)))
        if answer not in ("EPERM", "ENOSYS", "signal SIGSYS"):
            got.append(f"{name} with a high number: {answer}")
    for family in (40, 17, 38, 15, 16):
        call_refused("socket", family + high, 3, 0 if family != 16 else 9,
                     refused=("EAFNOSUPPORT", "EPERM", "EPROTONOSUPPORT"))
    call_refused("clone", 0x10000000 + high | 17, 0, 0, 0, 0)
    call_refused("prctl", 22 + high, 1, 0, 0, 0)
    call_refused("personality", 0x0400000 + high)
    call_refused("socket", 2, 3 + high, 1, refused=("EPERM", "EPROTONOSUPPORT"))
    works("a plain call", lambda: os.getpid() > 0)
    """,
)
