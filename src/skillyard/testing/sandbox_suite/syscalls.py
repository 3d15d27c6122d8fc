"""System calls that foreign code is refused, tried one by one, each in a child of its own."""

from __future__ import annotations

import signal

from skillyard.testing.sandbox_suite.check import Section, expect
from skillyard.testing.sandbox_suite.ground import Ground, python

syscalls = Section("syscalls")

TRY = """
import ctypes, errno, json, os, platform, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == 'x86_64'
buffer = ctypes.create_string_buffer(256)
NEWUSER, SIGCHLD = 0x10000000, 17
clone_args = (ctypes.c_uint64 * 11)(NEWUSER, 0, 0, 0, SIGCHLD)
calls = {
    'mount': (165 if x86 else 40, b'none', b'/tmp', b'tmpfs', 0, None),
    'umount2': (166 if x86 else 39, b'/proc', 2),
    'pivot_root': (155 if x86 else 41, b'/tmp', b'/tmp'),
    'fsopen': (430, b'tmpfs', 0),
    'open_tree': (428, -100, b'/tmp', 1),
    'unshare': (272 if x86 else 97, NEWUSER),
    'setns': (308 if x86 else 268, 0, 0),
    'clone': (56 if x86 else 220, NEWUSER | SIGCHLD, None, None, None, None),
    'clone3': (435, clone_args, ctypes.sizeof(clone_args)),
    'ptrace': (101 if x86 else 117, 0, 0, 0, 0),
    'bpf': (321 if x86 else 280, 0, buffer, 128),
    'keyctl': (250 if x86 else 219, 0, -3, 1),
    'add_key': (248 if x86 else 217, b'user', b'suite', b'x', 1, -2),
    'request_key': (249 if x86 else 218, b'user', b'suite', None, -2),
    'io_uring_setup': (425, 1, buffer),
    'userfaultfd': (323 if x86 else 282, 1),
    'perf_event_open': (298 if x86 else 241, buffer, 0, -1, -1, 0),
    'open_by_handle_at': (304 if x86 else 265, -100, buffer, 0),
    'kexec_load': (246 if x86 else 104, 0, 0, None, 0),
    'init_module': (175 if x86 else 105, buffer, 1, b''),
    'swapon': (167 if x86 else 224, b'/tmp/x', 0),
    'syslog': (103 if x86 else 116, 10, None, 0),
    'sethostname': (170 if x86 else 161, b'x', 1),
    'chroot': (161 if x86 else 51, b'/tmp'),
}
families = {'AF_VSOCK': 40, 'AF_PACKET': 17, 'AF_ALG': 38, 'AF_KEY': 15, 'AF_CAN': 29, 'AF_TIPC': 30, 'AF_XDP': 44}
def call(number, *args):
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    if result == -1: return errno.errorcode.get(ctypes.get_errno(), 'unknown')
    return 'allowed'
def make(family):
    try: socket.socket(family, socket.SOCK_RAW if family != 38 else socket.SOCK_SEQPACKET).close()
    except OSError as refused: return 'refused ' + errno.errorcode[refused.errno]
    return 'allowed'
def tried(function, *args):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told = function(*args)
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    told = os.read(reading, 100).decode()
    os.close(reading)
    return told if os.waitpid(child, 0)[1] == 0 else 'killed'
print(json.dumps({
    'calls': {name: tried(call, *words) for name, words in calls.items()},
    'families': {name: tried(make, number) for name, number in families.items()},
}))
"""

REFUSALS = frozenset({"EPERM", "EACCES", "ENOSYS", "killed"})
"""A filter's answers. Any other error means that the kernel looked at the arguments."""


@syscalls.check("seccomp")
async def dangerous_calls_are_refused(ground: Ground) -> None:
    told = (await ground.look(TRY))["calls"]
    through = {name: answer for name, answer in told.items() if answer not in REFUSALS}
    expect(not through, "system calls that widen the kernel's surface are refused", through)


@syscalls.check("seccomp")
async def unusual_socket_families_are_refused(ground: Ground) -> None:
    told = (await ground.look(TRY))["families"]
    made = [name for name, answer in told.items() if answer == "allowed"]
    expect(not made, "only the usual socket families can be made", made)


@syscalls.check("seccomp")
async def another_abi_is_no_way_round(ground: Ground) -> None:
    source = """
import ctypes, json, platform
libc = ctypes.CDLL(None, use_errno=True)
x32 = libc.syscall(ctypes.c_long(0x40000000 | 39)) if platform.machine() == 'x86_64' else -1
print(json.dumps(x32))
"""
    done = await ground.run(python(source))
    refused = done.stdout.strip() == b"-1" or done.ending.signal == signal.SIGSYS
    expect(refused, "the x32 numbers of system calls are refused, or end the process", done)
