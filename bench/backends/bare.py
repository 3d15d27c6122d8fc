"""The components that backends are made of, used bare: one program in a sandbox, and three in one that is kept."""

from __future__ import annotations

import io
import json
import secrets
import shlex
import socket
import subprocess
import tarfile
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from skillyard.bench.installations import printed
from skillyard.sandbox.microvm.first import ORDER_PORT
from skillyard.sandbox.microvm.image import INITIAL, KERNEL, ROOT
from skillyard.sandbox.microvm.machine import CMDLINE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skillyard.config.backends import OpenSandboxSettings

TTL_S = 300


class Bare(Protocol):
    """A component as its users use it."""

    @property
    def title(self) -> str:
        """Returns the call, as markdown."""
        ...

    def once(self, command: Sequence[str]) -> str:
        """Returns the output of a command in a sandbox that is made for it and ended after it."""
        ...

    def session(self, commands: Sequence[Sequence[str]]) -> None:
        """Runs commands one after another in one sandbox, where the component has such."""
        ...


@dataclass(frozen=True)
class Wrapped:
    """A component that starts one command in a sandbox, as often as it is called."""

    title: str
    wrap: Callable[[Sequence[str]], Sequence[str]]

    def once(self, command: Sequence[str]) -> str:
        return printed(self.wrap(command))

    def session(self, commands: Sequence[Sequence[str]]) -> None:
        for command in commands:
            self.once(command)


def bubblewrap(python: Sequence[str]) -> Wrapped:
    """Returns bubblewrap over the system's directories and those that ``python`` needs."""
    shown = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives", *python)
    binds = [word for path in shown if Path(path).exists() for word in ("--ro-bind", path, path)]
    given = ["bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"]
    given += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", *binds, "--"]
    return Wrapped("`bwrap --unshare-all`", lambda command: [*given, *command])


def srt(program: str, settings: Path) -> Wrapped:
    """Returns srt with settings that allow nothing, which are written to the file ``settings``."""
    network: dict[str, list[str]] = {"allowedDomains": [], "deniedDomains": []}
    filesystem: dict[str, list[str]] = {"denyRead": [], "allowWrite": [], "denyWrite": []}
    settings.write_text(json.dumps({"network": network, "filesystem": filesystem}))
    return Wrapped("`srt -c`", lambda command: [program, "--settings", str(settings), "-c", shlex.join(command)])


@dataclass(frozen=True)
class DockerRun:
    """The command line ``docker`` with the limits that our containers have."""

    host: str
    image: str
    title: str = "`docker run`"

    def once(self, command: Sequence[str]) -> str:
        return printed([*self._docker("run", "--rm"), *self._limits(), self.image, *command])

    def session(self, commands: Sequence[Sequence[str]]) -> None:
        name = printed([*self._docker("run", "-d"), *self._limits(), self.image, "sleep", str(TTL_S)]).strip()
        try:
            for command in commands:
                printed([*self._docker("exec", name), *command])
        finally:
            printed(self._docker("rm", "-f", name))

    def _docker(self, *words: str) -> list[str]:
        return ["docker", "-H", self.host, *words]

    @staticmethod
    def _limits() -> list[str]:
        return [
            *("--network", "none", "--read-only", "--memory", "512m", "--pids-limit", "256", "--cpus", "1"),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65532:65532"),
            *("--tmpfs", "/tmp:size=64m"),
        ]


