"""Other ways into the kernel than the one that the filter reads: 32-bit entries, x32, high bits."""

from __future__ import annotations

from skillyard.verify.make import Family

FAMILY = Family("entries", walls=("seccomp",), invariants=(2, 7))

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

FAMILY.program(
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

FAMILY.program(
    "compatibility-mode",
    "Switch the processor to its 32-bit code segment, enter the kernel from there, and come back.",
    _STUBS
    + """
for name, entry in (("int 0x80", bytes([0xCD, 0x80])), ("syscall", bytes([0x0F, 0x05]))):
    tried.append(name)
    at, stack = stub(b"\\xf4"), stub(b"\\0") + 2048
    narrow = at + 64
    back = at + 128
    # save registers; r15 = rsp; esp = stack
    wide = bytes([0x53, 0x55, 0x41, 0x57, 0x49, 0x89, 0xE7, 0xBC]) + struct.pack("I", stack)
    wide += bytes([0x6A, 0x23, 0x68]) + struct.pack("I", narrow) + bytes([0x48, 0xCB])  # to 0x23:narrow
    slim = bytes([0xB8, 20, 0, 0, 0]) + entry + bytes([0x6A, 0x33, 0x68]) + struct.pack("I", back) + bytes([0xCB])
    home = bytes([0x4C, 0x89, 0xFC, 0x41, 0x5F, 0x5D, 0x5B, 0xC3])  # rsp = r15; restore; return
    for place, code in ((at, wide), (narrow, slim), (back, home)):
        ctypes.memmove(place, code, len(code))
    answer = in_child(lambda: str(ctypes.CFUNCTYPE(ctypes.c_int)(at)()))
    if answer not in ("signal SIGSYS", "signal SIGILL", "signal SIGSEGV"):
        got.append(f"{name} from 32-bit code: {answer}")
""",
)

FAMILY.program(
    "x32",
    "Enter with the numbers of the x32 interface, those of its own calls among them.",
    _STUBS
    + """
for number in (39, 101, 165, 272, 310, 41, 250, *range(512, 548)):
    tried.append(str(number))
    answer = in_child(lambda: str(raw(0x40000000 + number, 0, 0, 0, 0, 0, 0)))
    if answer not in ("signal SIGSYS", "ENOSYS", "EPERM"):
        got.append(f"x32 {number}: {answer}")
""",
)

FAMILY.program(
    "high-bits",
    "Set the upper halves of numbers and arguments, which a filter may compare and the kernel ignore.",
    """
    high = 1 << 32
    for name, number_args in (("ptrace", (0, 0, 0, 0)), ("unshare", (0x10000000,)),
                              ("mount", (b"none", b"/tmp", b"tmpfs", 0, 0))):
        tried.append(name)
        answer = in_child(lambda: str(raw(CALLS[name] + high, *number_args)))
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
    """.replace("CALLS[name]", '{"ptrace": NR["ptrace"], "unshare": NR["unshare"], "mount": NR["mount"]}[name]'),
)
