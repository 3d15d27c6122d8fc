"""Ordinary programs that must work: a jail that breaks normal code is a failure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from skillyard.testing.attacks.attack import WORKS, Family, Judgement, Place, not_applicable, too_tight

BENIGN = Family("benign")


def _works(
    name: str, does: str, body: str, gives: Mapping[str, Any], rests_on: tuple[str, ...] = (), **limits: Any
) -> None:
    """Adds a program. ``body`` is its function's; ``gives`` is what it must return, or it tells what it ``lacks``."""

    async def steps(place: Place) -> Judgement:
        code = "def main(args):\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
        run = await place.run(code, **limits)
        if not run.ok:
            return too_tight(run.why)
        if "lacks" in run.output:
            return not_applicable(f"the environment has no {run.output['lacks']}")
        return WORKS if run.output == gives else too_tight(f"gave {str(run.output)[:160]}")

    BENIGN.steps(name, does, steps, benign=True, rests_on=rests_on)


_works("threads", "Run threads with locks, queues and a pool, and a hundred in a child.", """
    from concurrent.futures import ThreadPoolExecutor
    import queue, threading
    box, lock = queue.Queue(), threading.Lock()
    def work(n):
        with lock:
            box.put(n)
        return n * n
    with ThreadPoolExecutor(8) as pool:
        total = sum(pool.map(work, range(50)))
    import subprocess, sys
    source = "import threading\\nrelease = threading.Event()\\n"
    source += "threads = [threading.Thread(target=release.wait) for _ in range(100)]\\n"
    source += "for one in threads: one.start()\\nprint(threading.active_count())\\nrelease.set()"
    child = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    return {"sum": total, "queued": box.qsize(), "child": child.stdout.strip() or child.stderr[-300:]}
""", {"sum": 40425, "queued": 50, "child": "101"})  # fmt: skip
_works("subprocess", "Start programs, talk to them, take their exit codes and time them out.", """
    import subprocess, sys
    echo = subprocess.run(["cat"], input="words", capture_output=True, text=True)
    code = subprocess.run([sys.executable, "-c", "raise SystemExit(7)"]).returncode
    try:
        subprocess.run(["sleep", "20"], timeout=0.2)
        late = False
    except subprocess.TimeoutExpired:
        late = True
    return {"echo": echo.stdout, "code": code, "late": late}
""", {"echo": "words", "code": 7, "late": True})  # fmt: skip
_works("pipeline", "Run a shell pipeline and a fork with exec between pipes.", """
    import os, subprocess
    line = "printf 'b\\\\na\\\\nb\\\\n' | sort | uniq -c | wc -l"
    shell = subprocess.run(line, shell=True, capture_output=True, text=True)
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.dup2(writing, 1)
        os.execvp("echo", ["echo", "from a child"])
    os.close(writing)
    said = os.fdopen(reading).read()
    os.wait()
    return {"lines": shell.stdout.strip(), "said": said}
""", {"lines": "2", "said": "from a child\n"})  # fmt: skip
_works("asyncio", "Run a server and a client in an event loop.", """
    import asyncio
    async def everything():
        async def answer(reader, writer):
            writer.write((await reader.readline()).upper())
            await writer.drain()
            writer.close()
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\\n")
        said = await reader.readline()
        writer.close()
        server.close()
        return {"said": said.decode()}
    return asyncio.run(everything())
""", {"said": "HELLO\n"}, ("net_namespace",))  # fmt: skip
_works("event-loop", "Run an event loop with tasks, a thread, a subprocess and a signal handler, without a server.", """
    import asyncio, os, signal
    async def everything():
        seen = []
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, seen.append, "signal")
        numbers = await asyncio.gather(*(asyncio.to_thread(pow, n, 2) for n in range(4)))
        process = await asyncio.create_subprocess_exec("echo", "out", stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0.05)
        return {"numbers": numbers, "out": out.decode(), "seen": seen}
    return asyncio.run(everything())
""", {"numbers": [0, 1, 4, 9], "out": "out\n", "seen": ["signal"]})  # fmt: skip
_works("multiprocessing", "Fork workers with queues, pipes and locks, map over a pool of processes, share memory.", """
    import multiprocessing
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    def work(n):
        queue.put(n * n)
    workers = [context.Process(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    got = sorted(queue.get() for _ in workers)
    for worker in workers:
        worker.join()
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.shared_memory import SharedMemory
    import math
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        total = sum(pool.map(math.factorial, range(8)))
    memory = SharedMemory(create=True, size=4096)
    memory.buf[:3] = b"abc"
    memory.close()
    memory.unlink()
    return {"got": got, "codes": [worker.exitcode for worker in workers], "sum": total}
""", {"got": [0, 1, 4, 9], "codes": [0, 0, 0, 0], "sum": 5914}, ("ipc_namespace",))  # fmt: skip
_works("files", "Write, read, move, link, walk and remove files in /workspace, /tmp and /dev/shm.", """
    import os, pathlib, shutil, tempfile
    for place in ("/workspace", "/tmp", "/dev/shm"):
        top = pathlib.Path(place, "tree", "deep")
        top.mkdir(parents=True)
        (top / "a").write_text("text")
        (top / "ü 東京").touch()
        os.link(top / "a", top / "b")
        os.symlink("a", top / "c")
        os.rename(top / "b", top / "d")
        os.chmod(top / "a", 0o600)
        os.utime(top / "a", (1, 1))
        assert sorted(os.listdir(top)) == ["a", "c", "d", "ü 東京"] and (top / "c").read_text() == "text"
        shutil.rmtree(pathlib.Path(place, "tree"))
    with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as directory:
        file.write(b"x" * 100_000)
        file.flush()
        shutil.copy(file.name, directory + "/copy")
        return {"size": os.path.getsize(directory + "/copy"), "cwd": os.path.basename(os.getcwd())}
""", {"size": 100_000, "cwd": "workspace"})  # fmt: skip
_works("locks", "Lock files, watch them with epoll-friendly descriptors and wait with timers.", """
    import fcntl, os, select, time
    with open("/tmp/lock", "w") as one, open("/tmp/lock", "w") as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        try:
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shared = True
        except BlockingIOError:
            shared = False
        fcntl.lockf(one, fcntl.LOCK_UN)
    reading, writing = os.pipe()
    poll = select.epoll()
    poll.register(reading, select.EPOLLIN)
    os.write(writing, b"x")
    return {"shared": shared, "events": len(poll.poll(1))}
""", {"shared": False, "events": 1})  # fmt: skip
_works("memory-maps", "Map files and anonymous memory, shared and private.", """
    import mmap, os
    with open("/tmp/map", "wb") as file:
        file.write(b"a" * 8192)
    with open("/tmp/map", "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[0:5] = b"hello"
        view.flush()
    private = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    private[:3] = b"abc"
    return {"start": open("/tmp/map").read(5), "private": private[:3].decode()}
""", {"start": "hello", "private": "abc"})  # fmt: skip
_works("sqlite", "Keep a database in a file, with a write-ahead log and two connections.", """
    import sqlite3
    one = sqlite3.connect("/workspace/data.db")
    one.execute("pragma journal_mode=wal")
    one.execute("create table t (n integer)")
    one.executemany("insert into t values (?)", [(n,) for n in range(100)])
    one.commit()
    two = sqlite3.connect("/workspace/data.db")
    return {"sum": two.execute("select sum(n) from t").fetchone()[0]}
""", {"sum": 4950})  # fmt: skip
_works("ssl", "Make a TLS context with the system's certificates, and hash.", """
    import hashlib, ssl
    context = ssl.create_default_context()
    return {"checks": context.check_hostname, "hash": hashlib.sha256(b"x").hexdigest()[:8]}
""", {"checks": True, "hash": "2d711642"})  # fmt: skip
_works("archives", "Pack and unpack zip, tar, gzip, bzip2 and xz.", """
    import bz2, gzip, io, lzma, tarfile, zipfile
    data = b"words " * 1000
    with zipfile.ZipFile("/tmp/a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", data)
    with tarfile.open("/tmp/a.tgz", "w:gz") as archive:
        archive.add("/tmp/a.zip", "a.zip")
    with tarfile.open("/tmp/a.tgz") as archive:
        inner = zipfile.ZipFile(io.BytesIO(archive.extractfile("a.zip").read()))
    same = [codec.decompress(codec.compress(data)) == data for codec in (bz2, gzip, lzma)]
    return {"size": len(inner.read("a.txt")), "same": same}
""", {"size": 6000, "same": [True, True, True]})  # fmt: skip
_works("ctypes", "Call the C library, with a callback.", """
    import ctypes
    libc = ctypes.CDLL(None)
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
    numbers = (ctypes.c_int * 5)(5, 1, 4, 2, 3)
    libc.qsort(numbers, 5, ctypes.sizeof(ctypes.c_int), compare(lambda a, b: a[0] - b[0]))
    return {"sorted": list(numbers)}
""", {"sorted": [1, 2, 3, 4, 5]})  # fmt: skip
_works("sockets", "Serve and connect on the loopback by TCP, UDP and unix sockets, in both versions.", """
    import socket, socketserver, threading, urllib.request, http.server
    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"page")
        def log_message(self, *args):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=5).read().decode()
    one, two = (socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) for _ in range(2))
    one.bind(("::1", 0))
    two.sendto(b"datagram", one.getsockname())
    said = one.recv(64).decode()
    local = socket.socket(socket.AF_UNIX)
    local.bind("/tmp/socket")
    local.listen()
    peer = socket.socket(socket.AF_UNIX)
    peer.connect("/tmp/socket")
    left, right = socket.socketpair()
    left.send(b"pair")
    name = socket.getaddrinfo("localhost", 80, socket.AF_INET)[0][4][0]
    return {"page": page, "said": said, "pair": right.recv(9).decode(), "localhost": name}
""", {"page": "page", "said": "datagram", "pair": "pair", "localhost": "127.0.0.1"}, ("net_namespace",))  # fmt: skip
_works("signals", "Handle signals and alarms, also in children.", """
    import os, signal, time
    seen = []
    signal.signal(signal.SIGALRM, lambda *_: seen.append("alarm"))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    signal.pause()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
        while True:
            time.sleep(1)
    time.sleep(0.1)
    os.kill(child, signal.SIGTERM)
    return {"seen": seen, "code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}
""", {"seen": ["alarm"], "code": 9})  # fmt: skip
_works("who-am-i", "Ask for user, home, processors, time zone, locale and machine.", """
    import getpass, locale, os, platform, pwd, resource, time
    return {"user": bool(pwd.getpwuid(os.getuid()).pw_name and getpass.getuser()),
            "home": os.path.isdir(os.path.expanduser("~")),
            "processors": bool(os.cpu_count() and resource.getrusage(0).ru_maxrss),
            "python": platform.python_version_tuple()[0], "time": time.time() > 1e9,
            "encoding": locale.getpreferredencoding().upper().replace("-", "")}
""", {"user": True, "home": True, "processors": True, "python": "3", "time": True, "encoding": "UTF8"},
    ("mount_namespace",))  # fmt: skip
