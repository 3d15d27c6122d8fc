"""Attacks on the host's files and on what /proc tells of the host, of init and of others."""

from __future__ import annotations

import platform

from skillyard.testing.attacks.attack import Family, Judgement, Need, Place, judged

FILES = Family("files", walls=("mount_namespace", "landlock"), invariants=(3,))

FILES.program(
    "places",
    "Read what hosts keep their secrets in: /root, /home, /etc/shadow, logs, keys, other mounts.",
    """
    def names(path):
        # without those that lead to the interpreter, which is shown wherever it lies
        lead = [part + "/" for part in (sys.base_prefix, sys.base_exec_prefix)]
        found = [name for name in os.listdir(path) if not any(f"{part}/".startswith(os.path.join(path, name) + "/")
                 for part in lead)]
        found = [name for name in found if os.path.realpath(f"{path}/{name}") != "/workspace"]  # its own files
        if not found:
            raise FileNotFoundError(errno.ENOENT, "empty")
        return found
    for path in ("/root", "/home", "/boot", "/srv", "/mnt", "/media", "/var/log", "/var/lib", "/var/run", "/var/spool",
                 "/etc/ssl/private", "/etc/ssh", "/lost+found", "/run/user", "/run/secrets", "/run/systemd"):
        must_fail(f"list {path}", names, path)
    for path in ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/machine-id", "/etc/fstab", "/var/run/docker.sock",
                 "/root/.ssh/id_rsa", "/root/.bash_history", "/etc/ssh/ssh_host_ed25519_key", "/.dockerenv"):
        must_fail(f"read {path}", lambda path: open(path, "rb").read(64), path)
    works("read a file of the interpreter", lambda: open(os.__file__, "rb").read(64))
    """,
)

FILES.program(
    "search",
    "Walk the whole tree for private keys, databases, sockets, pipes and devices.",
    """
    import stat
    wanted = {"id_rsa", "id_ed25519", "authorized_keys", ".env", ".netrc", ".pgpass", "shadow", "skillyard.db",
              "secrets.sealed", "tokens.json", "keeper.sock", "keeper.lock", "docker.sock", ".bash_history"}
    own = {"/workspace", "/tmp", "/dev/shm", "/proc", "/sys", "/var/tmp"}
    devices = {"/dev/" + name for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "console")}
    devices |= {"/dev/pts/ptmx"} if OWN_KERNEL else set()  # terminals of its own kernel
    seen = 0
    tops = ("/",) if listed("/") else ("/usr", "/etc", "/var", "/run", "/root", "/home", "/opt", "/srv",
                                           "/usr/bin", "/usr/lib", os.path.dirname(os.__file__))
    until = time.monotonic() + 12
    for top, names, files in (found for start in tops for found in os.walk(start)):
        names[:] = [name for name in names if os.path.join(top, name) not in own]
        for name in files:
            path = os.path.join(top, name)
            seen += 1
            if name in wanted:
                must_fail(path, lambda path: open(path, "rb").read(1), path)
            elif not top.startswith("/usr/share"):
                try:
                    mode = os.lstat(path).st_mode
                except OSError:
                    continue
                if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)) and path not in devices:
                    must_fail(path, os.open, path, os.O_RDONLY | os.O_NONBLOCK)
        if time.monotonic() > until:
            break
    tried.append("search")
    works("something was there to search", lambda: seen > 0)
    """,
)

FILES.program(
    "climbing",
    "Leave the root by .., by /proc/self/root, by open directories and by descriptors of mounts.",
    """
    top = os.open("/", os.O_PATH)
    for _ in range(8):
        up = os.open("..", os.O_PATH, dir_fd=top)
        os.close(top)
        top = up
    must_hold(".. above / is /", os.path.samestat(os.fstat(top), os.stat("/")))
    for way in ("/proc/self/root/../../..", "/proc/thread-self/root/..", "/proc/self/cwd/../../../../..",
                f"/proc/self/fd/{top}/..", "/proc/1/root", "/proc/1/cwd/..", "/dev/fd/../../root"):
        for place in ("var/log", "etc/shadow", "boot", "var/lib/dpkg"):
            must_fail(f"{way}/{place}", lambda path: os.listdir(path) if os.path.isdir(path) else open(path).read(1),
                      f"{way}/{place}")
    must_fail("fchdir of a directory above", lambda: (os.fchdir(top), os.listdir("../var/log"))[1])
    os.chdir("/workspace")
    works("climb inside", os.stat, "/workspace/../workspace")
    """,
)


