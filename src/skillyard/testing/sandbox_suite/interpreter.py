"""The Python inside: the plain interpreter with its whole standard library, and none of the server's packages."""

from __future__ import annotations

import asyncio
import ssl

from skillyard.domain.sandbox.spec import Argv
from skillyard.testing.sandbox_suite.check import Section, expect
from skillyard.testing.sandbox_suite.frames import last
from skillyard.testing.sandbox_suite.ground import Ground, code, look, run

interpreter = Section("interpreter")

SERVER = (
    "anyio", "click", "cryptography", "httpx2", "jsonschema_rs", "opentelemetry", "pip", "prometheus_client",
    "pydantic", "pytest", "rich", "setuptools", "starlette", "structlog", "uvicorn", "yaml",
)  # fmt: skip
OURS = ("skillyard.domain", "skillyard.engine", "skillyard.ports", "skillyard.faces", "skillyard.client")

VISIBLE = """
import importlib.util
def findable(name):
    try: return importlib.util.find_spec(name) is not None
    except ImportError: return False
def main(args):
    return {'found': [name for name in args['names'] if findable(name)]}
"""

_TRY = """
import json, os, sys, traceback
works = {}
def works_with(function):
    works[function.__name__] = function
"""
_TELL = """
failed = {}
for name, function in works.items():
    try: function()
    except BaseException: failed[name] = traceback.format_exc()[-400:]
print(json.dumps(failed))
"""

WORKS = """
@works_with
def sqlite():
    import sqlite3
    with sqlite3.connect(HERE + '/workspace/suite.db') as db:
        db.execute('pragma journal_mode=wal')
        db.execute('create table t (x)')
        db.executemany('insert into t values (?)', [(i,) for i in range(1000)])
    assert db.execute('select sum(x) from t').fetchone() == (499500,)
@works_with
def ctypes_call():
    import ctypes
    callback = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 7)
    assert ctypes.CDLL(None).getpid() == os.getpid() and callback() == 7
@works_with
def threads():
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(len, ['a', 'bb'])) == 3
@works_with
def shell():
    import subprocess
    done = subprocess.run('echo "$((6 * 7))" | cat; exit 3', shell=True, capture_output=True)
    assert (done.stdout, done.returncode) == (b'42\\n', 3)
@works_with
def own_interpreter():
    import subprocess
    assert subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True, check=True).stdout == b'1\\n'
@works_with
def timezones():
    import datetime, zoneinfo
    offset = datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin')).utcoffset()
    assert offset == datetime.timedelta(hours=2)
@works_with
def event_loop():
    import asyncio
    async def echo():
        process = await asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1)
        return (await process.communicate(b'loop'))[0]
    assert asyncio.run(echo()) == b'loop'
@works_with
def temporary_files():
    import tempfile
    with tempfile.TemporaryDirectory() as name, tempfile.NamedTemporaryFile(dir=name) as file:
        file.write(b'x' * 100_000)
@works_with
def compression():
    import bz2, lzma, zipfile, zlib
    for module in (bz2, lzma, zlib): assert module.decompress(module.compress(b'x' * 1000)) == b'x' * 1000
@works_with
def memory_map():
    import mmap
    mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).write(b'x')
    with open(HERE + '/workspace/mapped', 'w+b') as file:
        file.truncate(1 << 20)
        mmap.mmap(file.fileno(), 0).write(b'x')
@works_with
def timers():
    import signal, threading
    fired = threading.Event()
    signal.signal(signal.SIGALRM, lambda *_: fired.set())
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    assert fired.wait(5)
@works_with
def locks():
    import fcntl
    with open(HERE + '/workspace/lock', 'w') as file: fcntl.flock(file, fcntl.LOCK_EX)
@works_with
def unix_sockets():
    import socket
    one, two = socket.socketpair()
    one.sendall(b'x')
    assert two.recv(1) == b'x'
@works_with
def resources():
    import platform, resource
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss and platform.uname() and os.cpu_count()
@works_with
def encodings():
    assert 'ü'.encode('utf-8').decode() == 'ü' and sys.getfilesystemencoding() == 'utf-8'
    open(HERE + '/workspace/ü 東京', 'w').close()
"""

SHARES = """
@works_with
def multiprocessing_pool():
    import multiprocessing
    with multiprocessing.get_context('fork').Pool(2) as pool:
        assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]
@works_with
def shared_memory():
    from multiprocessing.shared_memory import SharedMemory
    memory = SharedMemory(create=True, size=4096)
    memory.buf[:3] = b'abc'
    memory.close()
    memory.unlink()
"""

NAMES = """
@works_with
def user():
    import getpass, pwd
    assert pwd.getpwuid(os.getuid()).pw_dir and getpass.getuser()
"""


@interpreter.check("mount_namespace")
async def packages_of_the_server_are_invisible(ground: Ground) -> None:
    source = VISIBLE + "import json, sys\nprint(json.dumps(main({'names': sys.argv[1:]})['found']))"
    async with ground.sandbox() as sandbox:
        found = await look(sandbox, source, "skillyard", *SERVER, *OURS)
        expect(found == [], "a command imports nothing of the server", found)
        result = await run(sandbox, code(VISIBLE, {"names": [*SERVER, *OURS]}))
        expect(last(result.channel, "R") == {"found": []}, "and a guest neither", result)


@interpreter.check()
async def standard_library_works(ground: Ground) -> None:
    failed = await ground.look(_TRY + WORKS + _TELL)
    expect(failed == {}, "what the standard library offers works inside", failed)


@interpreter.check("ipc_namespace")
async def shared_memory_and_semaphores_work(ground: Ground) -> None:
    failed = await ground.look(_TRY + SHARES + _TELL)
    expect(failed == {}, "what lies in /dev/shm by its name works inside", failed)


@interpreter.check("mount_namespace")
async def user_has_a_name(ground: Ground) -> None:
    failed = await ground.look(_TRY + NAMES + _TELL)
    expect(failed == {}, "the user inside is in the list of users", failed)


@interpreter.check()
async def certificates_are_there(ground: Ground) -> None:
    source = "import json, ssl; print(json.dumps(len(ssl.create_default_context().get_ca_certs())))"
    inside = await ground.look(source)
    outside = len(ssl.create_default_context().get_ca_certs())
    expect((inside > 0) == (outside > 0), "the host's certificate authorities are known inside", inside)


@interpreter.check()
async def both_names_of_the_interpreter_work(ground: Ground) -> None:
    async with ground.sandbox() as sandbox:
        for words in (("python3", "-c"), ("/usr/bin/env", "python3", "-c"), ("/bin/sh", "-c")):
            script = "print(1)" if "python3" in words else "python3 -c 'print(1)'"
            result = await run(sandbox, Argv((*words, script)))
            expect(result.stdout == b"1\n", f"{' '.join(words)} finds the interpreter", result)


@interpreter.check()
async def two_sandboxes_share_no_randomness(ground: Ground) -> None:
    source = """
import os, random, secrets, tempfile, uuid
def main(args):
    return {'drawn': [random.random(), random.SystemRandom().random(), random.Random().random(), secrets.token_hex(16),
        str(uuid.uuid4()), os.urandom(16).hex(), tempfile.mktemp(), random.getrandbits(128)]}
"""
    results = await asyncio.gather(*(ground.run(code(source)) for _ in range(3)))
    drawn = [last(result.channel, "R")["drawn"] for result in results]
    for values in zip(*drawn, strict=True):
        expect(len(set(values)) == 3, "no two sandboxes draw the same", values)