@dataclass(frozen=True)
class RunscRun:
    """The command line ``runsc`` over this host's file tree, read-only, with the limits that our sandboxes have.

    As in ours, files are opened by the gofer and not by the sentry.
    """

    program: str
    place: Path
    title: str = "`runsc run`"

    def once(self, command: Sequence[str]) -> str:
        name, bundle = self._bundle(command)
        return printed(self._runsc("run", "--bundle", str(bundle), name))

    def session(self, commands: Sequence[Sequence[str]]) -> None:
        name, bundle = self._bundle(("sleep", str(TTL_S)))
        # Its sandbox keeps the descriptors of the command that starts it.
        nothing = subprocess.DEVNULL
        started = self._runsc("run", "--detach", "--bundle", str(bundle), name)
        subprocess.run(started, check=True, timeout=60, stdin=nothing, stdout=nothing, stderr=nothing)
        try:
            for command in commands:
                printed(self._runsc("exec", name, *command))
        finally:
            printed(self._runsc("delete", "--force", name))

    def _runsc(self, *words: str) -> list[str]:
        fixed = ("--network=none", "--platform=systrap", "--directfs=false", "--log=/dev/null")
        return [self.program, f"--root={self.place}/state", *fixed, *words]

    def _bundle(self, command: Sequence[str]) -> tuple[str, Path]:
        name = f"bare-{secrets.token_hex(6)}"
        bundle = self.place / name
        bundle.mkdir(parents=True)
        process: dict[str, Any] = {"args": list(command), "cwd": "/", "env": ["PATH=/usr/bin:/bin"]}
        process |= {"user": {"uid": 65532, "gid": 65532}, "noNewPrivileges": True}
        mounts: list[dict[str, Any]] = [{"destination": "/proc", "type": "proc", "source": "proc"}]
        mounts += [{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["size=512m"]}]
        limits = {
            "memory": {"limit": 1216 << 20},
            "pids": {"limit": 1280},
            "cpu": {"quota": 100_000, "period": 100_000},
        }
        spaces = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")]
        config = {"ociVersion": "1.0.0", "process": process, "root": {"path": "/", "readonly": True}}
        linux = {"namespaces": spaces, "resources": limits, "cgroupsPath": f"/skillyard-{name}"}
        (bundle / "config.json").write_text(json.dumps({**config, "mounts": mounts, "linux": linux}))
        return name, bundle