async def _stores(place: Place) -> Judgement:
    return judged(
        await place.attack(
            """
            for path in args["paths"]:
                must_fail(f"list {path}", os.listdir, path, refused={*REFUSED, "ENOTDIR"})
                must_fail(f"read {path}", lambda: open(path, "rb").read(64))
                must_not_become(f"change {path}", lambda: os.utime(path, (1, 1)), lambda: os.stat(path).st_mtime == 1)
                must_fail(f"reach {path} by the root of init", os.stat, "/proc/1/root" + path)
                must_fail(f"reach {path} by the root of the parent", os.stat, f"/proc/{os.getppid()}/root{path}")
            works("a place of its own", os.listdir, "/workspace")
            """,
            {"paths": [*place.hidden]},
        )
    )


FILES.steps(
    "stores", "Read and change the server's data directory, database, blobs, tokens and socket by their paths.",
    _stores, needs=[Need.IN_PROCESS], invariants=(3, 4),
)  # fmt: skip

FILES.program(
    "packages",
    "Import the server's own packages and find its source through the interpreter's search paths.",
    """
    import importlib
    for name in ("skillyard.config.settings", "skillyard.engine", "uvicorn", "starlette", "structlog", "pip",
                 "pydantic", "cryptography", "httpx2", "jsonschema_rs", "yaml", "pytest"):
        tried.append(name)
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        got.append(f"{name} from {module.__file__}")
    import sysconfig
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), "/usr/lib/python3/dist-packages"}:
        found = set(listed(place)) & {"skillyard", "uvicorn", "starlette", "pip", "apt"}
        must_be(f"the server's packages in {place}", set(), found)
    works("import what belongs to Python", importlib.import_module, "json")
    """,
    walls=("mount_namespace",),
)

PROC = Family("proc", walls=("private_proc",), invariants=(3,))

PROC.program(
    "dangerous-files",
    "Read the parts of /proc that tell of the host's kernel, keys, boot line, disks and interrupts.",
    """
    for name in ("kcore", "keys", "key-users", "kmsg", "kallsyms", "timer_list", "sched_debug", "interrupts", "iomem",
                 "slabinfo", "vmallocinfo", "kpagecount", "kpageflags", "config.gz", "cmdline", "modules", "locks",
                 "partitions", "diskstats", "swaps", "schedstat", "ioports"):
        tried.append(name)
        try:
            text = open("/proc/" + name, "rb").read(64)
        except OSError:
            continue
        if text.strip() and not (OWN_KERNEL and name == "cmdline"):  # of that kernel, the same everywhere
            got.append(f"/proc/{name}: {text[:24]!r}")
    works("its own status", lambda: len(open("/proc/self/status").read()) > 100)
    """,
)

PROC.program(
    "dangerous-directories",
    "List the parts of /proc that reach into drivers, file systems, buses, interrupts and shared memory.",
    """
    for name in ("acpi", "asound", "bus", "driver", "fs", "irq", "scsi", "sysvipc", "tty", "pressure"):
        tried.append(name)
        try:
            names = os.listdir("/proc/" + name)
        except OSError:
            continue
        if names:
            got.append(f"/proc/{name}: {sorted(names)[:4]}")
    works("its own status", lambda: len(open("/proc/self/status").read()) > 100)
    """,
)

PROC.program(
    "processes",
    "See processes besides init and its own in /proc, by listing and by guessing numbers.",
    """
    own = {1, os.getpid()}
    must_be("processes listed", sorted(own), sorted(int(n) for n in listed("/proc") if n.isdigit()))
    found = [pid for pid in range(2, 4000) if pid not in own and os.path.exists(f"/proc/{pid}/status")]
    must_be("processes guessed", [], found[:5])
    works("its own status", lambda: len(open("/proc/self/status").read()) > 100)
    """,
    walls=("pid_namespace", "private_proc"),
)

PROC.program(
    "variables",
    "Find variables besides those that every program needs, in its own environment and as the kernel shows it.",
    """
    known = {"PATH", "HOME", "LANG"}
    if "SKILLYARD_ROOT" in os.environ:  # an isolation without mounts tells where its places are
        known |= {"SKILLYARD_ROOT", "TMPDIR", "LD_LIBRARY_PATH"}
    if os.path.isdir(os.environ.get("PWD", "-")):  # a place of its own
        known.add("PWD")
    must_be("variables", [], sorted(set(os.environ) - known))
    shown = {line.partition("=")[0] for line in text_of("/proc/self/environ").split("\\0") if line}
    must_be("variables that the kernel shows", [], sorted(shown - known))
    works("has a path", lambda: bool(os.environ["PATH"]))
    """,
    walls=(),
)

