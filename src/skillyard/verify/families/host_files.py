"""Reading files of the host and of the server."""

from __future__ import annotations

from skillyard.verify.attack import Judgement, Need
from skillyard.verify.judge import judged
from skillyard.verify.make import Family
from skillyard.verify.yard import Yard

FAMILY = Family("files", walls=("mount_namespace", "landlock"), invariants=(3,))

FAMILY.program(
    "places",
    "Read what hosts keep their secrets in: /root, /home, /etc/shadow, logs, keys, other mounts.",
    """
    def names(path):
        # without those that lead to the interpreter, which is shown wherever it lies
        lead = [part + "/" for part in (sys.base_prefix, sys.base_exec_prefix)]
        found = [name for name in os.listdir(path) if not any(f"{part}/".startswith(os.path.join(path, name) + "/")
                 for part in lead)]
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

FAMILY.program(
    "search",
    "Walk the whole tree for private keys, databases, sockets, pipes and devices.",
    """
    import stat
    wanted = {"id_rsa", "id_ed25519", "authorized_keys", ".env", ".netrc", ".pgpass", "shadow", "skillyard.db",
              "secrets.sealed", "tokens.json", "keeper.sock", "keeper.lock", "docker.sock", ".bash_history"}
    own = {"/workspace", "/tmp", "/dev/shm", "/proc", "/sys", "/var/tmp"}
    devices = {"/dev/" + name for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "console")}
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

FAMILY.program(
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


async def _stores(yard: Yard) -> Judgement:
    assert yard.runtime is not None
    places = yard.runtime.data_dir
    paths = [places.home, places.database, places.blobs, places.skills, places.run, places.tokens]
    return judged(
        await yard.attack(
            """
            for path in args["paths"]:
                must_fail(f"list {path}", os.listdir, path, refused={*REFUSED, "ENOTDIR"})
                must_fail(f"read {path}", lambda: open(path, "rb").read(64))
                must_not_become(f"change {path}", lambda: os.utime(path, (1, 1)), lambda: os.stat(path).st_mtime == 1)
                must_fail(f"reach {path} by the root of init", os.stat, "/proc/1/root" + path)
                must_fail(f"reach {path} by the root of the parent", os.stat, f"/proc/{os.getppid()}/root{path}")
            works("a place of its own", os.listdir, "/workspace")
            """,
            {"paths": [str(path) for path in paths]},
        )
    )


FAMILY.steps(
    "stores", "Read and change the server's data directory, database, blobs, tokens and socket by their paths.",
    _stores, needs=[Need.IN_PROCESS], invariants=(3, 4),
)  # fmt: skip

FAMILY.program(
    "packages",
    "Import the server's own packages and find its source through the interpreter's search paths.",
    """
    import importlib
    for name in ("skillyard.config.settings", "skillyard.engine", "uvicorn", "starlette", "structlog", "pip"):
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
