"""Making, entering and sharing namespaces; mounting and unmounting."""

from __future__ import annotations

import asyncio

from skillyard.domain.sandbox.guarantees import Level
from skillyard.verify.attack import CONTAINED, Judgement, Need, broken, escaped, not_applicable
from skillyard.verify.judge import judged, told
from skillyard.verify.make import Family
from skillyard.verify.prelude import OWN_KERNEL
from skillyard.verify.yard import HEARTBEAT, Yard

FAMILY = Family("namespaces", walls=("seccomp",), invariants=(2, 3))

_KINDS = {
    "user": 0x10000000, "mnt": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000, "uts": 0x4000000,
    "cgroup": 0x2000000, "time": 0x80,
}  # fmt: skip

FAMILY.program(
    "new",
    "Make namespaces of every kind, alone and with a user namespace, by unshare, clone and clone3.",
    """
    for kind, flag in args["kinds"].items():
        for flags in (flag, flag | 0x10000000):
            call_refused("unshare", flags)
            if kind != "time":
                call_refused("clone", flags | 17, 0, 0, 0, 0)
                call_refused("clone", flags | 17 | 1 << 40, 0, 0, 0, 0)
            call_refused("clone3", (ctypes.c_uint64 * 11)(flags, 0, 0, 0, 17), 88)
            call_refused("clone3", (ctypes.c_uint64 * 8)(flags, 0, 0, 0, 17), 64)
    works("a plain child", lambda: in_child(lambda: "yes") == "yes")
    """,
    args={"kinds": _KINDS},
)

FAMILY.program(
    "enter",
    "Enter namespaces of init, of its parent and by pidfd; ask the kernel for the owners and parents of its own.",
    """
    import fcntl
    def other(fd, request):
        found = fcntl.ioctl(fd, request)
        if os.path.samestat(os.fstat(found), os.stat("/proc/self/ns/user")):
            raise PermissionError(errno.EPERM, "its own")
        return found
    kinds = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
    for kind in kinds if not OWN_KERNEL else [kind for kind in kinds if os.path.exists(f"/proc/self/ns/{kind}")]:
        for pid in (1, os.getppid()):
            must_fail(f"open {kind} of {pid}", os.open, f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
        own = works(f"open its own {kind}", os.open, f"/proc/self/ns/{kind}", os.O_RDONLY)
        for request, what in ((0xB701, "owner"), (0xB702, "parent")):
            must_fail(f"{what} of {kind}", other, own, request, refused=(*REFUSED, "EINVAL", "ENOTTY"))
        call_refused("setns", own, 0)
    for pid in (1, os.getpid()):
        fd = raw(NR["pidfd_open"], pid, 0)
        if isinstance(fd, int):
            call_refused("setns", fd, 0x7E020000)
    works("its own number", lambda: os.getpid() > 1)
    """,
    walls=("seccomp", "pid_namespace", "no_capabilities"),
)

FAMILY.program(
    "mount",
    "Mount file systems, move, rebind and remount what is there, by the old calls and the new ones.",
    """
    text = ctypes.create_string_buffer(b"tmpfs")
    for kind in (b"tmpfs", b"proc", b"sysfs", b"overlay", b"cgroup2", b"devpts", b"debugfs", b"fuse", b"ext4",
                 b"mqueue"):
        call_refused("mount", b"none", b"/tmp", kind, 0, 0)
        call_refused("fsopen", kind, 0)
    for flags in (4096, 4096 | 32, 32, 16384 | 1 << 18, 16384 | 1 << 20, 8192):
        call_refused("mount", b"/", b"/tmp", 0, flags, 0)
    for path in (b"/proc", b"/proc/sys", b"/proc/kcore", b"/dev/shm", b"/", b"/usr"):
        call_refused("umount2", path, 2)
        call_refused("mount", b"none", path, 0, 32 | 4096, 0)
    call_refused("open_tree", -100, b"/", 1)
    call_refused("open_tree", -100, b"/", 0)
    call_refused("move_mount", -100, b"/tmp", -100, b"/workspace", 0)
    call_refused("fsmount", -1, 0, 0)
    call_refused("fsconfig", -1, 0, 0, 0, 0)
    call_refused("fspick", -100, b"/", 0)
    call_refused("mount_setattr", -100, b"/", 0, ctypes.create_string_buffer(32), 32)
    call_refused("statmount", ctypes.create_string_buffer(64), ctypes.create_string_buffer(512), 512, 0)
    call_refused("listmount", ctypes.create_string_buffer(64), ctypes.create_string_buffer(512), 8, 0)
    call_refused("open_tree_attr", -100, b"/", 0, 0, 0)
    works("list a directory", os.listdir, "/usr/bin")
    """,
    walls=("seccomp",),
)

FAMILY.program(
    "root",
    "Change its root directory, and pivot to another.",
    """
    os.mkdir("/tmp/root")
    call_refused("chroot", b"/tmp/root")
    call_refused("chroot", b"/nowhere")
    call_refused("pivot_root", b"/tmp/root", b"/tmp/root")
    works("change directory", os.chdir, "/tmp/root")
    """,
    walls=("seccomp",),
)