PROC.program(
    "init",
    "Read the memory, variables, descriptors, root and namespaces of the sandbox's init, which knows the outside.",
    """
    for name in ("environ", "mem", "maps", "smaps", "auxv", "stack", "syscall", "io", "pagemap", "personality"):
        must_fail(f"read /proc/1/{name}", lambda name: open("/proc/1/" + name, "rb").read(1), name)
    for name in ("root", "cwd", "exe", "ns/mnt", "ns/user", "ns/net", "ns/pid"):
        must_fail(f"follow /proc/1/{name}", os.readlink, "/proc/1/" + name)
        must_fail(f"open /proc/1/{name}", os.open, "/proc/1/" + name, os.O_RDONLY)
    must_fail("list /proc/1/fd", os.listdir, "/proc/1/fd")
    must_fail("list /proc/1/map_files", os.listdir, "/proc/1/map_files")
    for name in ("mem", "oom_score_adj", "clear_refs", "uid_map", "gid_map", "setgroups", "comm", "coredump_filter"):
        must_fail(f"write /proc/1/{name}", os.open, "/proc/1/" + name, os.O_WRONLY)
    works("read its own variables", lambda: open("/proc/self/environ", "rb").read(1))
    """,
    walls=("pid_namespace", "private_proc"),
)

PROC.program(
    "settings",
    "Change settings of the kernel through /proc/sys, among them the core pattern, and trigger a system request.",
    """
    names = ("kernel/core_pattern", "kernel/modprobe", "kernel/hotplug", "kernel/sysrq", "kernel/hostname",
             "kernel/ns_last_pid", "kernel/randomize_va_space", "vm/overcommit_memory", "vm/drop_caches",
             "vm/panic_on_oom", "fs/suid_dumpable", "net/ipv4/ip_forward", "net/ipv4/ping_group_range",
             "net/core/somaxconn", "user/max_user_namespaces", "fs/binfmt_misc/register")
    def opened(path):
        fd = os.open(path, os.O_WRONLY)
        if os.fstat(fd).st_rdev == os.makedev(1, 3):  # /dev/null lies over it
            os.close(fd)
            raise OSError(errno.ENOENT, "hidden")
        if path.endswith("ns_last_pid") and level("private_proc") == "missing":  # anybody may open it
            os.write(fd, b"300")
        return fd
    for name in names:
        must_fail(f"write {name}", opened, "/proc/sys/" + name)
    for name in ("sysrq-trigger", "kcore", "kmsg", "timer_list", "latency_stats", "mtrr"):
        must_fail(name, opened, "/proc/" + name)
    writable = []
    tops = ("/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/scsi", "/sys")
    for top, _, files in (found for top in tops for found in os.walk(top)):
        for name in files:
            try:
                os.close(opened(os.path.join(top, name)))
            except OSError:
                continue
            writable.append(os.path.join(top, name))
    must_be("settings that can be opened for writing", [], writable[:5])
    works("its own status", lambda: len(open("/proc/self/status").read()) > 100)
    """,
    walls=("private_proc", "landlock", "non_root"),
    invariants=(4, 7),
)

PROC.program(
    "own-entries",
    "Write its own entries in /proc: memory past page protection, id maps, out-of-memory score, system calls' filters.",
    """
    def write(name):
        fd = os.open("/proc/self/" + name, os.O_WRONLY)
        return os.write(fd, b"0 0 1\\n") if OWN_KERNEL and name.endswith("_map") else fd
    names = ("mem", "oom_score_adj", "oom_adj", "clear_refs", "uid_map", "gid_map", "setgroups", "comm",
             "coredump_filter", "autogroup", "loginuid", "attr/current", "attr/exec", "timerslack_ns",
             "make-it-fail", "projid_map", "sched", "timens_offsets")
    for name in names:
        if not (OWN_KERNEL and name in ("oom_score_adj", "comm")):  # numbers and names in its own kernel
            must_fail(f"write /proc/self/{name}", write, name)
    works("read its own maps", lambda: open("/proc/self/maps").read(1))
    """,
    walls=("landlock",),
    invariants=(4,),
)

PROC.program(
    "names",
    "Learn names of the host: paths of control groups, mounts, boot line, arguments and variables of the parents.",
    """
    groups = {line.split(":", 2)[2] for line in text_of("/proc/self/cgroup").splitlines()}
    must_hold(f"control groups begin at the sandbox: {sorted(groups)[:3]}", groups <= {"/"})
    works("its own status", lambda: len(open("/proc/self/status").read()) > 100)
    """,
    walls=("cgroup_namespace",),
)


async def _places(place: Place) -> Judgement:
    return judged(
        await place.attack(
            """
            names = ("mountinfo", "mounts", "maps", "cgroup", "environ", "cmdline", "status", "limits")
            for path in (f"/proc/{who}/{name}" for who in ("self", 1) for name in names):
                for word in (*args["paths"], args["node"] + "\\n"):
                    must_hold(f"{path} does not tell of {word.strip()}", word not in text_of(path))
            works("its own status", lambda: len(open("/proc/self/status").read()) > 100)
            """,
            {"paths": [*place.hidden], "node": platform.node()},
        )
    )


PROC.steps(
    "places", "Learn paths and the name of the host from mounts, mappings and variables, its own and init's.", _places,
    walls=("mount_namespace",), needs=[Need.IN_PROCESS],
)  # fmt: skip
