"""Two network namespaces and a wire between them, for root: the *host*, where the server and its gate run, and the
*world*, which has public addresses and also every address that must stay closed, so that a gate that lets one through
is found out by what arrives there.

Threads live in them: what a thread starts, processes and further threads, begins where it is (setns(2)).
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from skillyard.sandbox.native.linux import kernel

T = TypeVar("T")

HOST, HOST6 = "20.0.0.1", "2600:1234::1"
WORLD, WORLD6 = "20.0.0.10", "2600:1234::10"
CLOSED = ("169.254.169.254", "10.0.0.5", "172.16.0.5", "192.168.7.7", "100.64.0.9", "168.63.129.16", "198.18.0.66",
          "192.0.2.5", "fd00::5", "fec0::5", "64:ff9b::a00:5", "2002:a00:5::1", "2001:db8::5",
          "::10.0.0.5")  # fmt: skip
"""Addresses of the world that no rule opens unless it names them."""
PUBLIC = ("20.0.0.11", "20.0.0.12", "2600:5678::11", "2600:64::1400:b")
BEHIND_NAT64 = ("2600:64::10.0.0.5", "2600:64::169.254.169.254")
"""2600:64::/96 is the prefix of a NAT64, of which the world's name server tells."""
_BOUND_S = 30.0


class Street:
    """Made and left by ``with``; nothing of it stays."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._host = ThreadPoolExecutor(1, "street-host", _unshared)
        self._world = ThreadPoolExecutor(1, "street-world", _unshared)

    def __enter__(self) -> Street:
        try:
            there = self.in_world(_own_net)
            self.in_host(lambda: _wire(there))
            self.in_world(_addresses)
            self.in_host(lambda: _resolver(self._directory))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._host.shutdown()
        self._world.shutdown()

    def in_host(self, work: Callable[[], T]) -> T:
        """Its result, worked out in a thread that lives there."""
        return self._host.submit(work).result(4 * _BOUND_S)

    def in_world(self, work: Callable[[], T]) -> T:
        return self._world.submit(work).result(4 * _BOUND_S)


def _unshared() -> None:
    kernel.unshare(kernel.CLONE_NEWNET | kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)


def _own_net() -> str:
    return f"/proc/{os.getpid()}/task/{threading.get_native_id()}/ns/net"


def _wire(there: str) -> None:
    _ip("link set lo up")
    _ip(f"link add street0 type veth peer name street1 netns {there}")
    _ip(f"addr add {HOST}/24 dev street0")
    _ip(f"addr add {HOST6}/64 dev street0 nodad")
    _ip("link set street0 up")
    _ip(f"route add default via {WORLD}")


def _addresses() -> None:
    _ip("link set lo up")
    _ip(f"addr add {WORLD}/24 dev street1")
    _ip(f"addr add {WORLD6}/64 dev street1 nodad")
    for address in (*CLOSED, *PUBLIC, *BEHIND_NAT64):
        _ip(f"addr add {address}/{128 if ':' in address else 32} dev lo" + (" nodad" if ":" in address else ""))
    _ip("link set street1 up")


def _resolver(directory: Path) -> None:
    """Names are asked of the world, whatever the machine's own settings say."""
    _ip(f"-6 route add default via {WORLD6}")
    file = directory / "resolv.conf"
    file.write_text(f"nameserver {WORLD}\nsearch yard.test\noptions timeout:2 attempts:1\n")
    file.chmod(0o644)
    kernel.mount(str(file), "/etc/resolv.conf", None, kernel.MS_BIND)
    file = directory / "nsswitch.conf"
    file.write_text("hosts: files dns\n")
    file.chmod(0o644)
    kernel.mount(str(file), "/etc/nsswitch.conf", None, kernel.MS_BIND)


def _ip(words: str) -> None:
    done = subprocess.run(["ip", *words.split()], capture_output=True, text=True, timeout=_BOUND_S)
    assert done.returncode == 0, f"ip {words}: {done.stderr}"