FAMILY.program(
    "hostname",
    "Change the host's name and domain, and see the real one.",
    """
    call_refused("sethostname", b"verify", 6)
    call_refused("setdomainname", b"verify", 6)
    call_refused("sethostname", -1, 6)
    name = os.uname().nodename
    must_be("name by file", name, text_of("/proc/sys/kernel/hostname").strip() or name)
    works("ask for its name", socket.gethostname)
    """,
    walls=("seccomp", "no_capabilities", "uts_namespace"),
)

_LINKS = (
    f"import os, time\n{OWN_KERNEL}\n"
    + """
def main(args):
    if OWN_KERNEL:
        return {"own": True}
    space = os.readlink("/proc/self/ns/" + args["kind"])
    began = time.time()
    time.sleep(args["hold_s"])
    return {"space": space, "began": began, "ended": time.time()}
"""
)
_OWN = not_applicable("each sandbox has a kernel of its own, whose numbers tell nothing of another's")


def _shares(kind: str, wall: str) -> None:
    """A namespace's number is its own while it lives: two runs at once must see two."""

    async def steps(yard: Yard) -> Judgement:
        for hold_s in (0.3, 2.0):
            runs = await asyncio.gather(*(yard.run(_LINKS, {"kind": kind, "hold_s": hold_s}) for _ in range(2)))
            if not all(run.ok for run in runs):
                return broken("; ".join(told(run) for run in runs if not run.ok))
            one, two = (run.output for run in runs)
            if "own" in one and "own" in two:
                return _OWN
            if max(one["began"], two["began"]) < min(one["ended"], two["ended"]):
                return escaped(f"two runs share {one['space']}") if one["space"] == two["space"] else CONTAINED
        return broken("two runs were never at work at once")

    FAMILY.steps(
        f"shared-{kind}",
        f"Share the {kind} namespace of another run.",
        steps,
        walls=(wall,),
        invariants=(3,),
    )


for _kind, _wall in (
    ("user", "user_namespace"), ("mnt", "mount_namespace"), ("pid", "pid_namespace"), ("net", "net_namespace"),
    ("ipc", "ipc_namespace"), ("uts", "uts_namespace"), ("cgroup", "cgroup_namespace"),
):  # fmt: skip
    _shares(_kind, _wall)


async def _ids(yard: Yard) -> Judgement:
    """The second number of uid_map is the id outside, in a namespace that all sandboxes have in common; without a
    namespace the id is the same inside and outside."""
    code = (
        f"import os\n{OWN_KERNEL}\n"
        + """
import time
def main(args):
    if OWN_KERNEL:
        return {"own": True}
    began = time.time()
    time.sleep(args["hold_s"])
    try:
        outside = int(open("/proc/self/uid_map").read().split()[1]) or os.getuid()
    except PermissionError:
        outside = os.getuid() if args["bare"] else None
    return {"id": outside, "began": began, "ended": time.time()}
"""
    )
    bare = (await yard.run(HEARTBEAT, {"word": "who"})).raw.get("enforced", {}).get("user_namespace") == Level.MISSING
    for hold_s in (0.3, 2.0):
        runs = await asyncio.gather(*(yard.run(code, {"hold_s": hold_s, "bare": bare}) for _ in range(2)))
        if not all(run.ok for run in runs):
            return broken("; ".join(told(run) for run in runs if not run.ok))
        one, two = (run.output for run in runs)
        if "own" in one and "own" in two:
            return _OWN
        if max(one["began"], two["began"]) < min(one["ended"], two["ended"]):
            if one["id"] is None or two["id"] is None:
                return broken("the map of ids cannot be read")
            return escaped(f"two runs are the same user outside: {one['id']}") if one["id"] == two["id"] else CONTAINED
    return broken("two runs were never at work at once")


FAMILY.steps(
    "shared-uid", "Be the same user outside as another run at the same time.", _ids,
    walls=("own_uid",), invariants=(1, 3),
)  # fmt: skip


async def _host_name(yard: Yard) -> Judgement:
    import platform

    return judged(
        await yard.attack(
            """
            texts = {"uname": os.uname().nodename, "gethostname": socket.gethostname()}
            for path in ("/etc/hostname", "/etc/hosts", "/proc/sys/kernel/hostname", "/etc/machine-id"):
                try:
                    texts[path] = open(path).read()
                except OSError:
                    continue
            for where, text in texts.items():
                must_hold(f"{where} does not tell the host's name", args["node"] not in text.split())
            works("has a name", socket.gethostname)
            """,
            {"node": platform.node()},
        )
    )


FAMILY.steps(
    "host-name", "Learn the name of the host from the kernel and from files.", _host_name,
    walls=("uts_namespace",), invariants=(3,), needs=[Need.IN_PROCESS],
)  # fmt: skip
