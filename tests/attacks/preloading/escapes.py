"""Packages that are imported ahead to get out of the sandbox: each leaves its mark in a directory of the host's that
whoever gets out can write to, and that every sandbox shows read-only."""

from __future__ import annotations

MARK = "was-here"

_TOOLS = """
import ctypes, os, socket, sys, threading, time
here = os.path.dirname(__file__)
kernel = sys.modules['skillyard.sandbox.native.linux.kernel']
walls = sys.modules['skillyard.sandbox.native.inside.walls']
libc = ctypes.CDLL(None, use_errno=True)
become_nobody, clone = walls._become_nobody, kernel.clone

def mount(source, target, flags=4096):
    return libc.mount(source.encode(), target.encode(), None, flags, None)

def leave_marks(*places):
    end = time.monotonic() + 3
    while time.monotonic() < end:
        for place in places:
            try:
                open(place + '/MARK', 'x').close()
            except OSError:
                pass
        time.sleep(0.0005)

def before_nobody(act):
    def spoiled(spec):
        act()
        become_nobody(spec)
    walls._become_nobody = spoiled

def helper(act, *args, leave=lambda: None):
    if os.fork() == 0:
        leave()
        act(*args)
        os._exit(0)
"""

_OVER = """
def act():
    mount(here, {target!r})
    helper(leave_marks, {marked!r})
before_nobody(act)
"""

SOURCES = {
    "over_skills": _OVER.format(target="/skills", marked="/skills"),
    "over_blobs": _OVER.format(target="/blobs", marked="/blobs"),
    "over_run": (  # the file of certificates has a place below
        "def act():\n"
        "    mount(here, '/run')\n"
        "    mount(here, '/run/egress')\n"
        "    helper(leave_marks, '/run', '/run/egress')\n"
        "before_nobody(act)\n"
    ),
    "over_before": (  # in the zygote, so that every sandbox has it
        "mount(here, '/skills')\nbefore_nobody(lambda: helper(leave_marks, '/skills'))\nwalls.SHOWN.pop('skills')\n"
    ),
    "by_thread": (
        "def act():\n"
        "    mount(here, '/skills')\n"
        "    threading.Thread(target=leave_marks, args=('/skills',), daemon=True).start()\n"
        "before_nobody(act)\n"
    ),
    "by_stranger": (  # a process of the zygote's pid namespace makes the sandbox, and stays in its mount namespace
        "def make(flags, *, cgroup=-1):\n"
        "    ours, theirs = socket.socketpair()\n"
        "    if clone(kernel.CLONE_PARENT)[0] == 0:\n"
        "        kernel.unshare(kernel.CLONE_NEWNS)\n"
        "        mount(here, '/skills')\n"
        "        pid, fd = clone(flags & ~kernel.CLONE_NEWNS, cgroup=cgroup)\n"
        "        if pid == 0:\n"
        "            return 0, -1\n"
        "        socket.send_fds(theirs, [str(pid).encode()], [fd])\n"
        "        leave_marks('/skills')\n"
        "        os._exit(0)\n"
        "    said, fds, _, _ = socket.recv_fds(ours, 100, 1)\n"
        "    return int(said), fds[0]\n"
        "kernel.clone = make\n"
    ),
    "by_stranger_thread": (  # the same by a thread of the zygote itself
        "def make(flags, *, cgroup=-1):\n"
        "    made, ready = [], threading.Event()\n"
        "    def work():\n"
        "        kernel.unshare(kernel.CLONE_NEWNS)\n"
        "        mount(here, '/skills')\n"
        "        made.extend(clone(flags & ~kernel.CLONE_NEWNS, cgroup=cgroup))\n"
        "        ready.set()\n"
        "        if made[0]:\n"
        "            leave_marks('/skills')\n"
        "    thread = threading.Thread(target=work, daemon=True)\n"
        "    thread.start()\n"
        "    ready.wait()\n"
        "    return made[0], made[1]\n"
        "kernel.clone = make\n"
    ),
    "by_orphan": (  # in the sandbox's pid namespace, and nobody's child there
        "def act():\n    mount(here, '/skills')\n    helper(helper, leave_marks, '/skills')\nbefore_nobody(act)\n"
    ),
    "by_heirs": (  # which have another pid at each look
        "def flee():\n"
        "    end = time.monotonic() + 5\n"
        "    while time.monotonic() < end:\n"
        "        try:\n"
        "            open('/skills/MARK', 'x').close()\n"
        "        except OSError:\n"
        "            pass\n"
        "        if os.fork():\n"
        "            os._exit(0)\n"
        "    os._exit(0)\n"
        "def act():\n"
        "    mount(here, '/skills')\n"
        "    helper(flee)\n"
        "before_nobody(act)\n"
    ),
    "by_root": (  # through the eyes of the sandbox's processes, from the zygote's pid namespace
        "if clone(kernel.CLONE_PARENT)[0] == 0:\n"
        "    end = time.monotonic() + 3\n"
        "    while time.monotonic() < end:\n"
        "        for name in filter(str.isdigit, os.listdir('/proc')):\n"
        "            for place in ('/skills', '/skills/shown', here):\n"
        "                try:\n"
        "                    open(f'/proc/{name}/root{place}/MARK', 'x').close()\n"
        "                except OSError:\n"
        "                    pass\n"
        "    os._exit(0)\n"
    ),
    "by_flags": (  # of what it was given, by every call that changes mounts
        "tried = [mount(here, here), mount('none', here, 32 | 4096), mount('none', here, 32 | 4096 | 2)]\n"
        "mount(here, '/workspace')\n"
        "tried += [mount('none', '/workspace', 32 | 4096), mount('none', '/workspace', 32 | 4096 | 1)]\n"
        "for call in (428, 442, 429, 433, 308, 101, 438):\n"
        "    libc.syscall(call, -100, here.encode(), 0, (ctypes.c_uint64 * 4)(0, 1, 0, 0), 32)\n"
        "leave = leave_marks\n"
        "for place in (here, '/workspace'):\n"
        "    try:\n"
        "        open(place + '/MARK', 'x').close()\n"
        "    except OSError:\n"
        "        pass\n"
    ),
}
SOURCES |= {  # each leaves one trace only
    "only_binds": "before_nobody(lambda: mount(here, '/skills'))\n",
    "only_helps": "before_nobody(lambda: helper(leave_marks, '/skills', '/skills/shown'))\n",
    "only_stays": SOURCES["by_stranger"].replace("        mount(here, '/skills')\n", ""),
    "only_shares_disk": (
        "def act():\n"
        "    for place in ('/workspace', '/tmp', '/dev/shm'):\n"
        "        kernel.mount('box', place, 'tmpfs', 6, 'mode=0777')\n"
        "before_nobody(act)\n"
    ),
    "only_widens": "walls.limits = lambda spec: ()\n",
}
SOURCES = {name: (_TOOLS + source).replace("MARK", MARK) for name, source in SOURCES.items()}

MAPS = "mapped = [[int(word) for word in line.split()] for line in open('/proc/self/uid_map')]\n"

UNCOVERS = (  # what is mounted over the host's own packages, and what is over other things
    "import ctypes, os\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "points = [line.split()[4] for line in open('/proc/self/mountinfo')]\n"
    "uncovered = [point for point in points if point not in ('/', '/workspace', '/tmp', '/dev/shm')\n"
    "             and libc.umount2(point.encode(), 2) == 0]\n"
    "moved = [point for point in points if point not in ('/', '/workspace', '/tmp', '/dev/shm')\n"
    "         and libc.mount(point.encode(), b'/workspace', None, 8192, None) == 0]\n"
)
