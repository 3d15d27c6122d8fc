"""What the exec backend runs inside: its init, as ``python3 -I -S -c SOURCE``."""

from __future__ import annotations

INIT = """
import ctypes, json, os, resource, select, signal, sys
ctypes.CDLL(None).prctl(4, 0)
status, leash, kept, cwd, *argv = sys.argv[1:]
status, leash = int(status), int(leash)
wake_read, wake_write = os.pipe()
os.set_blocking(wake_write, False)
signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
signal.signal(signal.SIGCHLD, lambda *_: None)
worker = os.fork()
if worker == 0:
    low = 3
    for fd in (*sorted(map(int, filter(None, kept.split(",")))), 1 << 20):
        os.closerange(low, fd)
        low = fd + 1
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
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
the descriptors that the program keeps, the working directory, the argv. It is not dumpable (prctl 4),
so that the program cannot reach into it.
"""
