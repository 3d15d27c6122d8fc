"""Attacks to become another user, to gain capabilities, and to raise limits."""

from __future__ import annotations

from skillyard.testing.attacks.attack import Family

PRIVILEGES = Family("privileges", walls=("no_capabilities", "user_namespace"), invariants=(1, 2))

PRIVILEGES.program(
    "who",
    "Be root, inside or outside, or belong to a group of the host's.",
    """
    must_hold(f"is not root: {os.getresuid()} {os.getresgid()}", 0 not in (*os.getresuid(), *os.getresgid()))
    must_hold(f"root is in no group of it: {os.getgroups()}", 0 not in os.getgroups())
    for name in ("uid_map", "gid_map"):
        if not OWN_KERNEL:  # whose ids nobody else knows
            for line in text_of(f"/proc/self/{name}").splitlines():
                inside, outside, count = map(int, line.split())
                must_hold(f"{name} maps nobody to root outside: {inside} {outside} {count}",
                          outside > 0 or inside > 0 or count == 2**32 - 1)  # all of them: there is no namespace
    works("knows who it is", lambda: os.getuid() > 0)
    """,
    walls=("non_root",),
    invariants=(1,),
)

PRIVILEGES.program(
    "other-ids",
    "Change to root and to other users and groups by every call that there is.",
    """
    me, group = os.getuid(), os.getgid()
    for other in {0, 1, 1000, 33, 65534, 1900000000} - {me, group}:
        for what, function, ids in (("setuid", os.setuid, (other,)), ("seteuid", os.seteuid, (other,)),
                ("setreuid", os.setreuid, (other, other)), ("setresuid", os.setresuid, (other, other, other)),
                ("setgid", os.setgid, (other,)), ("setregid", os.setregid, (other, other)),
                ("setresgid", os.setresgid, (other, other, other)), ("setgroups", os.setgroups, ([other],))):
            tried.append(what)
            before = in_child(lambda: (function(*ids), str((os.getresuid(), os.getresgid(), os.getgroups())))[1])
            if not before.startswith(("OSError", "PermissionError")):
                got.append(f"{what} {other}: {before}")
        libc.setfsuid(other)
        libc.setfsgid(other)
        held = (libc.setfsuid(-1), libc.setfsgid(-1))
        must_hold(f"file ids after asking for {other}: {held}", held in ((me, group), (-1, -1)))
    works("become itself", os.setresuid, me, me, me)
    """,
    walls=("user_namespace", "no_capabilities"),
)

PRIVILEGES.program(
    "mapped-ids",
    "Count the ids that its user namespace maps: more than its own are more users to become.",
    """
    for name in ("uid_map", "gid_map"):
        lines = [tuple(map(int, line.split())) for line in open(f"/proc/self/{name}")]
        if OWN_KERNEL:
            elsewhere("the kernel inside is the sandbox's own: all ids in there are its, none is of the host")
        else:
            must_hold(f"{name} maps one id: {lines}", [count for _, _, count in lines] == [1])
    works("is mapped itself", lambda: os.stat("/proc/self").st_uid == os.getuid())
    """,
    walls=("user_namespace",),
    invariants=(1,),
    rests_on=("user_namespace", "private_proc"),
)

PRIVILEGES.program(
    "capabilities",
    "Hold capabilities in any of the five sets, of itself and of a program that it starts, or a bit to regain them.",
    """
    import subprocess
    def sets(status):
        return {line.split()[0]: line.split()[1] for line in status.splitlines() if line.startswith("Cap")}
    program = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
    init = "" if level("pid_namespace") == "missing" else text_of("/proc/1/status")
    for who, status in (("itself", open("/proc/self/status").read()), ("a program", program), ("init", init)):
        for name, value in sets(status).items():
            if name == "CapBnd:" and not may_bound():
                continue
            must_be(f"{name} of {who}", "0000000000000000", value)
    works("the sets are told", lambda: len(sets(open("/proc/self/status").read())) >= (3 if OWN_KERNEL else 5))
    """,
    walls=("no_capabilities",),
    invariants=(2,),
)

PRIVILEGES.program(
    "regaining",
    "Gain capabilities: capset, ambient ones, keeping them over a change of ids, undoing securebits.",
    """
    everything = struct.pack("6I", *[0xFFFFFFFF] * 6)
    header = struct.pack("Ii", 0x20080522, 0)
    def prctl(*args):
        if libc.prctl(*map(ctypes.c_ulong, args)) < 0:
            raise OSError(ctypes.get_errno(), "prctl")
    def capset():
        if libc.capset(header, everything) < 0:
            raise OSError(ctypes.get_errno(), "capset")
    must_fail("capset", capset)
    must_fail("ambient", prctl, 47, 2, 21, 0, 0)
    must_fail("securebits", prctl, 28, 0, 0, 0, 0)
    if level("seccomp") != "missing":  # else anybody may ask for it, who has nothing to keep
        must_fail("keep", prctl, 8, 1, 0, 0, 0)
    held = [cap for cap in range(64) if libc.prctl(23, cap, 0, 0, 0) == 1]
    if may_bound():
        must_be("bounding set", [], held)
    works("ask for its own name", prctl, 16, ctypes.addressof(ctypes.create_string_buffer(16)), 0, 0, 0)
    """,
    walls=("no_capabilities", "seccomp"),
    invariants=(2,),
)