class QemuRestored:
    """QEMU with an image of machines: booted once, and restored for each sandbox, whose shell takes commands.

    It has what a machine of ours has: kernel, root, memory and processors; no walls in it and none round it.
    """

    title = "`qemu -incoming`"
    _SHELL = """b=/run/machine/busybox
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
python3 -I -c 'import json' || exit
echo ready
while true; do
    until read -r line; do $b usleep 20000; done
    eval "$(echo "$line" | $b base64 -d)"
    echo "$line"
done
"""

    def __init__(self, image: Path, place: Path, memory_mb: int) -> None:
        self._image, self._place, self._memory_mb = image, place, memory_mb

    def once(self, command: Sequence[str]) -> str:
        with self._restored() as shell:
            return self._ran(shell, command)

    def session(self, commands: Sequence[Sequence[str]]) -> None:
        with self._restored() as shell:
            for command in commands:
                self._ran(shell, command)

    @staticmethod
    def _ran(shell: socket.socket, command: Sequence[str]) -> str:
        line = b64encode(shlex.join(command).encode()) + b"\n"
        shell.sendall(line)
        return _until(shell, line).removesuffix(line).decode()

    @contextmanager
    def _restored(self) -> Iterator[socket.socket]:
        with self._machine("-incoming", f"exec:cat {self._state}") as place, _connected(place / "order") as shell:
            yield shell

    @cached_property
    def _state(self) -> Path:
        """The machine as it waits for its first command."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as packed:
            member = tarfile.TarInfo("second")
            member.size = len(self._SHELL)
            packed.addfile(member, io.BytesIO(self._SHELL.encode()))
        state, given = self._place / "state", archive.getvalue()
        with self._machine("-qmp", "unix:monitor,server=on,wait=off") as place, _connected(place / "order") as shell:
            shell.sendall(b"%d\n" % len(given) + given)
            _until(shell, b"ready\n")
            with _connected(place / "monitor") as monitor:
                monitor.sendall(
                    b'{"execute": "qmp_capabilities"}{"execute": "migrate-set-capabilities", "arguments": '
                    b'{"capabilities": [{"capability": "events", "state": true}]}}'
                )
                monitor.sendall(json.dumps({"execute": "migrate", "arguments": {"uri": f"exec:cat >{state}"}}).encode())
                _until(monitor, b'"status": "completed"}}\r\n')
        return state

    @contextmanager
    def _machine(self, *more: str) -> Iterator[Path]:
        place = self._place / secrets.token_hex(4)
        place.mkdir(parents=True)
        root = f"driver=file,node-name=root,read-only=on,filename={self._image / ROOT}"
        words = ["qemu-system-x86_64", "-nodefaults", "-display", "none", "-accel", "tcg", "-cpu", "max"]
        words += ["-machine", "q35,usb=off,vmport=off,smm=off,sata=off", "-m", f"{self._memory_mb}M"]
        words += ["-kernel", str(self._image / KERNEL), "-initrd", str(self._image / INITIAL), "-append", CMDLINE]
        words += ["-blockdev", root, "-device", "virtio-blk-pci,drive=root", "-device", "virtio-serial-pci"]
        words += ["-chardev", "socket,id=order,path=order,server=on,wait=off"]
        words += ["-device", f"virtserialport,chardev=order,name={ORDER_PORT}", *more]
        with subprocess.Popen(words, cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as qemu:
            try:
                yield place
            finally:
                qemu.kill()


def _connected(path: Path) -> socket.socket:
    """Returns a connection to a socket as soon as somebody listens. Raises OSError."""
    until = time.monotonic() + TTL_S
    while True:
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(TTL_S)
        try:
            peer.connect(str(path))
        except OSError:
            peer.close()
            if time.monotonic() > until:
                raise
            time.sleep(0.005)
        else:
            return peer


def _until(peer: socket.socket, end: bytes) -> bytes:
    """Returns everything up to ``end``. Raises EOFError, TimeoutError."""
    found = b""
    while not found.endswith(end):
        if not (data := peer.recv(65536)):
            raise EOFError(f"the machine has ended: {found[-200:]!r}")
        found += data
    return found


class E2bSdk:
    """E2B's SDK."""

    title = "E2B's SDK"

    def __init__(self, url: str, key: str, template: str) -> None:
        self._template = template
        self._given: dict[str, Any] = {
            "api_key": key,
            "api_url": url,
            "sandbox_url": url,
            "http_version": "1.1",
            "timeout": TTL_S,
        }

    def once(self, command: Sequence[str]) -> str:
        with self._machine() as machine:
            return str(machine.commands.run(shlex.join(command)).stdout)

    def session(self, commands: Sequence[Sequence[str]]) -> None:
        with self._machine() as machine:
            for command in commands:
                machine.commands.run(shlex.join(command))

    @contextmanager
    def _machine(self) -> Iterator[Any]:
        from e2b import Sandbox

        machine = Sandbox.create(self._template, allow_internet_access=False, **self._given)
        try:
            yield machine
        finally:
            machine.kill()


class OpenSandboxSdk:
    """OpenSandbox's SDK."""

    title = "OpenSandbox's SDK"

    def __init__(self, settings: OpenSandboxSettings) -> None:
        self._settings = settings

    def once(self, command: Sequence[str]) -> str:
        with self._sandbox() as sandbox:
            return self._ran(sandbox, command)

    def session(self, commands: Sequence[Sequence[str]]) -> None:
        with self._sandbox() as sandbox:
            for command in commands:
                self._ran(sandbox, command)

    @staticmethod
    def _ran(sandbox: Any, command: Sequence[str]) -> str:
        ended = sandbox.commands.run(shlex.join(command))
        return "".join(str(piece.text) for piece in ended.logs.stdout)

    @contextmanager
    def _sandbox(self) -> Iterator[Any]:
        from opensandbox import SandboxSync
        from opensandbox.config import ConnectionConfigSync
        from opensandbox.models.sandboxes import NetworkPolicy

        ours = self._settings
        config = ConnectionConfigSync(
            domain=ours.domain, protocol=ours.protocol, api_key=ours.key(), disable_metrics=True
        )
        sandbox = SandboxSync.create(
            ours.image,
            timeout=timedelta(seconds=TTL_S),
            resource={"cpu": "1000m", "memory": "512Mi"},
            network_policy=NetworkPolicy(defaultAction="deny", egress=[]),
            connection_config=config,
        )
        try:
            yield sandbox
        finally:
            sandbox.destroy()