_works("text", "Use dates, decimals, regular expressions, JSON, CSV, XML, HTML and Unicode.", """
    import csv, datetime, decimal, html, io, json, re, unicodedata, xml.etree.ElementTree as tree, zoneinfo
    summer = datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    rows = list(csv.DictReader(io.StringIO("a,b\\n1,2\\n")))
    return {"rows": rows, "day": datetime.date(2026, 1, 1).isoformat(), "zone": str(summer.utcoffset()),
            "sum": str(decimal.Decimal("0.1") + decimal.Decimal("0.2")),
            "found": re.findall(r"\\w+", "a b"), "json": json.loads("[1]"), "name": unicodedata.name("é"),
            "xml": tree.fromstring("<a b='c'/>").get("b"), "html": html.escape("<")}
""", {"rows": [{"a": "1", "b": "2"}], "day": "2026-01-01", "zone": "2:00:00", "sum": "0.3", "found": ["a", "b"],
      "json": [1], "name": "LATIN SMALL LETTER E WITH ACUTE", "xml": "c", "html": "&lt;"})  # fmt: skip
_works("dynamic", "Make classes, closures, generators, weak references and bytecode, compile, import and pickle.", """
    import copy, dis, functools, importlib, marshal, pickle, sys, types, weakref
    with open("/workspace/own_module.py", "w") as file:
        file.write("value = 42\\n")
    import own_module
    code = marshal.loads(marshal.dumps(compile("1 + 1", "x", "eval")))
    same = pickle.loads(pickle.dumps({"a": (1,)})) == {"a": (1,)}
    return {"value": own_module.value, "eval": eval(code), "pickle": same}
""", {"value": 42, "eval": 2, "pickle": True})  # fmt: skip
_works("log-and-exit", "Print to both outputs, in order, and finish.", """
    import logging, sys
    logging.basicConfig(level=logging.INFO)
    print("out")
    logging.info("logged")
    print("err", file=sys.stderr)
    return {"done": True}
""", {"done": True})  # fmt: skip
_works("memory", "Use half of the memory and of the disk that it was given.", """
    data = bytearray(200 << 20)
    data[:: 4096] = b"x" * len(data[:: 4096])
    with open("/workspace/big", "wb") as file:
        for _ in range(200):
            file.write(bytes(1 << 20))
    import os
    return {"memory": len(data) >> 20, "disk": os.path.getsize("/workspace/big") >> 20}
""", {"memory": 200, "disk": 200})  # fmt: skip
_works("many-files", "Keep hundreds of files open and make thousands.", """
    import os
    held = [open(f"/tmp/{n}", "w") for n in range(400)]
    for file in held:
        file.close()
    for n in range(3000):
        os.close(os.open(f"/tmp/many{n}", os.O_CREAT | os.O_WRONLY))
    return {"files": len(os.listdir("/tmp"))}
""", {"files": 3400})  # fmt: skip
_works("core-limit", "Turn core dumps off, as programs that keep secrets do.", """
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return {"done": True}
""", {"done": True})  # fmt: skip
_works("numpy", "Multiply matrices.", """
    try:
        import numpy
    except ImportError:
        return {"lacks": "numpy"}
    matrix = numpy.arange(10_000, dtype=float).reshape(100, 100)
    return {"trace": float((matrix @ matrix.T).trace()), "rank": int(numpy.linalg.matrix_rank(matrix))}
""", {"trace": 333283335000.0, "rank": 2})  # fmt: skip
