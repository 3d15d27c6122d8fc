"""Mutants of the keeper, the zygote and the sandbox: namespaces, files, /proc, identity, filters."""

from __future__ import annotations

from tests.attacks.verify.mutants import TABLE, Mutant

WALLS, ROOT, KERNEL, ZYGOTE = (
    "sandbox/native/inside/walls.py",
    "sandbox/native/grounds/root.py",
    "sandbox/native/linux/kernel.py",
    "sandbox/native/inside/zygote.py",
)
ZYGOTE_PROCESS, HOST = "sandbox/native/grounds/namespaces/zygote.py", "sandbox/native/grounds/host.py"
LANDLOCK, IDS, RULES = (
    "sandbox/native/linux/landlock.py",
    "sandbox/native/grounds/host.py",
    "sandbox/native/linux/call_arguments.py",
)
INSIDE, INTERPRETER = "sandbox/native/inside/init.py", "sandbox/native/grounds/root.py"


def _shared(flag: str) -> dict[str, str]:
    """Sandboxes keep the zygote's namespace."""
    return {WALLS: f"NAMESPACES = NAMESPACES & ~kernel.{flag}"}


NO_LANDLOCK = "def restrict(version, rules):\n    assert rules"
NO_FILTER = "def install_filter(assembled):\n    assert assembled"
KEEP_CAPABILITIES = "def drop_capabilities():\n    return None"
ONE_UID = """
_own_build = build
def build(spec, cgroups, closing, *shown):
    _own_build(spec._replace(uid=0, own_uid=False) if spec.own_uid else spec, cgroups, closing, *shown)
"""
TERMINALS = """
_without = build
def build(spec, cgroups, closing, *shown):
    _without(spec._replace(terminals=16), cgroups, closing, *shown)
"""
REAL_ROOT = """
def choose_ids(base, count):
    return Ids(0, 4096), -1
"""
NO_USER_NAMESPACE = """
_plain_write, _plain_nobody = _write, _become_nobody
def _write(path, text):
    if path not in ("/proc/self/setgroups", "/proc/self/gid_map", "/proc/self/uid_map"):
        _plain_write(path, text)
def _become_nobody(spec):
    kernel.prctl(8, 1)
    kept, kernel.unshare = kernel.unshare, lambda flags: None
    _plain_nobody(spec)
    kernel.unshare = kept
    kernel.keep_capabilities()
"""
"""PR_SET_KEEPCAPS and what follows: dropping capabilities, which comes later, needs some."""
NO_PROC = """
_plain_proc = _mount_proc
def _mount_proc(spec):
    kept = kernel.mount
    kernel.mount = lambda source, target, kind, *rest: None if kind == "proc" else kept(source, target, kind, *rest)
    _plain_proc(spec)
    kernel.mount = kept
"""
HOST_FILES = """
SYSTEM_DIRECTORIES = (*SYSTEM_DIRECTORIES, "/etc", "/var", "/boot", "/srv", "/mnt", "/sys")
ETC = ()
_FILES = {}
"""
SAME_NUMBERS = """
_at_fork = os.register_at_fork
os.register_at_fork = lambda **calls: None
import random, tempfile, uuid
os.register_at_fork = _at_fork
"""
"""Python's own generator is seeded again by a handler of its own."""
DRAWN_BEFORE = """
_plain_remember = remember
def remember():
    _plain_remember()
    _kept.clear()
"""

COMPILED = """
from skillyard.sandbox.native.grounds.namespaces.form import decode
_whole = order
def order(build, groups):
    kept = [step for step in decode(_whole(build, groups)) if step.name not in ("bounding set", "capset")]
    return encode(*kept, END)
"""

FOLLOWING = """
import glob
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
def _send(self, workspace, parts):
    for path in glob.glob(os.path.join(workspace, *parts)):
        if os.path.isfile(path):
            self._left.file(os.open(path, os.O_RDONLY), self._told(parts))
_Search.send = _send
"""
EXPORTED = """
def _argv(command):
    exports = "".join(f'export {name}="{value}"\\n' for name, value in command["env"].items())
    return ["bash", "-c", exports + command["text"]]
"""

