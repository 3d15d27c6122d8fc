"""What /proc tells of the host, of init and of others."""

from __future__ import annotations

from skillyard.verify.make import Family

FAMILY = Family("proc", walls=("private_proc",), invariants=(3,))

FAMILY.program(
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

FAMILY.program(
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

FAMILY.program(
    "processes",
    "See processes besides init and its own in /proc, by listing and by guessing numbers.",
    """
    own = {1, os.getpid()}
    must_be("processes listed", [], sorted({int(n) for n in listed("/proc") if n.isdigit()} - own))
    found = [pid for pid in range(2, 4000) if pid not in own and os.path.exists(f"/proc/{pid}/status")]
    must_be("processes guessed", [], found[:5])
    works("its own status", lambda: len(open("/proc/self/status").read()) > 100)
    """,
    walls=("pid_namespace", "private_proc"),
)

FAMILY.program(
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

FAMILY.program(
    "settings",
    "Change settings of the kernel through /proc/sys, among them the core pattern, and trigger a system request.",
    """
    names = ("kernel/core_pattern", "kernel/modprobe", "kernel/hotplug", "kernel/sysrq", "kernel/hostname",
             "kernel/ns_last_pid", "kernel/randomize_va_space", "vm/overcommit_memory", "vm/drop_caches",
             "vm/panic_on_oom", "fs/suid_dumpable", "net/ipv4/ip_forward", "net/ipv4/ping_group_range",
             "net/core/somaxconn", "user/max_user_namespaces", "fs/binfmt_misc/register")
    for name in names:
        must_fail(f"write {name}", os.open, "/proc/sys/" + name, os.O_WRONLY)
    must_fail("sysrq-trigger", os.open, "/proc/sysrq-trigger", os.O_WRONLY)
    writable = []
    for top, _, files in os.walk("/proc/sys"):
        for name in files:
            try:
                os.close(os.open(os.path.join(top, name), os.O_WRONLY))
            except OSError:
                continue
            writable.append(os.path.join(top, name))
    must_be("settings that can be opened for writing", [], writable[:5])
    works("its own status", lambda: len(open("/proc/self/status").read()) > 100)
    """,
    walls=("private_proc", "landlock", "non_root"),
    invariants=(4, 7),
)

FAMILY.program(
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

FAMILY.program(
    "names",
    "Learn names of the host: paths of control groups, mounts, boot line, arguments and variables of the parents.",
    """
    groups = {line.split(":", 2)[2] for line in text_of("/proc/self/cgroup").splitlines()}
    must_hold(f"control groups begin at the sandbox: {sorted(groups)[:3]}", groups <= {"/"})
    works("its own status", lambda: len(open("/proc/self/status").read()) > 100)
    """,
    walls=("cgroup_namespace",),
)
