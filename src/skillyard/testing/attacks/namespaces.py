"""Attacks to make, enter and share namespaces, and to mount and unmount."""

from __future__ import annotations

import platform

from skillyard.domain.sandbox.guarantees import OWN_KERNEL, Level
from skillyard.testing.attacks.attack import CONTAINED, Family, Judgement, Need, Place, escaped, judged, not_applicable

NAMESPACES = Family("namespaces", walls=("seccomp",), invariants=(2, 3))

_KINDS = {
    "user": 0x10000000, "mnt": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000, "uts": 0x4000000,
    "cgroup": 0x2000000, "time": 0x80,
}  # fmt: skip

NAMESPACES.program(
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

NAMESPACES.program(
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
    walls=("seccomp", "pid_namespace"),
)

NAMESPACES.program(
    "mount",
    "Mount, move, rebind and remount file systems, by the old calls and the new ones; change the root directory.",
    """
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
    os.mkdir("/tmp/root")
    call_refused("chroot", b"/tmp/root")
    call_refused("chroot", b"/nowhere")
    call_refused("pivot_root", b"/tmp/root", b"/tmp/root")
    works("change directory", os.chdir, "/tmp/root")
    """,
    walls=("seccomp",),
)

NAMESPACES.program(
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

_HOLD = """
began = time.time()
time.sleep(args["hold_s"])
if OWN_KERNEL:
    held = "its own"
elif args["kind"]:
    held = os.readlink("/proc/self/ns/" + args["kind"])
else:
    try:  # in a namespace that all sandboxes have in common, the second number is the id outside
        held = int(open("/proc/self/uid_map").read().split()[1]) or os.getuid()
    except PermissionError:
        held = os.getuid() if level("user_namespace") == "missing" else None
works("it is told", lambda: held is not None)
return {"held": held, "own": OWN_KERNEL, "began": began, "ended": time.time(), "wrong": wrong}
"""
"""Tells the number of a namespace, which is its own while it lives, or the user id outside."""


def _shares(name: str, tries: str, kind: str, wall: str, invariants: tuple[int, ...]) -> None:
    async def steps(place: Place) -> Judgement:
        one, two = await place.at_once(_HOLD, {"kind": kind}, {"kind": kind})
        if (one["own"] and two["own"]) or place.enforced.get(OWN_KERNEL) == Level.KERNEL:
            return not_applicable("each sandbox has a kernel of its own, whose numbers tell nothing of another's")
        return escaped(f"two runs share {one['held']}") if one["held"] == two["held"] else CONTAINED

    NAMESPACES.steps(name, tries, steps, walls=(wall,), invariants=invariants)


for _kind, _wall in (
    ("user", "user_namespace"), ("mnt", "mount_namespace"), ("pid", "pid_namespace"), ("net", "net_namespace"),
    ("ipc", "ipc_namespace"), ("uts", "uts_namespace"), ("cgroup", "cgroup_namespace"),
):  # fmt: skip
    _shares(f"shared-{_kind}", f"Share the {_kind} namespace of another run.", _kind, _wall, (3,))
_shares("shared-uid", "Be the same user outside as another run at the same time.", "", "own_uid", (1, 3))


async def _host_name(place: Place) -> Judgement:
    return judged(
        await place.attack(
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


NAMESPACES.steps(
    "host-name", "Learn the name of the host from the kernel and from files.", _host_name,
    walls=("uts_namespace",), invariants=(3,), needs=[Need.IN_PROCESS],
)  # fmt: skip
