"""Links, devices, set-user-id files and other special files."""

from __future__ import annotations

from skillyard.verify.make import Family

FAMILY = Family("special-files", walls=("no_capabilities", "landlock", "user_namespace"), invariants=(2, 3, 4))

FAMILY.program(
    "devices",
    "Make and open device nodes for disks, memory, terminals and the kernel's log.",
    """
    import stat
    for kind, major, minor in (("b", 8, 0), ("b", 254, 0), ("b", 259, 0), ("c", 1, 1), ("c", 1, 2), ("c", 1, 11),
                               ("c", 5, 2), ("c", 10, 229), ("c", 10, 232), ("c", 4, 64)):
        mode = (stat.S_IFBLK if kind == "b" else stat.S_IFCHR) | 0o666
        for place in ("/tmp", "/workspace", "/dev/shm"):
            path = f"{place}/node-{kind}-{major}-{minor}"
            tried.append(path)
            try:
                os.mknod(path, mode, os.makedev(major, minor))
            except OSError:
                continue
            must_fail(f"open {path}", os.open, path, os.O_RDONLY | os.O_NONBLOCK)
    works("a plain node", os.mknod, "/tmp/plain", stat.S_IFREG | 0o600)
    """,
    walls=("no_capabilities", "landlock", "mount_namespace", "user_namespace"),
)

FAMILY.program(
    "host-devices",
    "Open the host's devices: memory, disks, terminals, kvm, fuse, tun, the kernel's log.",
    """
    for name in ("mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "loop0", "loop-control", "kvm", "fuse",
                 "net/tun", "ptmx", "pts/ptmx", "tty", "console", "tty0", "ttyS0", "vsock", "vhost-net", "userfaultfd",
                 "mapper/control", "snapshot", "btrfs-control", "cuse", "uinput", "dri/card0", "nvidia0", "mqueue",
                 "hugepages", "cpu_dma_latency", "rtc0", "watchdog", "hpet", "autofs", "vfio/vfio", "udmabuf"):
        if not (OWN_KERNEL and name in ("ptmx", "pts/ptmx", "tty")):  # terminals of its own kernel
            must_fail(f"open /dev/{name}", os.open, f"/dev/{name}", os.O_RDWR | os.O_NONBLOCK,
                      refused=(*REFUSED, "EISDIR"))  # mqueue of a container, where there is no root of our own
    works("open /dev/urandom", os.open, "/dev/urandom", os.O_RDONLY)
    """,
    walls=("mount_namespace", "landlock"),
)

FAMILY.program(
    "sysfs",
    "Reach the kernel through sysfs, debugfs, tracefs, cgroupfs, bpffs and securityfs.",
    """
    for path in ("/sys", "/sys/kernel") if not OWN_KERNEL else ():  # its own kernel has fixed names there
        must_fail(f"list {path}", os.listdir, path)
    for path in ("/sys/fs/cgroup", "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/fs/bpf",
                 "/sys/kernel/security", "/sys/firmware", "/sys/class/net", "/sys/block", "/proc/fs", "/dev/cgroup"):
        if OWN_KERNEL or path == "/proc/fs":
            must_be(path, [], [name for name in listed(path) if name != "lo"])
        else:
            must_fail(f"list {path}", os.listdir, path)
    works("list /usr/bin", os.listdir, "/usr/bin")
    """,
    walls=("mount_namespace", "landlock"),
)

FAMILY.program(
    "set-user-id",
    "Become another user by a set-user-id copy of the interpreter and by those of the host.",
    """
    import shutil, subprocess
    ask = "import os; print(os.getresuid(), os.getresgid())"
    mine = f"{os.getresuid()} {os.getresgid()}"
    def ids(path):
        done = subprocess.run([path, "-I", "-S", "-c", ask], capture_output=True, text=True)
        return done.stdout.strip() or mine
    works("the interpreter itself", lambda: ids(sys.executable) == mine)
    for place in ("/tmp", "/workspace", "/dev/shm"):
        copy = f"{place}/python"
        with open(os.path.realpath(sys.executable), "rb") as python, \
                open(copy, "wb", opener=lambda path, flags: os.open(path, flags, 0o700)) as file:
            shutil.copyfileobj(python, file)
        for mode in (0o4755, 0o2755, 0o6755):
            os.chmod(copy, mode)
            must_be(f"{oct(mode)} in {place}", mine, ids(copy))
    found = [path for place in ("/usr/bin", "/usr/sbin", "/usr/libexec", "/usr/lib/openssh")
             if os.path.isdir(place) for path in (os.path.join(place, name) for name in os.listdir(place))
             if os.path.isfile(path) and os.stat(path).st_mode & 0o6000]
    for path in found[:12]:
        tried.append(path)
        child = os.posix_spawn(path, [path], {}, file_actions=[(os.POSIX_SPAWN_OPEN, n, "/dev/null", os.O_RDWR, 0)
                               for n in (0, 1, 2)]) if os.access(path, os.X_OK) else 0
        if child:
            try:
                status = open(f"/proc/{child}/status").read()
                if "\\nUid:\\t0" in status or "\\nGid:\\t0" in status:
                    got.append(f"{path} runs as root")
            except OSError:
                pass
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    """,
    walls=("no_new_privs", "user_namespace", "mount_namespace"),
    invariants=(1, 2),
)

FAMILY.program(
    "capabilities-in-files",
    "Give a program capabilities by its extended attribute, and use those that the host's programs have.",
    """
    import subprocess
    open("/tmp/program", "wb").close()
    must_fail("set security.capability", os.setxattr, "/tmp/program", "security.capability",
              struct.pack("<5I", 0x02000001, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0))
    ask = ("import ctypes, struct; c = ctypes.CDLL(None); sets = ctypes.create_string_buffer(24); "  # capget(2)
           "print(c.capget(struct.pack('Ii', 0x20080522, 0), sets), "
           "[n for n in range(64) if c.prctl(23, n, 0, 0, 0) == 1], sets.raw.hex(), sep='|')")
    done = subprocess.run([sys.executable, "-I", "-S", "-c", ask], capture_output=True, text=True)
    told = done.stdout.strip().split("|")
    works("ask a program for its capabilities", lambda: len(told) == 3 and told[0] == "0")
    if may_bound():
        must_be("bounding set of a program", "[]", told[1] if told[1:] else "[]")
    must_be("capabilities of a program", "00" * 24, told[-1] if told else "00" * 24)
    """,
    walls=("no_capabilities", "seccomp"),
    invariants=(2,),
)

FAMILY.program(
    "links",
    "Plant links that a careless server would follow: out of /workspace, to descriptors, in place of a blob.",
    """
    for number, target in enumerate(("/etc/shadow", "/proc/1/environ", "/proc/self/fd/3", "/proc/1/root/etc/passwd",
                                     "../../../../root", "/dev/mem")):
        os.symlink(target, f"/workspace/link{number}")
        must_fail(f"read through a link to {target}", lambda: open(f"/workspace/link{number}", "rb").read(16),
                  refused=(*REFUSED, "EISDIR"))
    must_fail("link a file of root's", os.link, "/etc/hosts", "/tmp/hosts")
    must_fail("link a descriptor's file", lambda: os.link(f"/proc/self/fd/{os.open('/etc/hosts', 0)}", "/tmp/hosts2",
              follow_symlinks=True))
    works("a link of its own", lambda: (os.symlink("/workspace/to", "/workspace/from"), os.lstat("/workspace/from")))
    """,
    walls=("mount_namespace", "landlock"),
)
