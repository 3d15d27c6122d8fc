"""Attacks by writing outside of a sandbox's own places, and by special files."""

from __future__ import annotations

from skillyard.testing.attacks.attack import Family

WRITING = Family("writing", walls=("read_only_root", "landlock", "mount_namespace"), invariants=(4,))

WRITING.program(
    "everywhere",
    "Make a file in every directory that can be seen, and where libraries load from; open files for writing.",
    """
    import sysconfig
    own = ("/workspace", "/tmp", "/dev/shm", "/proc")
    devices = {"/dev/" + name for name in ("null", "zero", "full", "random", "urandom", "tty")}
    devices |= {"/dev/pts/ptmx"} if OWN_KERNEL else set()  # terminals of its own kernel
    tops = ("/",) if listed("/") else ("/usr", "/etc", "/var", "/run", "/root", "/home", "/opt", "/srv",
                                           "/usr/bin", "/usr/lib", os.path.dirname(os.__file__))
    count, until = 0, time.monotonic() + 12
    for top, names, files in (found for start in tops for found in os.walk(start)):
        names[:] = [n for n in names if os.path.join(top, n) not in own and top + n not in own]
        count += 1
        place = os.path.join(top, "verify-probe")
        try:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except OSError:
            pass
        else:
            got.append(f"made {place}")
            os.unlink(place)
        if not top.startswith("/usr/"):
            for name in files:
                path = os.path.join(top, name)
                if path in devices or os.path.islink(path):
                    continue
                try:
                    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                except OSError:
                    continue
                got.append(f"opened {path}")
        if time.monotonic() > until:
            break
    tried.append("everywhere")
    works("there were directories", lambda: count > 0)
    for place in ("/etc/ld.so.preload", "/etc/ld.so.conf.d/verify.conf", sysconfig.get_path("purelib") + "/evil.pth",
                  os.path.dirname(os.__file__) + "/sitecustomize.py", "/run/empty/json.py", "/run/box/json.py"):
        must_fail(place, os.open, place, os.O_CREAT | os.O_WRONLY, refused=(*REFUSED, "ENOTDIR"))
    for place in ("/workspace", "/tmp", "/dev/shm"):
        works(f"write in {place}", lambda: open(f"{place}/verify-probe", "w").close())
    """,
)

WRITING.program(
    "names",
    "Rename, link, remove, make directories and temporary files outside its own places.",
    """
    open("/tmp/mine", "w").close()
    for place in ("/", "/usr", "/usr/bin", "/etc", "/dev", "/opt", "/run", "/var/tmp", "/skills", "/blobs"):
        must_fail(f"mkdir in {place}", os.mkdir, f"{place}/verify-probe")
        must_fail(f"rename into {place}", os.rename, "/tmp/mine", f"{place}/verify-probe")
        must_fail(f"symlink in {place}", os.symlink, "/tmp/mine", f"{place}/verify-probe")
        must_fail(f"fifo in {place}", os.mkfifo, f"{place}/verify-probe")
        must_fail(f"nameless file in {place}", os.open, place, os.O_TMPFILE | os.O_WRONLY,
                  refused=(*REFUSED, "EISDIR"))
    for path in ("/etc/hosts", "/usr/bin/env", "/etc/ld.so.cache", "/bin/sh"):
        must_fail(f"unlink {path}", os.unlink, path)
        must_fail(f"truncate {path}", os.truncate, path, 0)
        must_fail(f"rename {path}", os.rename, path, "/tmp/taken")
        must_fail(f"link {path}", os.link, path, "/tmp/linked")
    works("rename at home", os.rename, "/tmp/mine", "/tmp/yours")
    """,
)