PRIVILEGES.program(
    "new-privileges",
    "Run without no_new_privs, or take it back.",
    """
    status = open("/proc/self/status").read()
    must_hold("no_new_privs is set", "NoNewPrivs:\\t1" in status or OWN_KERNEL and "NoNewPrivs" not in status)
    must_be("no_new_privs by prctl", 1, libc.prctl(39, 0, 0, 0, 0))
    libc.prctl(38, 0, 0, 0, 0)
    must_be("no_new_privs after asking for none", 1, libc.prctl(39, 0, 0, 0, 0))
    works("has a status", lambda: "Pid:" in status)
    """,
    walls=("no_new_privs",),
    invariants=(2,),
)

PRIVILEGES.program(
    "filter",
    "Run without a filter of system calls.",
    """
    status = open("/proc/self/status").read()
    must_hold("a filter is in force", "Seccomp:\\t2" in status)
    must_be("mode by prctl", 2, libc.prctl(21, 0, 0, 0, 0))
    works("has a status", lambda: "Pid:" in status)
    """,
    walls=("seccomp",),
    invariants=(2, 7),
)

PRIVILEGES.program(
    "higher-limits",
    "Raise its resource limits above what it was given, and those of init.",
    """
    import resource
    kinds = [getattr(resource, name) for name in ("RLIMIT_NPROC", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE",
             "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE", "RLIMIT_SIGPENDING", "RLIMIT_NICE", "RLIMIT_RTPRIO")]
    for kind in kinds:
        soft, hard = resource.getrlimit(kind)
        tried.append(str(kind))
        if hard == resource.RLIM_INFINITY:
            if not OWN_KERNEL:  # which is limited itself
                got.append(f"limit {kind} is infinite")
            continue
        for pid in (0, 1):
            try:
                resource.prlimit(pid, kind, (soft, hard + 1))
            except (ValueError, OSError):
                continue
            got.append(f"raised limit {kind} of {pid or 'itself'}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    works("lower one", resource.setrlimit, resource.RLIMIT_NOFILE, (soft - 1, hard - 1))
    """,
    walls=("landlock", "memory", "pids"),
    invariants=(2, 7),
)

PRIVILEGES.program(
    "priority",
    "Take processor time by priority: less nice than it is, real time, deadlines, input and output first.",
    """
    for nice in (-20, -1) if not OWN_KERNEL else ():  # a number there, which the host never sees
        must_fail(f"nice {nice}", os.setpriority, os.PRIO_PROCESS, 0, nice)
    for name in ("SCHED_FIFO", "SCHED_RR"):
        must_fail(name, os.sched_setscheduler, 0, getattr(os, name), os.sched_param(1),
                  refused=(*REFUSED, "EINVAL") if OWN_KERNEL else REFUSED)
    deadline = struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 10**7, 10**8, 10**8)
    call_refused("sched_setattr", 0, ctypes.create_string_buffer(deadline), 0)
    tried.append("ioprio_set")
    if not isinstance(raw(NR["ioprio_set"], 1, 0, 1 << 13), str):
        got.append("input and output in real time")
    works("be nicer", os.setpriority, os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + 1)
    """,
    walls=("no_capabilities", "user_namespace", "seccomp"),
    invariants=(2, 7),
)

PRIVILEGES.program(
    "core-dumps",
    "Have the kernel hand a crash to the host's core dump handler, which runs as root, or write it to a disk.",
    """
    import resource
    pattern = "/proc/sys/kernel/core_pattern"
    hosts = os.path.exists(pattern)
    def crash(limit):
        def die():
            if limit is not None:
                try:
                    resource.setrlimit(resource.RLIMIT_CORE, limit)
                except (ValueError, OSError):
                    pass
            os.kill(os.getpid(), signal.SIGABRT)
        child = os.fork()
        if child == 0:
            die()
        return os.waitpid(child, 0)[1]
    for limit in (None, (0, 0), (-1, -1), (1 << 20, 1 << 20)):
        must_hold(f"no core was dumped with the limit {limit}", not os.WCOREDUMP(crash(limit)))
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ValueError, OSError):
        pass
    # core(5): 0 does not keep the kernel from piping a core into a handler; 1 does
    must_hold(f"the limit stays 1, not {resource.getrlimit(resource.RLIMIT_CORE)}",
              not hosts or resource.getrlimit(resource.RLIMIT_CORE) == (1, 1))
    works("a crash is seen", lambda: os.WIFSIGNALED(crash(None)))
    """,
    walls=("seccomp",),
    invariants=(4, 7),
)