MUTANTS = (
    Mutant(
        "hopping", ("rule: nothing of a call goes on beside the next",),
        "init ends only what it finds, and nobody else ends anything or looks whether the sandbox is clear",
        ("commands-hopping",),
        {
            INSIDE: "def end_all_others(reaped=None):\n    return None",
            "guest/programs/follower.py": "def _end_all(leader, wake):\n    return None",
            "guest/clearing.py": "def _staying(spared):\n    return []",
        },
    ),
    Mutant(
        "following", ("rule: files of commands are no links",), "links are followed, and inputs replace what is there",
        ("commands-links", "commands-inputs"), {"guest/shell.py": FOLLOWING},
    ),
    Mutant(
        "exported", ("rule: variables of commands are a vector",), "variables are written into the command",
        ("commands-variables",), {"guest/shell.py": EXPORTED},
    ),
    Mutant(
        "unescaped", ("rule: output cannot hold marks of streams",), "marks in the output of commands stay as they are",
        ("commands-streams",), {"guest/programs/follower.py": "_ESCAPED = _NUL"},
    ),
    Mutant(
        "user_namespace", ("user_namespace",), "sandboxes stay in the zygote's user namespace",
        ("privileges-mapped-ids", "namespaces-shared-user"), {WALLS: NO_USER_NAMESPACE}, who="root",
    ),
    Mutant(
        "mount_namespace", ("mount_namespace", "private_proc"), "sandboxes share the zygote's mounts and its /proc",
        ("namespaces-shared-mnt", "network-meet-by-files"), {WALLS: _shared("CLONE_NEWNS")[WALLS] + NO_PROC},
    ),
    Mutant(
        "allow-list", ("mount_namespace",), "the root shows the host's /etc, /var, /boot, /sys … as well",
        ("files-places", "files-climbing", "special-files-sysfs"), {ROOT: HOST_FILES}, short=True,
    ),
    Mutant(
        "devices", ("mount_namespace", "landlock", "own_uid", "non_root"),
        "the root shows more of the host's devices, to the host's own root",
        ("special-files-host-devices",),
        {ROOT: 'DEVICES = (*DEVICES, "fuse", "kvm")', WALLS: ONE_UID, LANDLOCK: NO_LANDLOCK, IDS: REAL_ROOT},
        who="root",
    ),
    Mutant(
        "terminals", ("rule: no terminal where none was asked for",), "every sandbox has terminals",
        ("special-files-host-devices",), {WALLS: TERMINALS}, short=True,
    ),
    Mutant(
        "packages", ("mount_namespace",), "the directories of the host's packages are not hidden",
        ("files-packages",),
        {INTERPRETER: "_described = find_interpreter\ndef find_interpreter():\n    from dataclasses import replace\n"
                      "    return replace(_described(), masked=())"},
    ),
    Mutant(
        "pid_namespace", ("pid_namespace",), "sandboxes stay in the keeper's pid namespace and see its /proc",
        ("proc-processes", "processes-signal", "namespaces-shared-pid", "leftovers-processes", "processes-stay",
         "processes-peer-number"),
        {WALLS: _shared("CLONE_NEWPID")[WALLS] + NO_PROC}, who="root", short=True,
    ),
    Mutant(
        "net_namespace", ("net_namespace",), "sandboxes share the zygote's network namespace",
        ("namespaces-shared-net", "network-meet-by-ports"), _shared("CLONE_NEWNET"), short=True,
    ),
    Mutant(
        "net_namespace+landlock", ("net_namespace", "landlock"), "the same, without Landlock's scopes",
        ("network-meet-by-names",), {**_shared("CLONE_NEWNET"), LANDLOCK: NO_LANDLOCK},
    ),
    Mutant(
        "pid+net+landlock", ("pid_namespace", "net_namespace", "landlock"),
        "what a run leaves lives on, in a network that the next one shares",
        ("leftovers-sockets",),
        {WALLS: "NAMESPACES = NAMESPACES & ~(kernel.CLONE_NEWPID | kernel.CLONE_NEWNET)" + NO_PROC,
         LANDLOCK: NO_LANDLOCK},
        who="root",
    ),
    Mutant(
        "a way out", ("net_namespace",), "the sandbox's network has a route for every address",
        ("network-outside",), {WALLS: """
_plain_loopback = _loopback_up
def _loopback_up():
    _plain_loopback()
    if os.fork() == 0:
        os.execv("/usr/sbin/ip", ["ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo"])
    os.wait()
"""},
    ),
    Mutant(
        "ipc_namespace", ("ipc_namespace",), "sandboxes share the zygote's ipc namespace",
        ("namespaces-shared-ipc",), _shared("CLONE_NEWIPC"),
    ),
    Mutant(
        "ipc_namespace+seccomp", ("ipc_namespace", "seccomp"), "the same, without a filter of system calls",
        ("leftovers-system-v",), {**_shared("CLONE_NEWIPC"), KERNEL: NO_FILTER},
    ),
    Mutant(
        "uts_namespace", ("uts_namespace",), "sandboxes share the host's name and do not change it",
        ("namespaces-shared-uts", "namespaces-host-name"),
        {
            WALLS: "NAMESPACES = NAMESPACES & ~kernel.CLONE_NEWUTS\ndef _name():\n    return None",
            ZYGOTE_PROCESS: "_NAMESPACES = _NAMESPACES & ~kernel.CLONE_NEWUTS",
            KERNEL: "def sethostname(name):\n    return None",
        },
    ),
    Mutant(
        "cgroup_namespace", ("cgroup_namespace",), "no cgroup namespace is made",
        ("namespaces-shared-cgroup", "proc-names"),
        {KERNEL: "_unshare = unshare\ndef unshare(flags):\n    if flags != CLONE_NEWCGROUP:\n        _unshare(flags)"},
        who="root",
    ),
    Mutant(
        "read_only_root", ("read_only_root", "landlock", "own_uid"),
        "the root stays writable, without Landlock and with the user who owns it",
        ("writing-everywhere", "writing-names", "leftovers-files", "poisoning-imports"),
        {
            ROOT: """
_plain_mount = kernel.mount
def _no_remount(source, target, kind, flags, data=""):
    if target != "/":
        _plain_mount(source, target, kind, flags, data)
_plain_enter = enter
def enter():
    kernel.mount, kept = _no_remount, kernel.mount
    _plain_enter()
    kernel.mount = kept
""",
            LANDLOCK: NO_LANDLOCK,
            WALLS: ONE_UID,
        },
    ),
    Mutant(
        "read_only_devices", ("read_only_root",), "device files are mounted for writing",
        ("writing-metadata", "leftovers-shared-times"),
        {ROOT: """
_plain_open = open_bind
def open_bind(source, target, attributes, *, read_only=True, whole=False):
    read_only = read_only and not source.startswith("/dev/")
    return _plain_open(source, target, attributes, read_only=read_only, whole=whole)
"""},
    ),
    Mutant(
        "fresh_files", ("mount_namespace", "disk"), "all sandboxes write into one tmpfs",
        ("leftovers-files", "secrets-afterwards", "network-meet-by-files"),
        {
            ROOT: """
_plain_hang = _hang
_ready = []
def _hang(bind):
    if not _ready:
        os.makedirs("run/one", exist_ok=True)
        kernel.mount("one", "run/one", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0777")
        for name in walls.WRITABLE:
            os.mkdir(f"run/one/{name}")
            os.chmod(f"run/one/{name}", 0o777)
        _ready.append(True)
    _plain_hang(bind)
""",
            WALLS: """
_own_box = _mount_box
def _mount_box(spec):
    _own_box(spec)
    for name, path in WRITABLE.items():
        kernel.mount(f"/run/one/{name}", path, None, kernel.MS_BIND)
""",
        },
    ),
    Mutant(
        "private_proc", ("private_proc",), "no part of /proc is masked",
        ("proc-dangerous-files", "proc-dangerous-directories"),
        {HOST: "def masked_proc():\n    return (), ()"},
    ),
    Mutant(
        "proc_sys", ("private_proc", "landlock", "own_uid", "non_root"),
        "/proc/sys is writable for the host's root, without Landlock",
        ("proc-settings",),
        {
            WALLS: """
_plain_mount = kernel.mount
def _no_sys(source, target, kind, flags, data=""):
    if target != "/proc/sys":
        _plain_mount(source, target, kind, flags, data)
kernel.mount = _no_sys
""" + ONE_UID,
            LANDLOCK: NO_LANDLOCK, IDS: REAL_ROOT,
        },
        who="root",
    ),
    Mutant(
        "hidden_init", ("private_proc",), "init can be traced and read as any process of its user",
        ("proc-init",),
        {WALLS: "_prctl = kernel.prctl\ndef _dumpable(option, *args):\n    return 0 if (option, *args[:1]) == "
                "(kernel.PR_SET_DUMPABLE, 0) else _prctl(option, *args)\nkernel.prctl = _dumpable"},
    ),
    Mutant(
        "non_root", ("non_root",), "sandboxes are user 0 of their namespace",
        ("privileges-who",), {WALLS: "INSIDE_ID = 0"},
    ),
    Mutant(
        "own_uid", ("own_uid",), "all sandboxes are one user outside",
        ("namespaces-shared-uid",), {WALLS: ONE_UID}, who="root",
    ),
    Mutant(
        "no_capabilities", ("no_capabilities",), "capabilities are kept",
        ("privileges-capabilities", "privileges-regaining", "special-files-capabilities-in-files"),
        {KERNEL: KEEP_CAPABILITIES}, short=True,
    ),
    Mutant(
        "compiled", ("no_capabilities",), "the compiled part keeps capabilities",
        ("privileges-capabilities", "privileges-regaining"), {TABLE: COMPILED}, short=True,
    ),
    Mutant(
        "no_new_privs", ("no_new_privs",), "no_new_privs is never set; the filter goes in by capability",
        ("privileges-new-privileges",),
        {
            KERNEL: """
_prctl, _drop, _install = prctl, drop_capabilities, install_filter
_late = []
def prctl(option, *args):
    return 0 if option == PR_SET_NO_NEW_PRIVS else _prctl(option, *args)
def drop_capabilities():
    _late.append(True)
def install_filter(assembled):
    _install(assembled)
    if _late:
        _drop()
""",
            RULES: """
CLOSING_RULES = ()
""",
        },
    ),
    Mutant(
        "capabilities+filter", ("user_namespace", "no_capabilities", "seccomp"),
        "sandboxes keep the zygote's capabilities in the zygote's user namespace, without a filter",
        (
            "privileges-other-ids", "namespaces-hostname", "network-interfaces", "namespaces-mount",
            "namespaces-enter", "syscalls-modules",
        ),
        {WALLS: NO_USER_NAMESPACE, KERNEL: f"{KEEP_CAPABILITIES}\n{NO_FILTER}"},
        who="root",
    ),
    Mutant(
        "seccomp", ("seccomp",), "no filter of system calls is installed",
        (
            "privileges-filter", "namespaces-new", "syscalls-tracing", "syscalls-keyrings", "syscalls-bpf-and-perf",
            "syscalls-async-io", "syscalls-faults", "syscalls-memory-policy", "syscalls-administration",
            "syscalls-clocks", "syscalls-hardware", "syscalls-system-v", "syscalls-handles", "syscalls-watches",
            "syscalls-splicing", "syscalls-process-options", "syscalls-personalities", "syscalls-own-walls",
            "syscalls-security-modules", "syscalls-peers", "entries-int-0x80", "entries-compatibility-mode",
            "entries-x32", "entries-high-bits", "network-families", "network-protocols", "network-netlink",
            "limits-cpu-affinity",
        ),
        {KERNEL: NO_FILTER}, short=True,
    ),
    Mutant(
        "seccomp_rules", ("seccomp",), "the filters let every argument through",
        ("syscalls-huge-pages", "syscalls-marks", "privileges-core-dumps", "syscalls-terminals", "syscalls-peers",
         "network-socket-options"),
        {RULES: "RULES = CLOSING_RULES = UNCOUNTED_RULES = ()"},
    ),
    Mutant(
        "landlock", ("landlock",), "no Landlock rules are applied",
        ("proc-own-entries",), {LANDLOCK: NO_LANDLOCK}, short=True,
    ),
    Mutant(
        "reseeding", ("rule: each run draws its own random numbers",), "forks keep the zygote's generators",
        ("randomness-runs", "randomness-children"),
        {"guest/randomness.py": "def reseed():\n    return None", ZYGOTE: SAME_NUMBERS},
    ),
    Mutant(
        "zygotes_pid", ("rule: OpenSSL can tell a fork",),
        "a run may have its zygote's pid, and OpenSSL is not seeded again", ("randomness-ahead",),
        {WALLS: "def _pass_low_pids():\n    return None", "guest/randomness.py": DRAWN_BEFORE}, short=True,
    ),
    Mutant(
        "shared_page", ("rule: nothing of the zygote's memory is shared",), "the zygote maps a page that forks share",
        ("poisoning-pages",), {ZYGOTE: "import mmap\n_SHARED = mmap.mmap(-1, 4096)"},
    ),
    Mutant(
        "shared_descriptor", ("rule: no descriptor is shared",), "every sandbox gets the zygote's own /dev/null",
        ("poisoning-descriptors",),
        {INSIDE: """
_plain_init = Init.__init__
def _with_zygotes(self, *args, **options):
    opened = os.open
    os.open = lambda *given: os.dup(0) if given[0] == "/dev/null" else opened(*given)
    try:
        _plain_init(self, *args, **options)
    finally:
        os.open = opened
Init.__init__ = _with_zygotes
"""},
    ),
)  # fmt: skip
