"""What the exec backend runs inside: its init and its files helper, each as ``python3 -I -S -c SOURCE``."""

from __future__ import annotations

INIT = """
import json, os, resource, select, signal, sys
status, leash, wired, cwd, *argv = sys.argv[1:]
status, leash = int(status), int(leash)
wake_read, wake_write = os.pipe()
os.set_blocking(wake_write, False)
signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
signal.signal(signal.SIGCHLD, lambda *_: None)
worker = os.fork()
if worker == 0:
    for fd in (status, leash, wake_read, wake_write):
        os.close(fd)
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    if wired:
        given, expected = map(int, wired.split(":"))
        os.dup2(given, expected)
        if given != expected:
            os.close(given)
    try:
        os.chdir(cwd)
        os.execvp(argv[0], argv)
    except OSError as failure:
        os.write(2, f"{argv[0]}: {failure.strerror}\\n".encode(errors="replace"))
        os._exit(126 if isinstance(failure, PermissionError) else 127)
while True:
    ready = select.select([leash, wake_read], [], [])[0]
    if leash in ready:
        os._exit(1)
    os.read(wake_read, 512)
    while True:
        pid, code = os.waitpid(-1, os.WNOHANG) if worker else (0, 0)
        if pid == worker:
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            report = {"status": code, "cpu_ms": (used.ru_utime + used.ru_stime) * 1000, "rss": used.ru_maxrss * 1024}
            os.write(status, json.dumps(report).encode())
            os._exit(0)
        if pid == 0:
            break
"""
"""pid 1 of one program: starts it, reaps orphans, reports how it ended, and ends when it or the host does.

Arguments: the descriptor for the report, the descriptor whose end of file says that the host is gone,
``given:expected`` numbers of the channel or nothing, the working directory, the argv.
"""

FILES = """
import json, os, stat, sys

CHUNK = 1 << 20

def verdict(*said):
    os.write(told, json.dumps(said).encode())
    os.close(told)

def fail(kind, text):
    verdict(kind, text)
    os._exit(1)

def give(data, fd=1):
    while data:
        data = data[os.write(fd, data):]

def walk(parts, make):
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    for part in parts:
        if make:
            try:
                os.mkdir(part, 0o755, dir_fd=here)
            except FileExistsError:
                pass
        there = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
        os.close(here)
        here = there
    return here

def read(parts, offset, length):
    fd = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=walk(parts[:-1], False))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        fail("missing", "it is no regular file")
    verdict()
    os.lseek(fd, offset, os.SEEK_SET)
    while length is None or length > 0:
        data = os.read(fd, CHUNK if length is None else min(CHUNK, length))
        if not data:
            return
        length = None if length is None else length - len(data)
        give(data)

def write(parts, mode):
    where = walk(parts[:-1], True)
    part = ".partial-" + os.urandom(8).hex()
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=where)
    try:
        while data := os.read(0, CHUNK):
            give(data, fd)
        os.fchmod(fd, mode)
        os.replace(part, parts[-1], src_dir_fd=where, dst_dir_fd=where)
    except OSError:
        os.unlink(part, dir_fd=where)
        raise
    verdict()

def entries(parts):
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    where = walk(parts, False)
    found = []
    for name in sorted(os.listdir(where))[:10000]:
        about = os.stat(name, dir_fd=where, follow_symlinks=False)
        found.append([name, kinds.get(stat.S_IFMT(about.st_mode), "other"), about.st_size])
    verdict()
    give(json.dumps(found).encode())

told, request = int(sys.argv[1]), json.loads(sys.argv[2])
try:
    {"read": read, "write": write, "entries": entries}[request.pop("op")](**request)
except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as failure:
    fail("missing", failure.strerror)
except OSError as failure:
    import errno
    kind = {errno.ELOOP: "missing", errno.ENXIO: "missing", errno.ENOSPC: "full", errno.EDQUOT: "full"}
    fail(kind.get(failure.errno, "refused"), failure.strerror)
"""
"""One file operation; the bytes go through 0 and 1.

Arguments: the descriptor for the verdict (``[]`` or ``[kind, text]``), the operation as JSON.
"""
