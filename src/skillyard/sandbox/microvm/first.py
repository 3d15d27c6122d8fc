"""The first processes of a machine: scripts of busybox, and a static program.

The program gives the kernel fresh entropy and the time.

They are all that a snapshot holds. Interpreters start after a restored machine was given entropy of its own: their
hash seeds, canaries and addresses come from the kernel's generator. The program is a few system calls and
nothing else, since no tool of busybox credits entropy (random(4)), and an interpreter would be older than it.
"""

from __future__ import annotations

import struct
import time
from os import urandom

SEED_BYTES = 64
ORDER_PORT, CHANNEL_PORT = "skillyard.order", "skillyard.channel"
CHANNELS = 4
"""Channels that may be open at once."""
READY = b"ready\n"
PLACE = "/run/machine"
"""Our files in a machine: they come before the snapshot is made."""
MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "squashfs")

INIT = f"""#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
while read -r name; do insmod "/modules/$name" || echo "init: $name was not loaded"; done </modules/order
tries=0
until [ -b /dev/vda ] || [ $tries = 500 ]; do tries=$((tries + 1)); usleep 10000; done
mount -t squashfs -o ro,nodev /dev/vda /root || poweroff -f
tries=0
until [ $tries = 500 ]; do  # ports come one after another
    for port in /sys/class/virtio-ports/*; do
        [ "$(cat "$port/name" 2>/dev/null)" = {ORDER_PORT} ] && [ -c "/dev/${{port##*/}}" ] && break 2
    done
    tries=$((tries + 1))
    usleep 10000
done
[ $tries = 500 ] && poweroff -f
exec 0<>"/dev/${{port##*/}}" 1>&0
for name in dev proc sys; do mount --move /$name /root/$name; done
mount -t tmpfs -o mode=755,nodev,nosuid run /root/run
mount -t cgroup2 cgroup /root/sys/fs/cgroup
mkdir /root{PLACE}
cp /bin/busybox /root{PLACE}/
read -r size
head -c "$size" | tar -x -f - -C /root{PLACE} || poweroff -f
exec switch_root /root {PLACE}/busybox sh {PLACE}/second
"""
"""The script of the initial file system, in an image. All else of ours comes by the port ``skillyard.order``."""

SECOND = f"""b={PLACE}/busybox
$b hostname skillyard
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# What a sandbox looks for is in memory, and also that it is not there: else each look reads the disk.
$b find /etc /lib64 /usr/bin /usr/lib/locale /usr/lib/python3.* /usr/local/lib/python3.* -maxdepth 2 >/dev/null 2>&1
command -v python3 bash >/dev/null
$b cat $($b cat {PLACE}/warm) >/dev/null 2>&1
$b ln {PLACE}/guest.pyz /run/guest.pyz
# What depends on no sandbox is there before the snapshot; nobody is in it, and the interpreter that makes it ends.
run() {{
    exec python3 -I -S -c "
import sys
sys.path.insert(0, '{PLACE}')
from skillyard.sandbox.microvm import inside
inside.$1()"
}}
(run ahead >/dev/null) || $b poweroff -f
echo ready
tries=0
until {PLACE}/seed 3>/dev/urandom; do  # before the host is there, it reads nothing
    tries=$((tries + 1))
    [ $tries = 200 ] && $b poweroff -f
    $b usleep 20000
done
run main
"""
"""The script that waits in a snapshot: in ``seed``, for the first bytes of a sandbox."""

_BASE, _BUFFER = 0x400000, 0x401000
_READ, _IOCTL, _EXIT, _CLOCK_SETTIME = 0, 16, 60, 227
_RNDADDENTROPY, _RNDRESEEDCRNG = 0x40085203, 0x5207
_URANDOM = 3
_HEADERS = 64 + 56


def seed_message() -> bytes:
    """Returns the input of ``seed``: a struct rand_pool_info and a struct timespec."""
    now = time.time_ns()
    entropy = struct.pack("<ii", SEED_BYTES * 8, SEED_BYTES) + urandom(SEED_BYTES)
    return entropy + struct.pack("<qq", now // 10**9, now % 10**9)


def seed_program() -> bytes:
    """Returns the static program for x86-64.

    It reads :func:`seed_message` from descriptor 0, credits the entropy by descriptor 3 and has the kernel take it at
    once, sets the clock and exits. It fails where a call does not return what it should.
    """
    size = len(seed_message())
    calls = [
        (_READ, 0, _BUFFER, size, size),
        (_IOCTL, _URANDOM, _RNDADDENTROPY, _BUFFER, 0),
        (_IOCTL, _URANDOM, _RNDRESEEDCRNG, 0, 0),
        (_CLOCK_SETTIME, 0, _BUFFER + 8 + SEED_BYTES, 0, 0),
        (_EXIT, 0, 0, 0, 0),
    ]
    pieces = [_call(*call) for call in calls]
    fail = _words(_EXIT, 1, 0, 0)
    left = sum(len(piece) + _JUMP for piece in pieces)
    code = b""
    for piece in pieces:
        left -= len(piece) + _JUMP
        code += piece + struct.pack("<BBi", 0x0F, 0x85, left)  # jne fail
    return _headers(len(code + fail)) + code + fail


_JUMP = 6


def _words(number: int, first: int, second: int, third: int) -> bytes:
    """Returns ``mov`` of a call's number and arguments, and ``syscall``."""
    moves = ((0xB8, number), (0xBF, first), (0xBE, second), (0xBA, third))
    return b"".join(struct.pack("<BI", *move) for move in moves) + b"\x0f\x05"


def _call(number: int, first: int, second: int, third: int, wanted: int) -> bytes:
    """Returns a call, and ``cmp eax`` with the result that it should have."""
    return _words(number, first, second, third) + struct.pack("<BI", 0x3D, wanted)


def _headers(size: int) -> bytes:
    """Returns the headers of a static program with one segment (elf(5))."""
    entry, whole = _BASE + _HEADERS, _HEADERS + size
    head = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, entry, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 7, 0, _BASE, _BASE, whole, _BUFFER - _BASE + 4096, 4096)
    return head + segment
