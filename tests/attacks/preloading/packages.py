"""Packages that are imported ahead and mean no good, and a backend that is given them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillyard.domain.sandbox.content import Content
from skillyard.domain.sandbox.frames import FrameReader, Result
from skillyard.domain.sandbox.spec import Argv, EnvironmentRef, Guest, Prepared, SandboxSpec, Stream
from skillyard.ports.sandbox import Backend

SOURCES = {
    "good": "value = [0] * 1000\n",
    "fine": "import good\n",
    "pids": "import os\nof_zygote = os.getpid()\n",
    "threads": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n",
    "programs": "import subprocess\nsubprocess.Popen(['/bin/sleep', '600'])\n",
    "bombs": ("import os, time\nfor _ in range(200):\n    if os.fork() == 0:\n        time.sleep(600)\n"),
    "hangs": "import time\ntime.sleep(600)\n",
    "leaves": "import os\nos._exit(0)\n",
    "raises": "raise ValueError('not today')\n",
    "exits": "import sys\nsys.exit('go away')\n",
    "large": "kept = bytearray(150 << 20)\nkept[::4096] = bytes(len(kept[::4096]))\n",
    "grows": "kept = []\nwhile True:\n    kept.append(bytes(1 << 20))\n",
    "forges": "import socket\nsocket.socket(fileno=3).send(b'{\"ready\":true}')\n",
    "babbles": "import socket\nsocket.socket(fileno=3).send(b'[' * 100_000)\n",
    "floods": "import socket\ns = socket.socket(fileno=3)\nwhile True:\n    s.send(b'{\"imported\":true}')\n",
    "claims": (  # that the keeper itself is what it cloned
        "import array, ctypes, os, socket\n"
        "s = socket.socket(fileno=3)\n"
        "fd = ctypes.CDLL(None).syscall(434, os.getppid() or 1, 0)\n"
        "s.sendmsg([b'{\"pid\":1}'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [max(fd, 0)]))])\n"
    ),
    "spoils": (  # what comes after all imports
        "import os, sys\nsys.modules['skillyard.guest.main'].prepare = lambda *args: os._exit(0)\n"
    ),
    "keeps_rights": (  # in a process beside the worker, behind Landlock
        "import os, sys, time\n"
        "kernel = sys.modules['skillyard.sandbox.native.linux.kernel']\n"
        "drop = kernel.drop_all_held\n"
        "def keep():\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(60)\n"
        "        os._exit(0)\n"
        "    drop()\n"
        "kernel.drop_all_held = keep\n"
    ),
    "forgives": (  # drops nothing behind Landlock
        "import sys\nkernel = sys.modules['skillyard.sandbox.native.linux.kernel']\n"
        "kernel.drop_all_held = lambda: None\n"
    ),
    "lies": (  # that what it cloned is the first process of its namespace, a child of the keeper too
        "import sys\nkernel = sys.modules['skillyard.sandbox.native.linux.kernel']\n"
        "clone = kernel.clone\n"
        "def lie(*args, **more):\n"
        "    pid, fd = clone(*args, **more)\n"
        "    return (pid, kernel.pidfd_open(1)) if pid else (0, fd)\n"
        "kernel.clone = lie\n"
    ),
    "in_flight": (  # all that the kernel lets its user have
        "import socket\n"
        "held, refused = [], False\n"
        "while not refused:\n"
        "    held.append(socket.socketpair())\n"
        "    held[-1][0].setblocking(False)\n"
        "    try:\n"
        "        while True:\n"
        "            socket.send_fds(held[-1][0], [b'x'], [0] * 253)\n"
        "    except BlockingIOError:\n"
        "        pass\n"
        "    except OSError:\n"
        "        refused = True\n"
    ),
    "looks": (
        "import ctypes, os\n"
        "seen = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "writable = libc.mount(b'none', b'/usr/bin', None, 32 | 4096, None)\n"
        "cloned = libc.syscall(428, -100, b'/', 1)\n"
        "words = open('/proc/self/status').read().split()\n"
        "status = [words[words.index(name) + 1] for name in ('NoNewPrivs:', 'Seccomp:')]\n"
    ),
    "strays": (  # clone3 with CLONE_PARENT: a child of the keeper, which nobody tells of
        "import os, sys\n"
        "kernel = sys.modules['skillyard.sandbox.native.linux.kernel']\n"
        "clone = kernel.clone\n"
        "def stray():\n"
        "    pid, fd = clone(kernel.CLONE_PARENT)\n"
        "    if pid == 0:\n"
        "        os.setsid()\n"
        "        os.execv('/bin/sh', ['sh', '-c', 'sleep 600; true', 'sleeps-for-a-stray'])\n"
        "    os.close(fd)\n"
        "stray()\n"
    ),
    "strays_later": (  # when its second sandbox is made
        "from strays_not_yet import *\n"
        "made = []\n"
        "def later(*args, **more):\n"
        "    if made:\n"
        "        stray()\n"
        "    made.append(1)\n"
        "    return clone(*args, **more)\n"
        "kernel.clone = later\n"
    ),
    "writes": (
        "import os, tempfile\n"
        "file = tempfile.NamedTemporaryFile(delete=False).name\n"
        "kept = os.path.expanduser('~/.cache/x')\n"
        "os.makedirs(kept)\n"
        "found = [os.path.exists(file), os.path.exists(kept)]\n"
    ),
    "unwalls": (
        "import sys\nkernel = sys.modules['skillyard.sandbox.native.linux.kernel']\n"
        "kernel.drop_capabilities = lambda: None\n"
    ),
    "unfilters": (
        "import sys\nkernel = sys.modules['skillyard.sandbox.native.linux.kernel']\n"
        "kernel.unshare = lambda flags: None\n"
    ),
}

SOURCES["strays_not_yet"] = SOURCES["strays"].removesuffix("stray()\n")


@dataclass(frozen=True)
class Yard:
    backend: Backend
    packages: Path
    without: frozenset[str] = frozenset()
    """Walls that the backend's isolation is without by nature."""

    def spec(self, *modules: str) -> SandboxSpec:
        environment = EnvironmentRef("mixed", Content("x", self.packages), modules, "x")
        return SandboxSpec(environment=environment, allow_degraded=self.without)

    async def warm(self, *modules: str) -> Prepared:
        """What became of importing these ahead."""
        made = await self.backend.prepare(self.spec(*modules))
        assert made is not None
        return made

    async def imported(self, *modules: str) -> list[str]:
        """Which of the modules a sandbox has before it imports anything."""
        found: list[str] = await self.evaluate(f"[name for name in {list(SOURCES)} if name in sys.modules]", *modules)
        return found

    async def evaluate(self, expression: str, *modules: str) -> Any:
        """The expression's value in a sandbox, as JSON has it."""
        code = f"import sys\ndef main(args):\n    {_imports(modules)}\n    return {expression}"
        request = {
            "v": 1, "op": "call", "code": code, "skill": None, "entrypoint": "main", "args": {},
            "skills": {}, "blobs": {}, "blob_prefix": "blob:0-", "env": {}, "max_blobs": 1,
        }  # fmt: skip
        sandbox = await self.backend.create(self.spec(*modules), "run")
        try:
            process = await sandbox.start(Guest(request), id="p", timeout_ms=20_000)
            ending = await process.wait()
            frames = FrameReader().feed(b"".join([piece async for piece in process.output(Stream.CHANNEL)]))
            assert ending.code == 0, ending
            assert isinstance(frames[-1], Result), frames
            return frames[-1].value()["result"]
        finally:
            await self.backend.destroy(sandbox.handle)

    async def shell(self, script: str, *modules: str) -> str:
        sandbox = await self.backend.create(self.spec(*modules), "shell")
        try:
            process = await sandbox.start(Argv(("sh", "-c", script)), id="p", timeout_ms=20_000)
            await process.wait()
            return b"".join([piece async for piece in process.output(Stream.STDOUT)]).decode()
        finally:
            await self.backend.destroy(sandbox.handle)


def _imports(modules: tuple[str, ...]) -> str:
    """Names for what is there already; nothing is imported."""
    return "; ".join([f"{name} = sys.modules.get({name!r})" for name in modules]) or "pass"


def write_packages(place: Path) -> Path:
    place.mkdir(mode=0o755, exist_ok=True)
    for name, source in SOURCES.items():
        (place / f"{name}.py").write_text(source)
    return place
