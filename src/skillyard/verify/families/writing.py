"""Writing anywhere but in /workspace, /tmp and /dev/shm."""

from __future__ import annotations

from skillyard.verify.make import Family

FAMILY = Family("writing", walls=("read_only_root", "landlock", "mount_namespace"), invariants=(4,))

FAMILY.program(
    "everywhere",
    "Make a file in every directory that can be seen, and open every file in the small ones for writing.",
    """
    own = ("/workspace", "/tmp", "/dev/shm", "/proc")
    devices = {"/dev/" + name for name in ("null", "zero", "full", "random", "urandom", "tty")}
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
    for place in ("/workspace", "/tmp", "/dev/shm"):
        works(f"write in {place}", lambda: open(f"{place}/verify-probe", "w").close())
    """,
)

FAMILY.program(
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

FAMILY.program(
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
    works("times at home", os.utime, "/tmp/mine")
    """,
    walls=("read_only_root", "mount_namespace", "user_namespace"),
)

FAMILY.program(
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

FAMILY.program(
    "libraries",
    "Poison what every later process loads: bytecode caches, loader configuration, site and user customisation.",
    """
    import importlib.util, json, sysconfig
    places = [os.path.dirname(json.__file__) + "/__pycache__", sysconfig.get_path("stdlib"),
              sysconfig.get_path("purelib"), "/etc/ld.so.conf.d", "/usr/lib/python3/dist-packages", "/opt/skillyard",
              "/usr/local/lib", os.path.dirname(os.path.realpath(sys.executable)), "/run/empty", "/run/box", "/run"]
    for place in places:
        for name in ("sitecustomize.py", "evil.pth", "json.py"):
            must_fail(f"{place}/{name}", os.open, f"{place}/{name}", os.O_CREAT | os.O_WRONLY,
                      refused=(*REFUSED, "ENOTDIR"))
    must_fail("preload", os.open, "/etc/ld.so.preload", os.O_CREAT | os.O_WRONLY)
    works("a module at home", lambda: open("/workspace/mine.py", "w").close())
    """,
    invariants=(4, 8),
)