WRITING.program(
    "metadata",
    "Change modes, owners, times and attributes of files and devices that it shares with the host.",
    """
    devices = () if OWN_KERNEL else ("/dev/null", "/dev/urandom")  # nobody else's there
    for path in ("/etc/hosts", "/usr/bin/env", "/usr", "/", *devices):
        must_fail(f"mode of {path}", os.chmod, path, 0o666)
        must_fail(f"owner of {path}", os.chown, path, os.getuid(), os.getgid(), refused=(*REFUSED, "EINVAL"))
        must_fail(f"times of {path}", os.utime, path)
        must_fail(f"set times of {path}", os.utime, path, (1, 1))
        must_fail(f"attribute of {path}", os.setxattr, path, "user.verify", b"x")
    null = os.open("/dev/null", os.O_WRONLY)
    if devices:
        must_fail("times by descriptor", os.utime, null)
    works("write to /dev/null", os.write, null, b"x")
    works("create over /dev/null", lambda: open("/dev/null", "w").close())
    open("/tmp/mine", "w").close()
    try:
        os.chown("/tmp/mine", 0, 0)
    except OSError:
        pass
    must_hold("its own file is not given to root", os.stat("/tmp/mine").st_uid != 0)
    works("times at home", os.utime, "/tmp/mine")
    """,
    walls=("read_only_root", "mount_namespace", "user_namespace"),
)

WRITING.program(
    "shared-memory",
    "Write into shared files through memory mappings and through descriptors opened for reading.",
    """
    import fcntl
    path = os.path.realpath(sys.executable)
    fd = os.open(path, os.O_RDONLY)
    for flags, how in ((mmap.MAP_SHARED, "shared mapping"), (mmap.MAP_SHARED | 0x02, "validated mapping")):
        must_fail(how, lambda: mmap.mmap(fd, 4096, flags, mmap.PROT_READ | mmap.PROT_WRITE),
                  refused=(*REFUSED, "EINVAL") if OWN_KERNEL else REFUSED)  # older than MAP_SHARED_VALIDATE
    must_fail("reopen for writing by /proc/self/fd", os.open, f"/proc/self/fd/{fd}", os.O_WRONLY,
              refused=(*REFUSED, "ETXTBSY"))
    must_fail("write to a descriptor for reading", os.write, fd, b"x", refused=("EBADF",))
    must_fail("punch a hole", os.posix_fallocate, fd, 0, 4096, refused=(*REFUSED, "EBADF"))
    must_fail("make it append", lambda: (fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND), os.write(fd, b"x"))[1],
              refused=("EBADF",))
    view = mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ)
    at = ctypes.addressof(ctypes.c_char.from_buffer_copy(view))
    works("map for reading", lambda: view[:4])
    """,
)

SPECIAL = Family("special-files", walls=("no_capabilities", "landlock", "user_namespace"), invariants=(2, 3, 4))

SPECIAL.program(
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

SPECIAL.program(
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

SPECIAL.program(
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

SPECIAL.program(
    "set-user-id",
    "Become another user by a set-user-id copy of the interpreter and by those of the host.",
    """
    import shutil, subprocess
    ask = "import os; print(os.getresuid(), os.getresgid())"
    mine = f"{os.getresuid()} {os.getresgid()}"
    def ids(path):
        try:
            return subprocess.run([path, "-I", "-S", "-c", ask], capture_output=True, text=True).stdout.strip() or mine
        except PermissionError:  # nothing is executed there (noexec)
            return mine
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

SPECIAL.program(
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

SPECIAL.program(
    "links",
    "Plant links that a careless server would follow: out of /workspace, to descriptors, in place of a blob.",
    """
    for number, target in enumerate(("/etc/shadow", "/proc/1/environ", "/proc/self/fd/3", "/proc/1/root/etc/passwd",
                                     "../../../../root", "/dev/mem")):
        os.symlink(target, f"/workspace/link{number}")
        must_fail(f"read through a link to {target}", lambda: open(f"/workspace/link{number}", "rb").read(16),
                  refused=(*REFUSED, "EISDIR"))
    os.symlink("/etc/hosts", "/tmp/to-hosts")
    must_fail("write through a link", os.open, "/tmp/to-hosts", os.O_WRONLY)
    must_fail("link a file of root's", os.link, "/etc/hosts", "/tmp/hosts")
    must_fail("link a descriptor's file", lambda: os.link(f"/proc/self/fd/{os.open('/etc/hosts', 0)}", "/tmp/hosts2",
              follow_symlinks=True))
    works("a link of its own", lambda: (os.symlink("/workspace/to", "/workspace/from"), os.lstat("/workspace/from")))
    """,
    walls=("mount_namespace", "landlock"),
)
